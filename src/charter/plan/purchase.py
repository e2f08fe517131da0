"""Markets and ways to pay for an option: by the second, interruptible, commitments, blocks, whole hours."""

import math
from dataclasses import replace

from charter.cost.job import commitment_break_even_utilisation
from charter.plan.offers import CAPACITY_BLOCK, Price
from charter.plan.option import Option, StageQuestion
from charter.plan.risk import Assumption, overhead
from charter.spec.project import Resources
from charter.units import SECONDS_PER_DAY, SECONDS_PER_HOUR, format_usd

# -------- The markets on which an option can be bought.


def markets(question: StageQuestion, option: Option) -> list[Option]:
    """The option at each market that `use_spot` allows, with the failures of its own place."""
    options = [] if question.use_spot is True else [_at(question, option, option.price, spot=False)]
    if question.use_spot and option.place.spot is not None:
        options.append(_at(question, option, option.place.spot, spot=True))
    return options


def _at(question: StageQuestion, option: Option, price: Price, *, spot: bool) -> Option:
    """The same job at a market: interruptible machines cost less, are billed longer and waited for.

    A failure of any node stops the stage, those of groups beside the main one included.
    """
    risk = overhead(
        option.overhead.useful_seconds,
        place=option.place,
        num_nodes=option.num_nodes + sum(group.num_nodes for group in option.beside),
        spot=spot,
        checkpoint_bytes=question.checkpoint_bytes,
        settings=question.risk,
        units=question.units,
        is_first=question.is_first,
        agents=question.has_agents,
    )
    return replace(option, price=price, overhead=risk)


# -------- Ways to pay for an option that are neither by the second nor interruptible: commitments, blocks, whole hours.

HOURS_PER_YEAR = 8760.0
MARKETS = {"1y": ("reserved_1y",), "3y": ("reserved_3y",)}
YEARS = {"reserved_1y": 1, "reserved_3y": 3}
BLOCK_DAYS = (*range(1, 15), *range(21, 183, 7))
"""Lengths that a capacity block is sold in: whole days to 14, then whole weeks to half a year.

Source: AWS, "Capacity Blocks for ML" (from memory, 2025): verify with the provider; others sell whole months."""
BLOCK_NODES = (1, 2, 4, 8, 16, 32, 64)
"""Numbers of machines that a block is sold in. Source: as for the days."""


def purchases(option: Option, resources: Resources) -> list[Option]:
    """The option as `resources` lets it be paid for: itself in whole granules or blocks, and under a commitment."""
    if option.price.market == CAPACITY_BLOCK:
        block = _block(option)
        return [] if block is None else [block]
    kinds = [option]
    if option.price.market == "on_demand":
        wanted = MARKETS.get(resources.reserved or "", ())
        kinds += [replace(option, price=price) for price in option.place.reserved if price.market in wanted]
    return [_in_granules(kind, resources.billing_granule) for kind in kinds]


def _in_granules(option: Option, granule_seconds: float | None) -> Option:
    """Billed time rounded up to whole granules; by the second, with a minute at least, is what clouds do otherwise."""
    if granule_seconds is None or option.place.is_cpu:
        return option
    billed = math.ceil(option.overhead.billed_seconds / granule_seconds - 1e-9) * granule_seconds
    return replace(option, overhead=replace(option.overhead, billed_seconds=billed))


def block_days(seconds: float) -> int | None:
    """Days of the shortest block that lasts so long; None where none does.

    >>> block_days(30 * 3600.0), block_days(15 * 86400.0), block_days(300 * 86400.0)
    (2, 21, None)
    """
    return next((days for days in BLOCK_DAYS if days * SECONDS_PER_DAY >= seconds), None)


def _block(option: Option) -> Option | None:
    """The option in a block: bought for its p90 time, since the machines are taken away at the end of it."""
    days = block_days(option.seconds.p90)
    if days is None or option.num_nodes not in BLOCK_NODES or option.usd_per_hour is None:
        return None
    return replace(option, fixed_usd=option.usd_per_hour * days * 24)


def commitment_notes(option: Option) -> tuple[Assumption, ...]:
    """Return the cost of a commitment of the option's machines bought for this stage only, and when it pays.

    A commitment bills its whole term: `accelerators x 8,760 hours x years x price`. It beats on demand from
    `committed / on-demand` of the hours on (`cost.job.commitment_break_even_utilisation`).
    """
    on_demand = option.place.price.usd_per_hour
    if option.place.price.market != "on_demand" or not on_demand:
        return ()
    return tuple(_note(option, price, on_demand) for price in option.place.reserved if price.usd_per_hour is not None)


def _note(option: Option, price: Price, on_demand: float) -> Assumption:
    assert price.usd_per_hour is not None
    years = YEARS[price.market]
    hours = HOURS_PER_YEAR * years
    term = option.num_accelerators * hours * price.usd_per_hour
    bill = option.num_accelerators * option.overhead.billed_seconds / SECONDS_PER_HOUR * on_demand
    share = commitment_break_even_utilisation(
        committed_usd_per_hour=price.usd_per_hour, on_demand_usd_per_hour=on_demand
    )
    return Assumption(
        name=f"commitment of {years} y: {option.num_accelerators} x {option.place.label}",
        value=round(term),
        source=f"bought for one stage only it bills its whole term, {format_usd(term)} against {format_usd(bill)} on "
        f"demand; it pays from {share:.0%} of the hours of {years} y in use; {price.source}",
        as_of=price.as_of,
    )
