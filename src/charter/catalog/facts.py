"""Smaller tables: storage and transfer prices, on-premises assumptions, published run costs."""

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


@dataclass(frozen=True, kw_only=True)
class PublishedCost:
    """Cost of a published run, as printed (the figures are texts because sources print ranges)."""

    run: str
    parameters_billions: str
    tokens: str
    stage: str
    accelerator: str
    devices: str
    hours: str
    gpu_hours: str
    usd: str
    usd_per_gpu_hour: str
    derived_check: str
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


@cache
def published_costs() -> tuple[PublishedCost, ...]:
    """Runs whose cost or hours were published: checks for a plan, never its inputs."""
    return read_table("published_costs.csv", _published_cost)


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


def _published_cost(row: TableRow) -> PublishedCost:
    return PublishedCost(
        run=row.text("run"),
        parameters_billions=row.optional_text("params_b"),
        tokens=row.optional_text("tokens"),
        stage=row.optional_text("stage"),
        accelerator=row.optional_text("accelerator"),
        devices=row.optional_text("devices"),
        hours=row.optional_text("hours"),
        gpu_hours=row.optional_text("gpu_hours"),
        usd=row.optional_text("usd"),
        usd_per_gpu_hour=row.optional_text("usd_per_gpu_h"),
        derived_check=row.optional_text("derived_check"),
        provenance=row.provenance(),
    )
