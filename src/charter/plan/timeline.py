"""Timeline of the stages, and joint draws of all of them from which every finish, date and verdict is read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import pairwise
from types import MappingProxyType

import numpy as np

from charter.cost.monte_carlo import (
    DRAWS,
    FAILURES,
    IDLE_SHARES,
    REWORK_SIGMA,
    Duration,
    Factor,
    Idle,
    Lognormal,
    Noise,
    Quantiles,
    ThreePoint,
    Uniform,
    drawn_finish,
)
from charter.plan.knowledge import SERVING, TRAINING
from charter.plan.stage_plan import QUANTILES, StagePlan
from charter.resilience.spot import CURVE
from charter.spec.sections import Costs

# -------- Timeline of the stages: start and end of each, and the chain of stages that decides the end.

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


# -------- A timeline as JSON: bands of start and end per stage, and dates where the start is known.


def timeline_json(lines: Mapping[str, Timeline], start: datetime | None) -> dict[str, object]:
    """By quantile: what `Plan.timeline` says, in the order of the run."""
    names = list(next(iter(lines.values())).start_seconds)
    return {
        "start": None if start is None else start.isoformat(timespec="minutes"),
        "finish": _dates({name: line.total_seconds for name, line in lines.items()}, start),
        "stages": [
            {
                "name": name,
                "start_seconds": {q: round(line.start_seconds[name], 6) for q, line in lines.items()},
                "end_seconds": {q: round(line.end_seconds[name], 6) for q, line in lines.items()},
                "finish": _dates({q: line.end_seconds[name] for q, line in lines.items()}, start),
            }
            for name in names
        ],
    }


def finish_date(seconds: float, start: datetime) -> datetime:
    """Return when something ends, to the minute, rounded up; later than any date gives the last minute of all.

    >>> finish_date(90.0, datetime(2026, 11, 20)).isoformat()
    '2026-11-20T00:02:00'
    """
    minutes = -(-seconds // 60)
    try:
        return start + timedelta(minutes=minutes)
    except OverflowError:
        return datetime.max.replace(second=0, microsecond=0, tzinfo=start.tzinfo)


def _dates(seconds: Mapping[str, float], start: datetime | None) -> dict[str, str] | None:
    if start is None:
        return None
    return {name: finish_date(value, start).isoformat(timespec="minutes") for name, value in seconds.items()}


# -------- Finish of a plan: joint draws of all its stages, from which every finish, date and verdict is read.

SEED = 0
NO_COSTS = Costs()
FAILURE_MIDDLE = (FAILURES[0] + FAILURES[1]) / 2 - 1
FAILURE_SPAN = tuple((end - 1) / FAILURE_MIDDLE for end in FAILURES)
"""Excess time of failures over its expectation, from 1.02 and 1.12 around 1.07."""
IDLE_MIDDLE = sum(IDLE_SHARES) / 2
IDLE_SPAN = tuple(share / IDLE_MIDDLE for share in IDLE_SHARES)
MOST_IDLE = 0.95
WORDS = {TRAINING: "speed of training", SERVING: "speed of generation", "rl step": "speed of PPO"}


def timelines(stages: Sequence[StagePlan], sharing: Sharing | None) -> Mapping[str, Timeline]:
    """By quantile: of every stage the quantile of its start and of its end over 10,000 draws, and of the last end.

    Quantiles neither add nor come together: a bar from the p90 start to the p90 end is no draw, and the p90 of a chain
    is not the sum of the p90s of its stages. Stages that share an estimator or the doubt about the length of
    answers are fast or slow together, and so are queues of one cluster; every wait for a spot pool has luck of its own,
    so that the median of a chain of such waits lies between the sum of their medians and that of their means.
    """
    drawn = drawn_finish(durations(stages, sharing), _noise(), capacity={} if sharing is None else sharing.capacity)
    levels = (0.1, 0.5, 0.9)
    starts, ends = (np.quantile(values, levels, axis=1) for values in (drawn.starts, drawn.ends))
    totals = np.quantile(drawn.total, levels)
    path = drawn.critical_path
    return {
        name: Timeline(
            start_seconds=dict(zip(drawn.names, map(float, starts[row]), strict=True)),
            end_seconds=dict(zip(drawn.names, map(float, ends[row]), strict=True)),
            critical_path=path,
            finish_seconds=float(totals[row]),
        )
        for row, name in enumerate(QUANTILES)
    }


@lru_cache(maxsize=1)
def _noise() -> Noise:
    """The same random numbers for every plan: two plans differ by what they do, never by luck."""
    return Noise(seed=SEED, size=DRAWS)


def durations(stages: Sequence[StagePlan], sharing: Sharing | None, costs: Costs = NO_COSTS) -> tuple[Duration, ...]:
    """Return each stage's time, waits and holdings; `costs` may add reruns and idle time."""
    return tuple(
        Duration(
            stage=stage.name,
            seconds=_busy_seconds(stage) * (1 + costs.rework),
            factors=(*time_factors(stage), *waste_factors(costs)),
            waits=_pool_waits(stage),
            after=stage.inputs,
            lags=stage.transfer_seconds,
            queue=_queue(stage),
            not_before_seconds=stage.lead_seconds,
            holds={} if sharing is None else sharing.of(stage.name),
        )
        for stage in stages
    )


