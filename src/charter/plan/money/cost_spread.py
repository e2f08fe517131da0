"""Which causes each amount and duration of a plan depends on, for the Monte Carlo."""

from collections.abc import Sequence
from math import log

from charter.catalog.prices import Market, offers
from charter.cost.money import usd
from charter.cost.monte_carlo import FAILURES, IDLE_SHARES, REWORK_SIGMA, Amount, Duration
from charter.cost.uncertainty import Factor, Idle, Lognormal, LogUniform, ThreePoint, Uniform
from charter.estimate.terms import Z90
from charter.plan.money.cost_breakdown import API, DISK, LABELS, STORAGE, TRANSFER, CostLine
from charter.plan.money.stage_cost import premium_share
from charter.plan.options.option import SETTLED_MARKETS
from charter.plan.options.risk import PRICE_SIGMA
from charter.plan.physics.knowledge import SERVING, TRAINING, time_group
from charter.plan.stages.stage_plan import StagePlan
from charter.plan.timeline import Timeline
from charter.spec.costs import Costs
from charter.spec.project import Project

LABEL_SIGMA = 0.25
"""Of what bought labels come to, on the scale of logarithms: some pairs are labelled twice. Judgement."""
FAILURE_MIDDLE = (FAILURES[0] + FAILURES[1]) / 2 - 1
FAILURE_SPAN = tuple((end - 1) / FAILURE_MIDDLE for end in FAILURES)
"""Excess time of failures over its expectation, from 1.02 and 1.12 around 1.07."""
IDLE_MIDDLE = sum(IDLE_SHARES) / 2
IDLE_SPAN = tuple(share / IDLE_MIDDLE for share in IDLE_SHARES)
MOST_IDLE = 0.95
WORDS = {TRAINING: "speed of training", SERVING: "speed of generation", "rl step": "speed of PPO"}
OWN_BUCKETS = (API, DISK, LABELS, STORAGE, TRANSFER)
"""Buckets whose lines stand for themselves; what is paid by the month follows the finish."""


def amounts(
    stages: Sequence[StagePlan], lines: Sequence[CostLine], project: Project, per_second: float
) -> tuple[Amount, ...]:
    """Every addend of the cost; `per_second` is what fixed services and staff cost."""
    made = [
        Amount(
            stage=stage.name,
            usd=usd(stage.compute_usd.p50) * (1 + project.costs.rework) * (1 + premium_share(stage, project.costs)),
            factors=(*_machine_factors(stage, project), *_waste_factors(project.costs)),
        )
        for stage in stages
        if stage.compute_usd is not None
    ]
    made += [
        Amount(stage=line.stage, usd=usd(line.usd.p50), factors=(_price_of_line(line),))
        for line in lines
        if line.bucket in OWN_BUCKETS and line.usd.p50
    ]
    return (*made, Amount(stage="", usd_per_second=per_second)) if per_second else tuple(made)


def durations(stages: Sequence[StagePlan], project: Project, line: Timeline | None) -> tuple[Duration, ...]:
    """How long each stage takes, stretched by reruns and idle time, and what it waits for.

    Where the median timeline makes a stage wait for machines that others hold, it waits for the same others in every
    draw.
    """
    begun = sorted(stages, key=lambda stage: line.start_seconds[stage.name]) if line else stages
    return tuple(
        Duration(
            stage=stage.name,
            seconds=_busy_seconds(stage) * (1 + project.costs.rework),
            waits=_pool_waits(stage),
            factors=(*_time_factors(stage, project), *_waste_factors(project.costs)),
            after=(*stage.inputs, *_holders(stage, line)),
            wait_seconds=_waits(stage),
            not_before_seconds=stage.lead_seconds,
        )
        for stage in begun
    )


def _holders(stage: StagePlan, line: Timeline | None) -> tuple[str, ...]:
    """Stages that end at the moment at which this one starts, later than its inputs and waits would let it."""
    if line is None:
        return ()
    start = line.start_seconds[stage.name]
    ready = max((line.end_seconds[name] for name in stage.inputs), default=0.0) + _waits(stage)
    if start <= max(ready, stage.lead_seconds):
        return ()
    return tuple(name for name, end in line.end_seconds.items() if end == start and name != stage.name)


