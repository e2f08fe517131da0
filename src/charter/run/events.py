"""Events of a run, as plain mappings: kept in `events.jsonl`, and given to whoever shows it."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from charter.artifacts import durable
from charter.tracking.progress import EVENTS_FILE

Listener = Callable[[Mapping[str, Any]], None]
EVENT_BYTES = 256 * 1024
"""Read of a file for its last events."""
TRANSIENT = frozenset({"stage_progress"})
"""Events that are shown but not kept: the stage's `metrics.jsonl` has them."""

ACTIONS = frozenset(
    {
        "run_started", "start_requested", "start_failed", "stop_requested", "stop_failed", "stage_approved",
        "stage_rerun", "budget_raised", "model_accepted", "fee_added", "credit_added", "sample_noted", "run_tagged",
    }
)  # fmt: skip
"""Events that a person has caused, with `by` in each but those that say why it failed."""


class Events:
    """Writes events down and passes them on."""

    def __init__(self, run_dir: Path, listeners: Sequence[Listener]) -> None:
        self._path = run_dir / EVENTS_FILE
        self._listeners = tuple(listeners)

    def emit(self, event: str, **details: Any) -> None:
        """One event: `{"time", "event", ...}`."""
        entry = {"time": time.time(), "event": event, **details}
        if event not in TRANSIENT:
            durable.append_line(self._path, entry)
        for listener in self._listeners:
            listener(entry)


def last_events(path: Path, *, most: int = 400) -> tuple[Mapping[str, Any], ...]:
    """Return the last events of a run, oldest first; a torn or strange line is left out."""
    try:
        content, size = end_of_file(path, EVENT_BYTES)
    except OSError:
        return ()
    lines = content.split(b"\n")
    if len(content) < size:
        lines = lines[1:]
    return tuple(list(_events_in(lines))[-most:])


def actions_of(path: Path) -> tuple[Mapping[str, Any], ...]:
    """Return everything that people did to a run, oldest first, however long ago."""
    names = [f'"{name}"'.encode() for name in ACTIONS]
    try:
        with path.open("rb") as file:
            lines = (line for line in file if any(name in line for name in names))
            return tuple(event for event in _events_in(lines) if event.get("event") in ACTIONS)
    except OSError:
        return ()


def _events_in(lines: Iterable[bytes]) -> Iterator[Mapping[str, Any]]:
    for line in lines:
        if (event := durable.object_in(line)) is not None and isinstance(event.get("time"), int | float):
            yield event


def end_of_file(path: Path, most: int) -> tuple[bytes, int]:
    """Return the last bytes of a file, and its size."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - most))
        return file.read(most), size
