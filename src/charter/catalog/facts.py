"""Smaller tables: storage and transfer prices, and on-premises assumptions."""

from dataclasses import dataclass
from functools import cache

from charter.catalog.rows import Provenance, TableRow, read_table


@dataclass(frozen=True, kw_only=True)
class StoragePrice:
    """One price of storage, requests or transfer."""

    provider: str
    product: str
    tier: str
    region: str
    usd: float
    unit: str
    """`GB-month`, `GB` (transferred) or `per 1000` (requests); a GB is 10^9 bytes."""
    min_duration_days: float | None
    """Early deletion is billed up to this age."""
    retrieval_usd_per_gb: float | None
    note: str
    provenance: Provenance


@dataclass(frozen=True, kw_only=True)
class OnPremAssumption:
    """One input of the cost of owning hardware, as three scenarios."""

    parameter: str
    cheap: float
    mid: float
    costly: float
    unit: str
    provenance: Provenance


@cache
def storage_prices(provider: str | None = None, product: str | None = None) -> tuple[StoragePrice, ...]:
    """Storage, request and transfer prices.

    >>> storage_prices("aws", "S3")[0].usd
    0.023
    """
    prices = read_table("storage_prices.csv", _storage_price)
    return tuple(p for p in prices if provider in (None, p.provider) and product in (None, p.product))


@cache
def onprem_assumptions() -> tuple[OnPremAssumption, ...]:
    """Inputs of the cost of ownership: cheap, middle and costly."""
    return read_table("onprem_assumptions.csv", _onprem_assumption)


def _storage_price(row: TableRow) -> StoragePrice:
    usd = row.number_or_none("price_usd")
    if usd is None:
        raise row.problem("price_usd", "is empty; free is written as 0")
    return StoragePrice(
        provider=row.text("provider"),
        product=row.text("product"),
        tier=row.text("tier"),
        region=row.text("region"),
        usd=usd,
        unit=row.text("unit"),
        min_duration_days=row.number_or_none("min_duration_days"),
        retrieval_usd_per_gb=row.number_or_none("retrieval_usd_per_gb"),
        note=row.optional_text("note"),
        provenance=row.provenance(),
    )


def _onprem_assumption(row: TableRow) -> OnPremAssumption:
    return OnPremAssumption(
        parameter=row.text("parameter"),
        cheap=row.positive("cheap"),
        mid=row.positive("mid"),
        costly=row.positive("costly"),
        unit=row.text("unit"),
        provenance=row.provenance(),
    )
