"""Causes that move the total of a plan, one at a time: the figures of the tornado chart."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from charter.physics.terms import Z90
from charter.plan.plan import Plan
from charter.plan.risk import PRICE_SIGMA
from charter.plan.stage_plan import StagePlan

FIXED_PRICES = ("contract", "owned", "own")
"""Markets whose price is known."""


@dataclass(frozen=True, kw_only=True)
class Driver:
    """The total when one cause is at its 10th and at its 90th percentile, all else at its median."""

    name: str
    low: float
    high: float
    note: str

    @property
    def width(self) -> float:
        """Return the distance by which it moves the total."""
        return abs(self.high - self.low)


def median_total(plan: Plan) -> tuple[str, float]:
    """`usd` and the total at the median, or `seconds` and the sum of the stages where a price is missing."""
    total = plan.project_usd
    if total is None or total.p50 == 0:
        return "seconds", sum(stage.option.seconds.p50 for stage in plan.stages)
    return "usd", total.p50 / 1e6


def drivers(plan: Plan) -> list[Driver]:
    """Causes that move the total, widest first; one that moves nothing is left out.

    Stages move together, as in the totals of a plan. Of a lognormal cause with standard deviation sigma the bill of
    the machines is multiplied by `exp(-+1.2816 sigma)`. For failures the low end has none and no checkpoints, and
    the high end twice the expected loss: a bound, not a percentile.
    """
    unit, base = median_total(plan)
    entries = []
    for name, note, shift in _causes(unit):
        low, high = (base + sum(_amount(stage, unit) * shift(stage, side) for stage in plan.stages) for side in (-1, 1))
        entries.append(Driver(name=name, low=low, high=high, note=note))
    return sorted((item for item in entries if item.width > 1e-9 * base), key=lambda item: -item.width)


def _causes(unit: str) -> Iterator[tuple[str, str, Callable[[StagePlan, int], float]]]:
    """Each cause with the share of a stage's amount that it adds at its low (-1) and high (+1) end."""
    yield (
        "speed of training and generation",
        "width of the calibration, by kind of stage",
        lambda s, e: _factor(s, 0, e),
    )
    yield "length of answers", "generated tokens are guessed where lengths are not fixed", lambda s, e: _factor(s, 1, e)
    yield "failures, checkpoints and restarts", "from none at all to twice the expected loss", _lost_share
    if unit == "usd":
        yield "price per hour", "list and spot prices move; contracts do not", _price


def _factor(stage: StagePlan, index: int, end: int) -> float:
    sigmas = stage.option.time_sigmas
    return math.expm1(end * Z90 * sigmas[index]) if index < len(sigmas) else 0.0


def _price(stage: StagePlan, end: int) -> float:
    return 0.0 if stage.option.price.market in FIXED_PRICES else math.expm1(end * Z90 * PRICE_SIGMA)


def _lost_share(stage: StagePlan, end: int) -> float:
    risk = stage.option.overhead
    lost = risk.billed_seconds - risk.useful_seconds - risk.start_seconds
    return end * max(0.0, lost) / risk.billed_seconds if risk.billed_seconds else 0.0


def _amount(stage: StagePlan, unit: str) -> float:
    if unit == "seconds":
        return stage.option.seconds.p50
    return 0.0 if stage.compute_usd is None else stage.compute_usd.p50 / 1e6
