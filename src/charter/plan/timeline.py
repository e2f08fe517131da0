"""Timeline of the stages: start and end of each, and the chain of stages that decides the end."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType

NOTHING: Mapping[str, float] = MappingProxyType({})
NO_LAGS: Mapping[tuple[str, str], float] = MappingProxyType({})
SLOT = "slot"


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """Start and end of every stage in seconds from the start of the run."""

    start_seconds: Mapping[str, float]
    end_seconds: Mapping[str, float]
    critical_path: tuple[str, ...]
    finish_seconds: float | None = None
    """Of quantiles over draws: that of the last end, which is no stage's own where several may be the last."""

    @property
    def total_seconds(self) -> float:
        """End of the last stage."""
        return max(self.end_seconds.values(), default=0.0) if self.finish_seconds is None else self.finish_seconds


def mean_shares(line: Timeline) -> Mapping[str, float]:
    """Mean share of one machine that each stage has, split evenly among those that run in each interval.

    Formula: integral of 1 / stages(t) over a stage's time, divided by it; the same rule as the ledger's.

    >>> line = Timeline(start_seconds={"a": 0, "b": 60}, end_seconds={"a": 100, "b": 140}, critical_path=())
    >>> mean_shares(line)
    {'a': 0.8, 'b': 0.75}
    """
    spans = {name: (start, line.end_seconds[name]) for name, start in line.start_seconds.items()}
    moments = sorted({moment for span in spans.values() for moment in span})
    seconds = dict.fromkeys(spans, 0.0)
    for before, after in pairwise(moments):
        alive = [name for name, (start, end) in spans.items() if start <= before and after <= end]
        for name in alive:
            seconds[name] += (after - before) / len(alive)
    return {name: seconds[name] / (end - start) if end > start else 1.0 for name, (start, end) in spans.items()}


@dataclass(frozen=True, kw_only=True)
class Sharing:
    """Resources that stages running at the same time share, and what each holds of them while it runs."""

    capacity: Mapping[str, float]
    demand: Mapping[str, Mapping[str, float]]

    def of(self, name: str) -> Mapping[str, float]:
        """Return the resources that a stage holds."""
        return self.demand.get(name, NOTHING)


def slots(order: Sequence[str], number: int) -> Sharing:
    """Sharing of one machine on which `number` stages may run side by side."""
    return Sharing(capacity={SLOT: number}, demand={name: {SLOT: 1.0} for name in order})
