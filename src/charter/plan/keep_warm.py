"""Servers between two stages that use the same model: kept running, or released and started again."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil

from charter.physics.shapes import count_parameters
from charter.plan.offers import LOCAL
from charter.plan.risk import CHECKPOINT_BYTES_PER_SECOND_PER_NODE
from charter.plan.stage_plan import StagePlan
from charter.plan.timeline import Timeline
from charter.units import format_seconds, format_usd


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
