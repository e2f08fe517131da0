"""Pump of an engine's output into the stage's own log, where `charter logs` shows it."""

import sys
from pathlib import Path

_MOST_BYTES = 1 << 20
_END_BYTES = 1 << 16
_LONGEST = 400


class LogPump:
    """Passes on what has been added to a file since it last looked."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0

    def pump(self) -> None:
        """Pass on what is new; at most a megabyte at a time."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._position)
                new_bytes = file.read(_MOST_BYTES)
        except OSError:
            return
        if new_bytes:
            self._position += len(new_bytes)
            sys.stdout.write(new_bytes.decode(errors="replace"))
            sys.stdout.flush()

    def last_lines(self, number: int) -> str:
        """The last lines of the file, for a message."""
        try:
            with self._path.open("rb") as file:
                file.seek(max(0, self._path.stat().st_size - _END_BYTES))
                lines = file.read().decode(errors="replace").splitlines()
        except OSError:
            return ""
        return "\n".join([line[:_LONGEST] for line in lines if line.strip()][-number:])
