"""Price of a GB and month in the places where a run really keeps its bytes, by the prices that the plan uses."""

from dataclasses import dataclass

from charter.catalog.price_book import PriceBook
from charter.plan.hardware.place import LOCAL, ON_PREM
from charter.plan.stages.stage_storage import OWN_DISK, TIERS, tier_of
from charter.plan.stages.transfer import BUCKETS
from charter.units import MICRO_USD_PER_USD


@dataclass(frozen=True, kw_only=True)
class StoredPrice:
    """The price of one place."""

    provider: str
    micro_usd_per_gb_month: int | None
    """None where no price is known."""
    source: str = ""
    as_of: str = ""


def place_price(bucket: str | None, *, infra: str | None, own_endpoint: str | None = None) -> StoredPrice:
    """The price of a bucket, or of a directory where `bucket` is None.

    Own disks are free, as in the plan. A disk of a rented machine, and a bucket of a store that is reached at an
    address of its own (`own_endpoint`), have no price in the catalog.

    >>> place_price("s3://bucket", infra=None).micro_usd_per_gb_month
    23000
    >>> place_price(None, infra=None), place_price(None, infra="aws").micro_usd_per_gb_month
    (StoredPrice(provider='own disk', micro_usd_per_gb_month=0, source='own disk', as_of=''), None)
    """
    if bucket is None:
        if infra in (None, LOCAL, ON_PREM):
            return StoredPrice(provider=OWN_DISK.name, micro_usd_per_gb_month=0, source=OWN_DISK.name)
        return StoredPrice(provider=str(infra), micro_usd_per_gb_month=None)
    provider = BUCKETS.get(bucket.partition("://")[0], "")
    if own_endpoint is not None or provider not in TIERS:
        return StoredPrice(provider=provider if own_endpoint is None else own_endpoint, micro_usd_per_gb_month=None)
    tier = tier_of(provider, PriceBook.bundled())
    return StoredPrice(
        provider=provider,
        micro_usd_per_gb_month=round(tier.usd_per_gb_month * MICRO_USD_PER_USD),
        source=f"{tier.name}: {tier.source}",
        as_of=tier.as_of,
    )
