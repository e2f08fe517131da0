"""Rental offers: dated snapshots of what an instance costs per hour, by market.

Live prices cannot be read from here; every row is a snapshot with its date, and prices go up as well as down.
A missing price is None ("null is not zero"): such a market is not offered. A spot price above the on-demand price
of the same row is refused, because it is the commonest defect of public catalogs (a reservation sold as on-demand).
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from charter.catalog.accelerators import get
from charter.catalog.rows import Provenance, Row, read_rows, read_table
from charter.units import GB, GIB

BITS_PER_BYTE = 8


class Market(StrEnum):
    """How an instance is paid for."""

    ON_DEMAND = "on_demand"
    SPOT = "spot"
    RESERVED_1Y = "reserved_1y"
    RESERVED_3Y = "reserved_3y"


@dataclass(frozen=True, kw_only=True)
class Offer:
    """One instance type of one cloud in one region, and its prices per instance-hour."""

    cloud: str
    instance_type: str
    accelerator: str
    count: int
    """Accelerators of one instance."""
    region: str
    on_demand_usd_per_hour: float | None
    spot_usd_per_hour: float | None
    """Median over the zones with a spot price of their own; the cheapest zone is `spot_min_usd_per_hour`."""
    spot_min_usd_per_hour: float | None
    reserved_1y_usd_per_hour: float | None
    reserved_3y_usd_per_hour: float | None
    vcpus: int | None
    host_memory_bytes: float | None
    network_bytes_per_second: float | None
    local_disk_bytes: float | None
    note: str
    provenance: Provenance

    @property
    def whole_machine(self) -> bool:
        """False where the price covers the accelerators only and the host is billed apart."""
        return "(GPU part only)" not in self.instance_type

    @property
    def as_of_year(self) -> int:
        """The latest year the date text names."""
        return as_of_key(self.provenance.as_of)[0]

    def usd_per_hour(self, market: Market) -> float | None:
        """Price of the whole instance in a market, None where it is not offered."""
        return {
            Market.ON_DEMAND: self.on_demand_usd_per_hour,
            Market.SPOT: self.spot_usd_per_hour,
            Market.RESERVED_1Y: self.reserved_1y_usd_per_hour,
            Market.RESERVED_3Y: self.reserved_3y_usd_per_hour,
        }[market]

    def usd_per_accelerator_hour(self, market: Market) -> float | None:
        """Price of one accelerator-hour in a market, None where it is not offered."""
        price = self.usd_per_hour(market)
        return None if price is None else price / self.count


def offers(
    accelerator: str | None = None,
    *,
    cloud: str | None = None,
    region: str | None = None,
    market: Market | None = None,
    latest: bool = True,
) -> tuple[Offer, ...]:
    """Offers of the bundled snapshot, narrowed down; `latest` drops older snapshots of the same offer.

    >>> sorted({offer.cloud for offer in offers("L40S", market=Market.SPOT)})
    ['crusoe']
    """
    name = None if accelerator is None else get(accelerator).name
    found = tuple(
        offer
        for offer in snapshot()
        if name in (None, offer.accelerator)
        and cloud in (None, offer.cloud)
        and (offer.region == "all" or region in (None, offer.region))
        and (market is None or offer.usd_per_hour(market) is not None)
    )
    return _latest(found) if latest else found


@cache
def snapshot() -> tuple[Offer, ...]:
    """Every bundled offer, older snapshots included."""
    return read_table("prices.csv", _offer)


def read_offers(text: str, file: str) -> tuple[Offer, ...]:
    """Offers of a CSV in the layout of `prices.csv` (a contract, a newer snapshot), checked the same way."""
    return read_rows(text, file, _offer)


def as_of_key(text: str) -> tuple[int, int, int]:
    """Year, month and day of a date text, the latest that it names; unknown parts are 0.

    >>> as_of_key("2026-08-20"), as_of_key("2024-2025 (v6 catalog)"), as_of_key("undated")
    ((2026, 8, 20), (2025, 0, 0), (0, 0, 0))
    """
    dates = re.findall(r"(20\d\d)(?:-(0[1-9]|1[0-2])(?!\d)(?:-(\d\d))?)?", text)
    return max(((int(y), int(m or 0), int(d or 0)) for y, m, d in dates), default=(0, 0, 0))


def _latest(found: tuple[Offer, ...]) -> tuple[Offer, ...]:
    newest: dict[tuple[str, str, str], Offer] = {}
    for offer in found:
        key = (offer.cloud, offer.instance_type + offer.accelerator, offer.region)
        if key not in newest or as_of_key(offer.provenance.as_of) >= as_of_key(newest[key].provenance.as_of):
            newest[key] = offer
    return tuple(newest.values())


def _offer(row: Row) -> Offer:
    count = int(row.positive("count"))
    on_demand = row.positive_or_none("ondemand_usd_h")
    spot, spot_min = row.positive_or_none("spot_usd_h_median_az"), row.positive_or_none("spot_usd_h_min_az")
    reserved = {years: row.positive_or_none(f"reserved_{years}y_usd_h") for years in (1, 3)}
    _check_prices(row, count, on_demand, spot, spot_min)
    network, ram, disk = (row.number_or_none(name) for name in ("network_gbit_s", "ram_gib", "local_nvme_gb"))
    vcpus = row.number_or_none("vcpu")
    return Offer(
        cloud=row.text("cloud"),
        instance_type=row.text("instance_type"),
        accelerator=get(row.text("accelerator")).name,
        count=count,
        region=row.text("region"),
        on_demand_usd_per_hour=on_demand,
        spot_usd_per_hour=spot,
        spot_min_usd_per_hour=spot_min,
        reserved_1y_usd_per_hour=reserved[1],
        reserved_3y_usd_per_hour=reserved[3],
        vcpus=None if vcpus is None else int(vcpus),
        host_memory_bytes=None if ram is None else ram * GIB,
        network_bytes_per_second=None if network is None else network * GB / BITS_PER_BYTE,
        local_disk_bytes=None if disk is None else disk * GB,
        note=row.optional_text("note"),
        provenance=row.provenance(),
    )


def _check_prices(row: Row, count: int, on_demand: float | None, spot: float | None, spot_min: float | None) -> None:
    per_accelerator = row.positive_or_none("ondemand_usd_per_acc_h")
    if on_demand is None and spot is None:
        raise row.problem("ondemand_usd_h", "neither an on-demand nor a spot price")
    if on_demand is not None and spot is not None and spot > on_demand:
        raise row.problem("spot_usd_h_median_az", f"spot {spot} is above on-demand {on_demand}")
    if spot is not None and spot_min is not None and spot_min > spot * 1.0001:
        raise row.problem("spot_usd_h_min_az", f"the cheapest zone {spot_min} is above the median {spot}")
    if on_demand is not None and per_accelerator is not None:
        expected = on_demand / count
        if abs(expected - per_accelerator) > 0.001 * expected + 0.0001:
            raise row.problem(
                "ondemand_usd_per_acc_h", f"{per_accelerator} is not {on_demand} over {count} accelerators"
            )
