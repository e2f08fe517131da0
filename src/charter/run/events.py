"""What happens in a run, as plain mappings: kept in `events.jsonl`, and given to whoever shows it."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from charter.artifacts import durable

Listener = Callable[[Mapping[str, Any]], None]
EVENTS_FILE = "events.jsonl"
TRANSIENT = frozenset({"stage_progress"})
"""Events that are shown but not kept: the stage's `metrics.jsonl` has them."""


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
