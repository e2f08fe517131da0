"""Files that grow by lines, read from where the last look ended: a page never reads a whole one again."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from charter.errors import loads_json

CHUNK_BYTES = 4 * 1024 * 1024
TAIL_BYTES = 256
"""Enough of the end of what was read, with its times, to tell whether it still stands there."""


@dataclass
class Growing:
    """Reading position of one file: how far it was read, and as which file."""

    inode: int = 0
    offset: int = 0
    rest: bytes = b""
    """A last line without its end: it may still be being written."""
    tail: bytes = b""
    """The last bytes that were read, which end at `offset`."""


class LineFile:
    """Gives the lines that were added since the last call; starts anew when the file was cut or replaced."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known = Growing()

    def new_lines(self, restart: Callable[[], None]) -> list[bytes]:
        """Whole lines that have been added; calls `restart` first when earlier ones no longer hold."""
        try:
            with self.path.open("rb") as file:
                return self._read(file, restart)
        except FileNotFoundError:
            if self._known.offset:
                self._known = Growing()
                restart()
            return []

    def _read(self, file: Any, restart: Callable[[], None]) -> list[bytes]:
        inode = _stat(file).st_ino
        if inode != self._known.inode or not self._is_as_left(file):
            if self._known.offset:
                restart()
            self._known = Growing(inode=inode)
        file.seek(self._known.offset)
        lines: list[bytes] = []
        while chunk := file.read(CHUNK_BYTES):
            self._known.offset += len(chunk)
            self._known.tail = (self._known.tail + chunk)[-TAIL_BYTES:]
            parts = (self._known.rest + chunk).split(b"\n")
            self._known.rest = parts.pop()
            lines += parts
        return lines

    def _is_as_left(self, file: Any) -> bool:
        """Return True if the last bytes read still stand there: a file that was cut may have grown again since."""
        tail = self._known.tail
        file.seek(self._known.offset - len(tail))
        return bool(file.read(len(tail)) == tail)


def _stat(file: Any) -> Any:
    import os

    return os.fstat(file.fileno())


@dataclass
class _Kept:
    file: LineFile
    lock: threading.Lock = field(default_factory=threading.Lock)
    steps: dict[int, dict[str, float]] = field(default_factory=dict)


class MetricFiles:
    """The metrics of stages, kept in memory as far as they were read; the least used are forgotten."""

    def __init__(self, most: int = 64) -> None:
        self._most = most
        self._kept: OrderedDict[Path, _Kept] = OrderedDict()
        self._lock = threading.Lock()

    def steps(self, path: Path) -> dict[int, dict[str, float]]:
        """The finite numbers of every step, in the order of steps; a step that was done again counts once."""
        with self._lock:
            cached = self._kept.pop(path, None) or _Kept(file=LineFile(path))
            self._kept[path] = cached
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
        with cached.lock:
            fresh = cached.file.new_lines(cached.steps.clear)
            for line in fresh:
                if (numbers := _numbers(line)) is not None:
                    cached.steps[numbers[0]] = numbers[1]
            if fresh and list(cached.steps) != sorted(cached.steps):
                cached.steps = dict(sorted(cached.steps.items()))
            return dict(cached.steps)


def _numbers(line: bytes) -> tuple[int, dict[str, float]] | None:
    """Step and finite numbers of one line; None for a line that is none."""
    try:
        content: Any = loads_json(line)
    except ValueError:
        return None
    if not isinstance(content, dict) or not isinstance(step := content.pop("step", None), int):
        return None
    finite = {
        str(name): float(value)
        for name, value in content.items()
        if isinstance(value, int | float) and value - value == 0
    }
    return step, finite
