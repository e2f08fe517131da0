"""Long series as few points: what a screen can show of a curve. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[Any]

MOST_POINTS = 500


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One metric over steps."""

    metric: str
    title: str
    unit: str
    mean_of: int
    """How many steps each point is the mean of."""
    points: tuple[tuple[int, float], ...]
    band: tuple[tuple[float, float], ...]
    """Least and greatest value of the steps of each point; empty where points are single steps."""
    seconds: tuple[float, ...] = ()
    """From the stage's first line to each point, pauses between attempts included; empty where lines have no time."""
    tokens: tuple[float, ...] = ()
    """Trained or sampled up to each point; empty where nothing counts them."""

    @property
    def last(self) -> float:
        """The last point's value."""
        return self.points[-1][1]

    @property
    def values(self) -> tuple[float, ...]:
        """The values alone."""
        return tuple(value for _, value in self.points)

    def to_json(self, others: Iterable[tuple[str, "Curve"]] = ()) -> dict[str, object]:
        """Return the values that the script draws, with the same metric of other runs by their labels."""
        return {
            "metric": self.metric, "title": self.title, "unit": self.unit, "meanOf": self.mean_of,
            "band": [list(ends) for ends in self.band], **self._line(),
            "others": [{"label": label, **curve._line()} for label, curve in others],
        }  # fmt: skip

    def _line(self) -> dict[str, object]:
        points = [list(point) for point in self.points]
        return {"points": points, "seconds": list(self.seconds), "tokens": list(self.tokens)}


TITLES: Mapping[str, tuple[str, str]] = {
    "loss": ("Loss", ""),
    "reward_mean": ("Reward", ""),
    "total_reward": ("Reward minus KL penalty", ""),
    "kl": ("KL to the reference", "nats"),
    "kl_coefficient": ("KL coefficient", ""),
    "tokens_per_second": ("Tokens per second", "tokens/s"),
    "accuracy": ("Accuracy", ""),
    "token_accuracy": ("Token accuracy", ""),
    "margin": ("Margin", ""),
    "policy_loss": ("Policy loss", ""),
    "value_loss": ("Value loss", ""),
    "entropy": ("Entropy", "nats"),
    "clip_fraction": ("Clipped share", ""),
    "response_tokens": ("Answer length", "tokens"),
    "mean_chosen_probability": ("Certainty of the choice", ""),
    "longer_chosen_share": ("Longer answer chosen", ""),
    "position_bias": ("Choice by position", ""),
    "orders_agree": ("Same choice in both orders", ""),
    "invalid_share": ("Judgements that cannot be read", ""),
    "unchanged_revision_share": ("Revisions without a change", ""),
    "refused_revisions": ("Revisions that refuse", ""),
    "gradient_norm": ("Gradient norm", ""),
    "learning_rate": ("Learning rate", ""),
    "peak_bytes": ("Peak memory of tensors", "bytes"),
    "model_flops_per_second": ("Model flops per second", "flop/s"),
    "actual_over_planned_seconds": ("Step time over plan", "x"),
}
"""Metrics that are drawn, in this order, with their titles and units."""


def curves_of(steps: Mapping[int, Mapping[str, float]], *, most: int = MOST_POINTS) -> tuple[Curve, ...]:
    """The curves of a stage; a metric that never changes is left out."""
    logged = {name for values in steps.values() for name in values}
    numbers = np.fromiter(steps, dtype=np.int64, count=len(steps))
    drawn = []
    seconds, tokens = _elapsed(steps), _counted(steps)
    for metric, (title, unit) in TITLES.items():
        if metric not in logged:
            continue
        column = (values.get(metric, np.nan) for values in steps.values())
        series = np.fromiter(column, dtype=np.float64, count=len(steps))
        there = ~np.isnan(series)
        if there.sum() > 1 and np.ptp(series[there]) > 0:
            curve = thinned(metric, title, unit, numbers[there], series[there], most=most)
            at = np.searchsorted(numbers, [step for step, _ in curve.points])
            drawn.append(replace(curve, seconds=_at(seconds, at), tokens=_at(tokens, at)))
    return tuple(drawn)


