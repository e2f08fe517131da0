"""Ways to pay for an option: by the second, interruptible, commitments, blocks, whole hours; servers kept warm."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil

from charter.cost.job import commitment_break_even_utilisation
from charter.physics.shapes import count_parameters
from charter.plan.offers import CAPACITY_BLOCK, LOCAL, Price
from charter.plan.option import Option, StageQuestion
from charter.plan.risk import CHECKPOINT_BYTES_PER_SECOND_PER_NODE, Assumption, overhead
from charter.plan.stage_plan import StagePlan
from charter.plan.timeline import Timeline
from charter.spec.project import Resources
from charter.units import HOURS_PER_YEAR, SECONDS_PER_DAY, SECONDS_PER_HOUR, format_seconds, format_usd

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
        agents=question.has_agents(option.place.infra),
    )
    return replace(option, price=price, overhead=risk)


# -------- Ways to pay for an option that are neither by the second nor interruptible: commitments, blocks, whole hours.

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
    overhead = replace(option.overhead, billed_seconds=billed, granule_seconds=granule_seconds)
    return replace(option, overhead=overhead)


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


@dataclass(frozen=True, kw_only=True)
class Gap:
    """Time between the end of one use of a model's servers and the start of the next."""

    seconds: float
    usd_per_hour: float
    """Of all servers of the model."""
    start_seconds: float
    """Until machines and images are there."""
    load_seconds: float
    """Until the weights are on the accelerators."""
    granule_seconds: float = 1.0
    """What a started machine is billed in multiples of."""


@dataclass(frozen=True, kw_only=True)
class Warmth:
    """Cost of keeping servers over a gap and of releasing them."""

    keep: bool
    kept_usd: float
    """Idle time from one use to the next."""
    released_usd: float
    """Start and loading before the next use; the machines are billed meanwhile."""
    break_even_seconds: float
    """Gaps shorter than this are cheaper to sit out."""

    @property
    def reason(self) -> str:
        """Both figures, in words."""
        idle, released = format_usd(self.kept_usd), format_usd(self.released_usd)
        limit = format_seconds(self.break_even_seconds)
        if self.keep:
            return f"kept: {idle} while they idle, {released} to start them again (keeping pays for up to {limit})"
        return f"released: idle they would cost {idle}, starting them again {released} (keeping pays for up to {limit})"


def warmth(gap: Gap) -> Warmth:
    """Return whether servers are worth keeping over a gap, with the cost of both ways.

    Kept they cost `gap x price`; released `(start + load) x price`, rounded up to the billing granule. Both are at the
    same price, so the break-even is a time: `start + load`. Where capacity may be gone at the second start (spot,
    quota), keeping is worth more than this says. Source: arithmetic.

    >>> gap = Gap(seconds=1800, usd_per_hour=36.0, start_seconds=300, load_seconds=60)
    >>> found = warmth(gap)
    >>> found.keep, found.kept_usd, round(found.released_usd, 2), found.break_even_seconds
    (False, 18.0, 3.6, 360.0)
    """
    restart = gap.start_seconds + gap.load_seconds
    billed = ceil(restart / gap.granule_seconds) * gap.granule_seconds
    return Warmth(
        keep=gap.seconds <= billed,
        kept_usd=gap.usd_per_hour * gap.seconds / 3600,
        released_usd=gap.usd_per_hour * billed / 3600,
        break_even_seconds=float(billed),
    )


@dataclass(frozen=True, kw_only=True)
class SharedServers:
    """Two stages that ask the same model on the same kind of accelerators."""

    model: str
    earlier: str
    later: str
    gap: Gap

    @property
    def line(self) -> str:
        """`judge between label and eval are released: ...`."""
        return f"{self.model} between {self.earlier} and {self.later} are {warmth(self.gap).reason}"


def shared_servers(stages: Sequence[StagePlan], timeline: Timeline) -> tuple[SharedServers, ...]:
    """Every use of a model whose servers an earlier stage had.

    Only stages that answer, on rented accelerators of one place. Loading reads the weights at the rate at which a node
    reads a checkpoint.
    """
    asks = {stage.name: _served(stage) for stage in stages}
    uses = []
    for model in dict.fromkeys(name for models in asks.values() for name in models):
        users = [stage for stage in stages if model in asks[stage.name]]
        users.sort(key=lambda stage: timeline.start_seconds[stage.name])
        for earlier, later in pairwise(users):
            pause = timeline.start_seconds[later.name] - timeline.end_seconds[earlier.name]
            hourly = earlier.option.usd_per_hour
            if pause < 0 or hourly is None or earlier.option.place.label != later.option.place.label:
                continue
            gap = Gap(
                seconds=pause,
                usd_per_hour=hourly,
                start_seconds=later.option.overhead.start_seconds,
                load_seconds=asks[later.name][model] / CHECKPOINT_BYTES_PER_SECOND_PER_NODE,
                granule_seconds=later.option.overhead.granule_seconds,
            )
            uses.append(SharedServers(model=model, earlier=earlier.name, later=later.name, gap=gap))
    return tuple(uses)


def _served(stage: StagePlan) -> dict[str, float]:
    """16-bit bytes of the models that a stage serves on rented accelerators, by name; none where it trains."""
    question, place = None if stage.searched is None else stage.searched.question, stage.option.place
    if question is None or question.work.trained or place.infra == LOCAL or place.is_cpu:
        return {}
    return {
        role.model: 2.0 * count_parameters(role.architecture).total
        for role in question.work.roles
        if role.name not in (*question.work.remote, *stage.option.remote)
    }
