"""Reserved capacity: how much to commit to, and what stays unused of it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from charter.cost.job import commitment_break_even_utilisation
from charter.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class MarketPrices:
    """Usd per accelerator-hour of one accelerator by market."""

    committed: float
    on_demand: float
    spot: float | None = None
    spot_rework: float = 1.0
    """Billed hours on spot over the hours of undisturbed work."""


@dataclass(frozen=True, kw_only=True)
class Layers:
    """A demand curve bought in three layers; the parts add up to the total."""

    committed_accelerators: float
    committed_used_usd: float
    committed_unused_usd: float
    """Paid for and idle: the line that a bill calls an unused commitment."""
    on_demand_usd: float
    spot_usd: float

    @property
    def total_usd(self) -> float:
        """Sum of the layers."""
        return self.committed_used_usd + self.committed_unused_usd + self.on_demand_usd + self.spot_usd


def committed_base(demand: Sequence[float], *, break_even_utilisation: float) -> float:
    """Accelerators to commit to: the largest level that demand reaches in at least the break-even share of hours.

    One more committed accelerator pays while `P(demand >= level) >= committed price / on-demand price`, so the base is
    the `1 - u` quantile of the demand curve. `demand` holds accelerators in use, hour by hour; it must stand for the
    whole term of the commitment.

    >>> committed_base([8, 8, 8, 16], break_even_utilisation=0.63)
    8.0
    """
    hours = np.sort(np.asarray(demand, dtype=float))[::-1]
    if hours.size == 0 or hours[-1] < 0:
        raise UsageError("a demand curve needs at least one hour, and no hour below zero")
    needed = max(1, int(np.ceil(break_even_utilisation * hours.size - 1e-9)))
    return float(hours[needed - 1]) if needed <= hours.size else 0.0


def layers(firm: Sequence[float], prices: MarketPrices, *, preemptible: Sequence[float] = ()) -> Layers:
    """Cost a demand curve with the best commitment under it: firm work above it on demand, the rest on spot.

    `firm` and `preemptible` are accelerators in use per hour. Preemptible work (labels, evaluation, sweeps) is bought
    on spot where that is cheaper than on demand after its rework. It is not used to fill idle commitments.

    >>> found = layers([8, 8, 8, 16], MarketPrices(committed=2.314, on_demand=3.673))
    >>> found.committed_accelerators, round(found.total_usd, 2)
    (8.0, 103.43)
    """
    share = commitment_break_even_utilisation(
        committed_usd_per_hour=prices.committed, on_demand_usd_per_hour=prices.on_demand
    )
    base = committed_base(firm, break_even_utilisation=share)
    hours = np.asarray(firm, dtype=float)
    used = float(np.minimum(hours, base).sum())
    above = float(np.maximum(hours - base, 0.0).sum())
    flexible = float(np.asarray(preemptible, dtype=float).sum())
    spot = None if prices.spot is None else prices.spot * prices.spot_rework
    on_spot = spot is not None and spot < prices.on_demand
    return Layers(
        committed_accelerators=base,
        committed_used_usd=used * prices.committed,
        committed_unused_usd=(base * hours.size - used) * prices.committed,
        on_demand_usd=(above + (0.0 if on_spot else flexible)) * prices.on_demand,
        spot_usd=flexible * spot if on_spot and spot is not None else 0.0,
    )
