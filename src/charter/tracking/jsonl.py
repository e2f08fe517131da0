"""Metrics as JSON lines: `{"step": 40, "time": 1764500000.0, "loss": 2.31}`, and how they are read."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from charter.errors import DataError, loads_json

STEP, TIME = "step", "time"
METRICS, IMPORTED_METRICS = "metrics.jsonl", "imported.jsonl"
"""What a stage itself has logged; what `charter artifacts import` has read from somebody else's log."""


@dataclass(frozen=True, kw_only=True)
class MetricPoint:
    """The metrics of one step."""

    step: int
    time: float | None
    values: Mapping[str, float]
    """Finite values only: a loss that was not a number is left out."""


def metrics_file(stage_dir: Path) -> Path:
    """Return the path of a stage's curves: its own, or those of an imported run where it has none."""
    own, imported = stage_dir / METRICS, stage_dir / IMPORTED_METRICS
    return imported if imported.exists() and not own.exists() else own


def read_metrics(path: Path) -> tuple[MetricPoint, ...]:
    """The metrics of one stage in the order of steps; empty when there is no file.

    Steps that were done again after a kill count once, as they were done last. A torn last line (a kill while
    writing) is left out; any other broken line is a DataError.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return ()
    points: dict[int, MetricPoint] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        point = metric_point(line)
        if point is None and number == len(lines):
            break
        if point is None:
            raise DataError(f"{path}:{number}: not a line of metrics; remove the line to read the others")
        points[point.step] = point
    return tuple(points[step] for step in sorted(points))


def series(points: tuple[MetricPoint, ...], name: str) -> Iterator[tuple[int, float]]:
    """Step and value of one metric, where it was logged."""
    return ((point.step, point.values[name]) for point in points if name in point.values)


def metric_point(line: bytes) -> MetricPoint | None:
    """The metrics of one line; None where it is torn or something else.

    >>> metric_point(b'{"step": 40, "loss": 2.31}').values
    {'loss': 2.31}
    """
    try:
        content: Any = loads_json(line)
    except ValueError:
        return None
    if not isinstance(content, dict) or not isinstance(content.get(STEP), int):
        return None
    values = {
        name: float(value)
        for name, value in content.items()
        if name not in (STEP, TIME) and isinstance(value, int | float) and math.isfinite(value)
    }
    return MetricPoint(step=content[STEP], time=content.get(TIME), values=values)
