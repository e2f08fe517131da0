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


GCP_EGRESS = (
    TransferTier(up_to_bytes=1_024 * GB, usd_per_gb=0.12),
    TransferTier(up_to_bytes=10_240 * GB, usd_per_gb=0.11),
    TransferTier(up_to_bytes=float("inf"), usd_per_gb=0.08),
)
"""Google Cloud to the internet worldwide, per month; price list of 2026-08-20 (China costs twice as much)."""
AZURE_EGRESS = (TransferTier(up_to_bytes=float("inf"), usd_per_gb=0.087),)
"""Azure to the internet, first 10 TB, from memory; the first 100 GB are free and not counted so."""
FREE_EGRESS = (TransferTier(up_to_bytes=float("inf"), usd_per_gb=0.0),)
"""Most smaller clouds charge nothing (from memory, verify)."""
EGRESS = {"aws": AWS_EGRESS, "gcp": GCP_EGRESS, "azure": AZURE_EGRESS}
EGRESS_SOURCES = {
    "aws": ("AWS price list; first tier read, the rest from memory", "2026-06"),
    "gcp": ("Google Cloud price list", "2026-08-20"),
    "azure": ("from memory, verify", "2024"),
}


def internet_egress(cloud: str) -> Sequence[TransferTier]:
    """Tiers of a cloud towards the internet; clouds that are not listed are taken as free.

    >>> internet_egress("gcp")[0].usd_per_gb, internet_egress("lambda")[0].usd_per_gb
    (0.12, 0.0)
    """
    return EGRESS.get(cloud, FREE_EGRESS)
