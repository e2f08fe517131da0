"""Finish of a plan: joint draws of all its stages, from which every finish, date and verdict is read."""

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from charter.cost.monte_carlo import DRAWS, FAILURES, IDLE_SHARES, REWORK_SIGMA, Duration, drawn_finish
from charter.cost.uncertainty import Factor, Idle, Lognormal, Noise, Quantiles, ThreePoint, Uniform
from charter.plan.physics.knowledge import SERVING, TRAINING
from charter.plan.stages.stage_plan import QUANTILES, StagePlan
from charter.plan.timeline import Sharing, Timeline
from charter.resilience.spot import CURVE
from charter.spec.sections import Costs

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
