"""Metrics as JSON lines: `{"step": 40, "time": 1764500000.0, "loss": 2.31}`; writing and reading them."""

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from charter.artifacts import durable
from charter.errors import DataError, UsageError

STEP, TIME = "step", "time"
METRICS, IMPORTED_METRICS = "metrics.jsonl", "imported.jsonl"
"""What a stage itself has logged; what `charter import` has read from the log of a run that somebody else started."""


class JsonlTracker:
    """Appends one line per step to a file; each line is one write, so a kill tears at most the last."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self._clock = clock
        self._finished = False
        path.parent.mkdir(parents=True, exist_ok=True)
        _end_torn_line(path)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Append the metrics of one step."""
        if self._finished:
            raise UsageError(f"{self.path} is finished; no more steps can be logged to it")
        reserved = {STEP, TIME} & set(values)
        if reserved:
            raise UsageError(f"a metric cannot be called {sorted(reserved)[0]!r}: the line itself has that field")
        durable.append_line(self.path, {STEP: step, TIME: self._clock(), **values})

    def finish(self) -> None:
        """Flush the file to disk."""
        self._finished = True
        if self.path.exists():
            with self.path.open("rb") as file:
                os.fsync(file.fileno())


@dataclass(frozen=True, kw_only=True)
class Point:
    """The metrics of one step."""

    step: int
    time: float | None
    values: Mapping[str, float]
    """Finite values only: a loss that was not a number is left out."""


def metrics_file(stage_dir: Path) -> Path:
    """Where the curves of a stage are: its own, or those of an imported run where it has none."""
    own, imported = stage_dir / METRICS, stage_dir / IMPORTED_METRICS
    return imported if imported.exists() and not own.exists() else own


def read_metrics(path: Path) -> tuple[Point, ...]:
    """The metrics of one stage in the order of steps; empty when there is no file.

    Steps that were done again after a kill count once, as they were done last. A torn last line (a kill while
    writing) is left out; any other broken line is a DataError.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return ()
    points: dict[int, Point] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        point = _point(line)
        if point is None and number == len(lines):
            break
        if point is None:
            raise DataError(f"{path}:{number}: not a line of metrics; remove the line to read the others")
        points[point.step] = point
    return tuple(points[step] for step in sorted(points))


def series(points: tuple[Point, ...], name: str) -> Iterator[tuple[int, float]]:
    """Step and value of one metric, where it was logged."""
    return ((point.step, point.values[name]) for point in points if name in point.values)


def _point(line: bytes) -> Point | None:
    try:
        content: Any = json.loads(line)
    except ValueError:
        return None
    if not isinstance(content, dict) or not isinstance(content.get(STEP), int):
        return None
    values = {
        name: float(value)
        for name, value in content.items()
        if name not in (STEP, TIME) and isinstance(value, int | float) and math.isfinite(value)
    }
    return Point(step=content[STEP], time=content.get(TIME), values=values)


def _end_torn_line(path: Path) -> None:
    """Cut a last line that a kill left without its end, so that the next one starts on a line of its own."""
    if not path.exists():
        return
    content = path.read_bytes()
    if content and not content.endswith(b"\n"):
        durable.truncate(path, content.rfind(b"\n") + 1)
