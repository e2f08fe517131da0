"""Cost of keeping bytes over time."""

from collections.abc import Sequence
from dataclasses import dataclass

from charter.units import GB, HOURS_PER_MONTH, SECONDS_PER_DAY, SECONDS_PER_HOUR


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


def storage_usd(stored: Sequence[StoredBytes], tier: StorageTier) -> float:
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
        for piece in stored
    )
    return gb_months * tier.usd_per_gb_month


@dataclass(frozen=True, kw_only=True)
class StageBytes:
    """Bytes that one stage keeps: full checkpoints while it runs, weights and records also afterwards."""

    full_bytes: float
    """Of the full checkpoints that exist together; gone when the stage is done."""
    weights_only_bytes: float
    """Of all the weights-only checkpoints at the end; they arrive evenly over the stage."""
    result_bytes: float
    """Final weights, records and logs."""
    days: float
    """That weights and results stay afterwards."""

    def usd(self, seconds: float, *, while_running: StorageTier, afterwards: StorageTier) -> float:
        """Cost of a stage of `seconds`: `price x sum GB x months`, tier by tier.

        Weights-only checkpoints grow linearly, so they count half of the stage. The class that results rest in bills
        its minimum duration. Requests and reading back are not in it.
        """
        stay = self.days * SECONDS_PER_DAY
        running = [
            StoredBytes(num_bytes=self.full_bytes, seconds=seconds),
            StoredBytes(num_bytes=self.weights_only_bytes / 2, seconds=seconds),
        ]
        if afterwards == while_running:
            through = StoredBytes(num_bytes=self.result_bytes, seconds=seconds + stay)
            return storage_usd([*running, through], while_running) + self._rest(self.weights_only_bytes, afterwards)
        written = StoredBytes(num_bytes=self.result_bytes, seconds=seconds)
        resting = self._rest(self.weights_only_bytes + self.result_bytes, afterwards)
        return storage_usd([*running, written], while_running) + resting

    def _rest(self, num_bytes: float, tier: StorageTier) -> float:
        seconds = self.days * SECONDS_PER_DAY
        return storage_usd([StoredBytes(num_bytes=num_bytes, seconds=seconds)], tier) if seconds else 0.0


def weights_only_count(num_checkpoints: float, *, every: int) -> int:
    """Return the number of weights-only checkpoints that stay when every `every`-th is kept; none with 0.

    >>> weights_only_count(28, every=4), weights_only_count(28, every=0)
    (7, 0)
    """
    return int(num_checkpoints // every) if every else 0


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
