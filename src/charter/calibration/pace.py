"""Paces: what a stage of a run took per step, over what was estimated for the same stage on the same accelerator."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import exp, log
from statistics import median
from typing import Any

FEWEST_INTERVALS = 2
"""One interval may be a pause, or the first, slow step."""


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Measured over estimated seconds of one kind of stage on one accelerator."""

    accelerator: str
    kind: str
    factor: float
    steps: int
    """Steps it was measured on."""
    source: str

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "Pace":
        """Read what `to_json` wrote."""
        return cls(**document)

    def to_json(self) -> dict[str, Any]:
        """All fields."""
        return asdict(self)


def seconds_per_step(points: Sequence[tuple[int, float]]) -> tuple[float, int] | None:
    """Median seconds of a step from (step, clock) pairs, and how many intervals it rests on; None below two.

    A median passes over restarts and the first, slow step.

    >>> seconds_per_step([(0, 0.0), (1, 9.0), (2, 10.0), (3, 11.0), (5, 13.0)])
    (1.0, 4)
    """
    pairs = pairwise(points)
    gaps = [(late - early) / (after - before) for (before, early), (after, late) in pairs if after > before]
    return (median(gaps), len(gaps)) if len(gaps) >= FEWEST_INTERVALS else None


def joined(paces: Sequence[Pace]) -> tuple[Pace, ...]:
    """One pace per accelerator and kind: the geometric mean, weighted by steps."""
    groups: dict[tuple[str, str], list[Pace]] = {}
    for pace in paces:
        groups.setdefault((pace.accelerator, pace.kind), []).append(pace)
    means = []
    for (accelerator, kind), members in sorted(groups.items()):
        steps = sum(pace.steps for pace in members)
        mean = sum(pace.steps * log(pace.factor) for pace in members) / steps
        source = "; ".join(sorted({pace.source for pace in members}))
        means.append(Pace(accelerator=accelerator, kind=kind, factor=exp(mean), steps=steps, source=source))
    return tuple(means)