def time_factors(stage: StagePlan) -> tuple[Factor, ...]:
    """Of one run: how fast it works, how much it writes, how often it fails."""
    option = stage.option
    engine = "" if option.engine == "native" else f" ({option.engine})"
    cause = WORDS[stage.time_quantity] + engine
    factors = [Factor(cause=cause, distribution=Lognormal(sigma=option.time_sigmas[0]))]
    if len(option.time_sigmas) > 1:
        factors.append(Factor(cause="answer length", distribution=Lognormal(sigma=option.time_sigmas[1])))
    useful, billed = option.overhead.useful_seconds, option.overhead.billed_seconds - option.overhead.start_seconds
    if useful > 0 and billed > useful:
        expected = billed / useful
        low, high = ((1 + (expected - 1) * span) / expected for span in FAILURE_SPAN)
        factors.append(Factor(cause="failures and checkpoints", distribution=Uniform(low=low, high=high)))
    return tuple(factors)


def waste_factors(costs: Costs) -> tuple[Factor, ...]:
    """Of reruns and idle time, where the project counts them."""
    factors = [Factor(cause="reruns", distribution=Lognormal(sigma=REWORK_SIGMA))] if costs.rework else []
    if costs.idle_share:
        low, high = (min(MOST_IDLE, costs.idle_share * span) for span in IDLE_SPAN)
        factors.append(Factor(cause="idle time", distribution=Idle(low=low, high=high)))
    return tuple(factors)


def _busy_seconds(stage: StagePlan) -> float:
    """Wall time at the median, without the waits of a spot pool, which are drawn apart."""
    risk = stage.option.overhead
    return risk.wall_seconds if risk.waits is None else risk.billed_seconds


def _pool_waits(stage: StagePlan) -> tuple[Factor, ...]:
    """Return the stage's wait for a spot pool; every stage has its own luck."""
    waiting = stage.option.overhead.waits
    if waiting is None or not waiting.curve:
        return ()
    waits = Quantiles(levels=CURVE, values=waiting.curve)
    return (Factor(cause=f"spot pool of {stage.name}", distribution=waits),)


def _queue(stage: StagePlan) -> tuple[Factor, ...]:
    """Queue and data on its way through a named storage; a cluster that is busy is busy for all stages."""
    wait = stage.wait_seconds
    if not wait.p90:
        return ()
    taken = ThreePoint(p10=wait.p10, p50=wait.p50, p90=wait.p90)
    return (Factor(cause=f"queue on {stage.option.place.infra}", distribution=taken),)