def _busy_seconds(stage: StagePlan) -> float:
    """Wall time at the median, without the waits of a spot pool, which are drawn apart."""
    risk = stage.option.overhead
    return risk.wall_seconds if risk.waits is None else risk.billed_seconds


def _pool_waits(stage: StagePlan) -> tuple[Factor, ...]:
    """How long a spot pool makes the stage wait; every stage has its own luck."""
    found = stage.option.overhead.waits
    if found is None:
        return ()
    waits = ThreePoint(p10=found.p10, p50=found.p50, p90=found.p90)
    return (Factor(cause=f"spot pool of {stage.name}", distribution=waits),)


def _waits(stage: StagePlan) -> float:
    """Between the last input and the start: the queue, and data on its way."""
    return stage.wait_seconds.p50 + max(stage.transfer_seconds.values(), default=0.0)


def _machine_factors(stage: StagePlan, project: Project) -> tuple[Factor, ...]:
    """Of the machines' bill; a block costs the same however long the work takes."""
    if stage.option.fixed_usd is not None:
        return ()
    return (*_time_factors(stage, project), *_price_factors(stage, project.costs))


def _time_factors(stage: StagePlan, project: Project) -> tuple[Factor, ...]:
    """Of one run: how fast it works, how much it writes, how often it fails."""
    option = stage.option
    quantity, _ = time_group(project.pipeline[stage.name], moe=False)
    engine = "" if option.engine == "native" else f" ({option.engine})"
    factors = [Factor(cause=WORDS[quantity] + engine, distribution=Lognormal(sigma=option.time_sigmas[0]))]
    if len(option.time_sigmas) > 1:
        factors.append(Factor(cause="answer length", distribution=Lognormal(sigma=option.time_sigmas[1])))
    useful, billed = option.overhead.useful_seconds, option.overhead.billed_seconds - option.overhead.start_seconds
    if useful > 0 and billed > useful:
        expected = billed / useful
        low, high = ((1 + (expected - 1) * span) / expected for span in FAILURE_SPAN)
        factors.append(Factor(cause="failures and checkpoints", distribution=Uniform(low=low, high=high)))
    return tuple(factors)


def _waste_factors(costs: Costs) -> tuple[Factor, ...]:
    """Of reruns and idle time, where the project counts them."""
    factors = [Factor(cause="reruns", distribution=Lognormal(sigma=REWORK_SIGMA))] if costs.rework else []
    if costs.idle_share:
        low, high = (min(MOST_IDLE, costs.idle_share * span) for span in IDLE_SPAN)
        factors.append(Factor(cause="idle time", distribution=Idle(low=low, high=high)))
    return tuple(factors)


def _price_factors(stage: StagePlan, costs: Costs) -> tuple[Factor, ...]:
    """One cause per provider, so that stages on it move together; known prices have none."""
    option = stage.option
    if option.price.market in SETTLED_MARKETS or not option.price.usd_per_hour:
        return ()
    if costs.provider == "open" and (found := _offered(stage)):
        low, high = (price / option.price.usd_per_hour for price in found)
        return (Factor(cause="price, provider open", distribution=LogUniform(low=low, high=high)),)
    return (Factor(cause=f"price on {option.place.infra}", distribution=Lognormal(sigma=PRICE_SIGMA)),)


def _offered(stage: StagePlan) -> tuple[float, float] | None:
    """Lowest and highest bundled price of the accelerator in the stage's market; None without two of them."""
    market = Market.SPOT if stage.option.price.market == Market.SPOT else Market.ON_DEMAND
    found = offers(stage.option.place.accelerator.name, market=market)
    prices = [price for offer in found if (price := offer.usd_per_accelerator_hour(market)) and offer.whole_machine]
    return (min(prices), max(prices)) if len(set(prices)) > 1 else None


def _price_of_line(line: CostLine) -> Factor:
    if line.bucket == LABELS:
        return Factor(cause="cost of human labels", distribution=Lognormal(sigma=LABEL_SIGMA))
    if line.bucket == API:
        return Factor(cause="answer length", distribution=Lognormal(sigma=log(line.usd.p90 / line.usd.p50) / Z90))
    return Factor(cause="prices of storage and transfer", distribution=Lognormal(sigma=PRICE_SIGMA))
