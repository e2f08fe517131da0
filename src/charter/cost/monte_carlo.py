"""The distribution of a project's cost and finish, and which causes it comes from.

Every amount is a median times factors; factors with the same cause move together, over stages and over amounts.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from charter.cost.finish import NOTHING, Duration, drawn_finish, product, quantiles
from charter.cost.uncertainty import Draws, Factor, Noise
from charter.errors import UsageError
from charter.estimate.terms import Interval

DRAWS = 10_000
REWORK_SIGMA, FAILURES, IDLE_SHARES = 0.25, (1.02, 1.12), (0.05, 0.25)
"""Deviation of the logarithm of runs per kept run; billed time over undisturbed time; share of paid time with nothing
running. Judgement, until a ledger of finished runs measures them."""
NUM_DRIVERS = 3
LEAST_SHARE = 0.0005
"""Causes below it are left out: among 10,000 draws a cause without any effect reaches 0.0004 in one case of 20."""


@dataclass(frozen=True, kw_only=True)
class Amount:
    """One addend of the cost: a median, uncertain factors, and usd per month of the project's length."""

    stage: str
    """Empty for what belongs to the project as a whole."""
    usd: float = 0.0
    factors: tuple[Factor, ...] = ()
    usd_per_second: float = 0.0
    """Paid from the first start to the last end."""


@dataclass(frozen=True, kw_only=True)
class Driver:
    """A cause and its share of the variance of the logarithm of the total."""

    cause: str
    share: float

    def to_json(self) -> dict[str, object]:
        """Both fields."""
        return {"cause": self.cause, "share": round(self.share, 4)}


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Quantiles of cost and finish over all draws, with the causes in order of their weight."""

    usd: Interval
    seconds: Interval
    causes: tuple[Driver, ...]
    """Of the cost, largest first; shares are first-order and need not add up to one."""
    seed: int
    draws: int

    @property
    def drivers(self) -> tuple[Driver, ...]:
        """The three that matter most."""
        return self.causes[:NUM_DRIVERS]

    def to_json(self) -> dict[str, object]:
        """As `charter plan --json` prints it."""
        return {
            "usd": {name: round(getattr(self.usd, name), 6) for name in ("p10", "p50", "p90")},
            "seconds": {name: round(getattr(self.seconds, name), 6) for name in ("p10", "p50", "p90")},
            "drivers": [item.to_json() for item in self.drivers],
            "causes": [item.to_json() for item in self.causes],
            "seed": self.seed,
            "draws": self.draws,
        }


def simulate(
    amounts: Sequence[Amount],
    durations: Sequence[Duration],
    *,
    capacity: Mapping[str, float] = NOTHING,
    seed: int = 0,
    draws: int = DRAWS,
    contingency: float = 0.0,
    actual_usd: Mapping[str, float] | None = None,
    actual_seconds: Mapping[str, float] | None = None,
) -> Spread:
    """Draw cost and finish `draws` times; a stage in `actual_usd` costs what it did cost, without spread.

    `durations` in an order in which every stage comes after its inputs, `capacity` of what they hold. A finished stage
    whose duration is not given takes its median. Shares of the causes are squared correlations of a cause's noise with
    the logarithm of the total: exact for a product of independent factors, first-order for sums of such products.
    """
    if draws < 100:
        raise UsageError(f"quantiles need at least 100 draws; got {draws}")
    noise = Noise(seed=seed, size=draws)
    known = dict(actual_usd or {})
    finish = drawn_finish(
        durations, noise, capacity=capacity, finished=known.keys(), actual_seconds=actual_seconds or {}
    ).total
    drawn = [
        product(item.usd, item.factors, noise) + item.usd_per_second * finish
        for item in amounts
        if item.stage not in known
    ]
    total = math.fsum(known.values()) + sum(drawn, start=np.zeros(draws)) * (1 + contingency)
    return Spread(
        usd=quantiles(total),
        seconds=quantiles(finish),
        causes=_shares(total, noise),
        seed=seed,
        draws=draws,
    )


def _shares(total: Draws, noise: Noise) -> tuple[Driver, ...]:
    if not (total > 0).all():
        return ()
    logs = np.log(total)
    if logs.std() == 0:
        return ()
    found = [
        Driver(cause=cause, share=float(np.corrcoef(values, logs)[0, 1] ** 2)) for cause, values in noise.causes.items()
    ]
    shares = [item for item in found if item.share >= LEAST_SHARE]
    return tuple(sorted(shares, key=lambda item: (-item.share, item.cause)))