Steady = tuple[tuple[str, str, float], ...]
"""Titles, units and values of metrics that never changed."""


def steady_of(steps: Mapping[int, Mapping[str, float]]) -> Steady:
    """Return the metrics that never changed, of which no curve is drawn.

    >>> steady_of({1: {"loss": 2.0, "orders_agree": 0.9}, 2: {"loss": 1.5, "orders_agree": 0.9}})
    (('Same choice in both orders', '', 0.9),)
    """
    values = {name: {line[name] for line in steps.values() if name in line} for name in TITLES}
    return tuple((*TITLES[name], seen.pop()) for name, seen in values.items() if len(seen) == 1)


def _elapsed(steps: Mapping[int, Mapping[str, float]]) -> Numbers | None:
    """Return seconds since the first line at each step; None where a line has no time, or goes back in it."""
    times = np.fromiter((line.get("time", np.nan) for line in steps.values()), dtype=np.float64, count=len(steps))
    if len(times) < 2 or np.isnan(times).any() or (np.diff(times) < 0).any() or times[0] == times[-1]:
        return None
    seconds: Numbers = np.round(times - times[0], 3)
    return seconds


def _counted(steps: Mapping[int, Mapping[str, float]]) -> Numbers | None:
    """Return the tokens up to each step; None where no line counts them. A line has those since the line before it."""
    tokens = np.fromiter((line.get("tokens", 0.0) for line in steps.values()), dtype=np.float64, count=len(steps))
    return np.cumsum(tokens) if tokens.any() else None


def _at(values: Numbers | None, places: Numbers) -> tuple[float, ...]:
    return () if values is None else tuple(values[places].tolist())


def thinned(metric: str, title: str, unit: str, steps: Numbers, values: Numbers, *, most: int) -> Curve:
    """At most `most` points, each the mean of as many steps, with their range.

    >>> curve = thinned("loss", "Loss", "", np.array([1, 2, 3, 4]), np.array([4.0, 2.0, 3.0, 1.0]), most=2)
    >>> curve.points, curve.band
    (((2, 3.0), (4, 2.0)), ((2.0, 4.0), (1.0, 3.0)))
    """
    size = -(-len(values) // most) or 1
    starts = np.arange(0, len(values), size)
    ends = np.append(starts[1:], len(values))
    means = np.add.reduceat(values, starts) / (ends - starts)
    lows, highs = np.minimum.reduceat(values, starts), np.maximum.reduceat(values, starts)
    return Curve(
        metric=metric,
        title=title,
        unit=unit,
        mean_of=size,
        points=tuple(zip(steps[ends - 1].tolist(), means.tolist(), strict=True)),
        band=tuple(zip(lows.tolist(), highs.tolist(), strict=True)) if size > 1 else (),
    )


@dataclass(frozen=True, kw_only=True)
class PhaseShare:
    """Share of one phase in the time of the last steps."""

    name: str
    seconds: float
    share: float


PHASES = ("generate", "score", "update", "save", "wait", "other")
LAST_LINES = 50
"""Lines of metrics that the time of a step is taken over."""


def phases_of(steps: Mapping[int, Mapping[str, float]]) -> tuple[PhaseShare, ...]:
    """Mean seconds of a step by phase, over the last lines; phases that took nothing are left out.

    A line has the time of all steps since the timed line before it, so that sums are divided by steps, not by lines.
    """
    timed = [(step, line) for step, line in steps.items() if any(f"seconds_{name}" in line for name in PHASES)]
    last = timed[-LAST_LINES:]
    if not last:
        return ()
    before = timed[-len(last) - 1][0] if len(timed) > len(last) else 0
    covered = max(1, last[-1][0] - before)
    means = {name: sum(line.get(f"seconds_{name}", 0.0) for _, line in last) / covered for name in PHASES}
    total = sum(means.values())
    return tuple(PhaseShare(name=name, seconds=mean, share=mean / total) for name, mean in means.items() if mean > 0)
