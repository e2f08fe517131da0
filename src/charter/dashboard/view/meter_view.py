"""Use of a stage's machines: figures and series for charts. Pure."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from charter.metering.row import MeterRow
from charter.metering.summary import MeterSummary, summarise

MOST_POINTS = 240


@dataclass(frozen=True, kw_only=True)
class MeterView:
    """Metered figures of a stage."""

    summary: MeterSummary
    charts: tuple[dict[str, Any], ...]

    @property
    def idle_share(self) -> float | None:
        """Share of the accelerators' time without work; None where nobody can say."""
        summary = self.summary
        if summary.gpu_idle_seconds is None or not summary.gpu_seconds:
            return None
        return summary.gpu_idle_seconds / summary.gpu_seconds


def meter_view(rows: Sequence[MeterRow]) -> MeterView | None:
    """Figures and curves of the samples; None where no node has two with a process of the job.

    The first sample of a node covers no time: shares of it would be 0 % of nothing, and a curve of it a point. One that
    came when the processes had ended saw nothing of what they used.
    """
    if max(Counter(row.node for row in rows if row.processes).values(), default=0) < 2:
        return None
    start = rows[0].time
    charts = [
        _chart("Accelerators: share at work", "share", rows, start, _activity),
        _chart("Accelerator memory in use", "bytes", rows, start, _memory),
        _chart("Accelerator power", "W", rows, start, _power),
        _chart("Processors: share that the job used", "share", rows, start, _cpu),
        _chart("Memory of its processes", "bytes", rows, start, lambda row: float(row.resident_bytes)),
        _chart("Read and written per second", "bytes", rows, start, _disk),
    ]
    return MeterView(summary=summarise(rows), charts=tuple(chart for chart in charts if chart is not None))


def _chart(
    title: str, unit: str, rows: Sequence[MeterRow], start: float, of: Callable[[MeterRow], float | None]
) -> dict[str, Any] | None:
    """One figure over time, a line for each node; None where no sample has it."""
    lines = []
    for node in sorted({row.node for row in rows}):
        points = [(row.time - start, value) for row in rows if row.node == node and (value := of(row)) is not None]
        if points:
            lines.append({"label": node, "points": _thinned(points)})
    if not lines:
        return None
    return {"title": title, "unit": unit, "x": "seconds", "lines": lines[:12]}


def _thinned(points: Sequence[tuple[float, float]]) -> list[list[float]]:
    size = -(-len(points) // MOST_POINTS)
    groups = [points[at : at + size] for at in range(0, len(points), size)]
    return [[round(group[-1][0], 3), fmean(value for _, value in group)] for group in groups]


def _activity(row: MeterRow) -> float | None:
    return _mean([gpu.activity for gpu in row.gpus or ()])


def _memory(row: MeterRow) -> float | None:
    return _mean([gpu.memory_used_bytes for gpu in row.gpus or ()])


def _power(row: MeterRow) -> float | None:
    return _mean([gpu.power_watts for gpu in row.gpus or ()])


def _cpu(row: MeterRow) -> float | None:
    available = row.interval_seconds * row.node_cpus
    return row.cpu_seconds / available if available > 0 else None


def _disk(row: MeterRow) -> float | None:
    return (row.read_bytes + row.written_bytes) / row.interval_seconds if row.interval_seconds > 0 else None


def _mean(values: Sequence[float | int | None]) -> float | None:
    numbers = [float(value) for value in values if value is not None]
    return fmean(numbers) if numbers else None
