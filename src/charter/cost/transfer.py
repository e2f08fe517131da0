"""What moving bytes out of a cloud costs."""

from collections.abc import Sequence
from dataclasses import dataclass

from charter.units import GB


@dataclass(frozen=True, kw_only=True)
class TransferTier:
    """A price per GB up to a cumulative volume in a month; the last tier is open."""

    up_to_bytes: float
    usd_per_gb: float


AWS_EGRESS = (
    TransferTier(up_to_bytes=10_240 * GB, usd_per_gb=0.09),
    TransferTier(up_to_bytes=51_200 * GB, usd_per_gb=0.085),
    TransferTier(up_to_bytes=153_600 * GB, usd_per_gb=0.07),
    TransferTier(up_to_bytes=float("inf"), usd_per_gb=0.05),
)
"""AWS to the internet, per month; the first tier was read in a source, the others are from memory (low
confidence)."""


def transfer_usd(num_bytes: float, tiers: Sequence[TransferTier], *, already_bytes: float = 0.0) -> float:
    """Cost in usd of `num_bytes` on top of what this month already carried: each tier prices its own slice.

    >>> round(transfer_usd(2.3e12, AWS_EGRESS))
    207
    """
    cost, low = 0.0, 0.0
    start, end = already_bytes, already_bytes + num_bytes
    for tier in tiers:
        slice_bytes = max(0.0, min(end, tier.up_to_bytes) - max(start, low))
        cost += slice_bytes / GB * tier.usd_per_gb
        low = tier.up_to_bytes
    return cost
