"""What keeping bytes costs over time."""

from collections.abc import Sequence
from dataclasses import dataclass

from charter.units import GB, HOURS_PER_MONTH, SECONDS_PER_HOUR


@dataclass(frozen=True, kw_only=True)
class StorageTier:
    """One class of storage: its price and the shortest time it bills."""

    name: str
    usd_per_gb_month: float
    minimum_days: float = 0.0
    source: str = ""
    as_of: str = ""


S3_STANDARD = StorageTier(
    name="AWS S3 Standard",
    usd_per_gb_month=0.023,
    source="AWS price list, first 50 TB, us-east-1",
    as_of="2026",
)


@dataclass(frozen=True, kw_only=True)
class StoredBytes:
    """A constant number of bytes held for a time."""

    num_bytes: float
    seconds: float


def storage_usd(held: Sequence[StoredBytes], tier: StorageTier) -> float:
    """Cost in usd of bytes over time: `price x sum GB x months`, each piece billed for the tier's minimum
    at least.

    GB is decimal, a month 730 hours. Requests and early-deletion fees of mixed tiers are not in it.

    >>> two_months = StoredBytes(num_bytes=728e9, seconds=2 * 730 * 3600)
    >>> round(storage_usd([two_months], S3_STANDARD), 2)
    33.49
    """
    minimum_seconds = tier.minimum_days * 86400
    gb_months = sum(
        piece.num_bytes / GB * max(piece.seconds, minimum_seconds) / (HOURS_PER_MONTH * SECONDS_PER_HOUR)
        for piece in held
    )
    return gb_months * tier.usd_per_gb_month
