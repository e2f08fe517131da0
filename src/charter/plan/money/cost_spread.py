"""Causes that each amount of a plan depends on, for the Monte Carlo; those of time are in `plan.finish`."""

from collections.abc import Sequence
from math import log

from charter.catalog.price_book import Market, PriceBook
from charter.cost.money import usd
from charter.cost.monte_carlo import CostTerm
from charter.cost.uncertainty import Factor, Lognormal, LogUniform
from charter.physics.terms import Z90
from charter.plan.finish import time_factors, waste_factors
from charter.plan.money.cost_breakdown import API, DISK, LABELS, STORAGE, TRANSFER, CostLine
from charter.plan.money.stage_cost import premium_share
from charter.plan.options.option import SETTLED_MARKETS
from charter.plan.options.risk import PRICE_SIGMA
from charter.plan.stages.stage_plan import StagePlan
from charter.spec.project import Project
from charter.spec.sections import Costs

LABEL_SIGMA = 0.25
"""Of what bought labels come to, on the scale of logarithms: some pairs are labelled twice. Judgement."""
OWN_BUCKETS = (API, DISK, LABELS, STORAGE, TRANSFER)
"""Buckets whose lines stand for themselves; what is paid by the month follows the finish."""


def amounts(
    stages: Sequence[StagePlan], lines: Sequence[CostLine], project: Project, per_second: float, book: PriceBook
) -> tuple[CostTerm, ...]:
    """Every addend of the cost; `per_second` is what fixed services and staff cost."""
    terms = [
        CostTerm(
            stage=stage.name,
            usd=usd(stage.compute_usd.p50) * (1 + project.costs.rework) * (1 + premium_share(stage, project.costs)),
            factors=(*_machine_factors(stage, project, book), *waste_factors(project.costs)),
        )
        for stage in stages
        if stage.compute_usd is not None
    ]
    terms += [
        CostTerm(stage=line.stage, usd=usd(line.usd.p50), factors=(_price_of_line(line),))
        for line in lines
        if line.bucket in OWN_BUCKETS and line.usd.p50
    ]
    return (*terms, CostTerm(stage="", usd_per_second=per_second)) if per_second else tuple(terms)


def _machine_factors(stage: StagePlan, project: Project, book: PriceBook) -> tuple[Factor, ...]:
    """Of the machines' bill; a block costs the same however long the work takes."""
    if stage.option.fixed_usd is not None:
        return ()
    return (*time_factors(stage), *_price_factors(stage, project.costs, book))


def _price_factors(stage: StagePlan, costs: Costs, book: PriceBook) -> tuple[Factor, ...]:
    """One cause per provider, so that stages on it move together; known prices have none."""
    option = stage.option
    if option.price.market in SETTLED_MARKETS or not option.price.usd_per_hour:
        return ()
    if costs.provider == "open" and (offered := _offered(stage, book)):
        low, high = (price / option.price.usd_per_hour for price in offered)
        return (Factor(cause="price, provider open", distribution=LogUniform(low=low, high=high)),)
    return (Factor(cause=f"price on {option.place.infra}", distribution=Lognormal(sigma=PRICE_SIGMA)),)


def _offered(stage: StagePlan, book: PriceBook) -> tuple[float, float] | None:
    """Lowest and highest price in the book of the accelerator in the stage's market; None without two of them."""
    market = Market.SPOT if stage.option.price.market == Market.SPOT else Market.ON_DEMAND
    offers = book.offers(stage.option.place.accelerator.name, market=market)
    prices = [price for offer in offers if (price := offer.usd_per_accelerator_hour(market)) and offer.whole_machine]
    return (min(prices), max(prices)) if len(set(prices)) > 1 else None


def _price_of_line(line: CostLine) -> Factor:
    if line.bucket == LABELS:
        return Factor(cause="cost of human labels", distribution=Lognormal(sigma=LABEL_SIGMA))
    if line.bucket == API:
        return Factor(cause="answer length", distribution=Lognormal(sigma=log(line.usd.p90 / line.usd.p50) / Z90))
    return Factor(cause="prices of storage and transfer", distribution=Lognormal(sigma=PRICE_SIGMA))
