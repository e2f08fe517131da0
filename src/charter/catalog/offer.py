"""One rental offer: an instance type of a cloud in a region, with its dated prices by market.

Live prices cannot be read from here; every row is a snapshot with its date, and prices go up as well as down.
A missing price is None ("null is not zero"): such a market is not offered. A row that contradicts itself is refused.
"""

import re
from dataclasses import dataclass
from datetime import date
from enum import StrEnum

from charter.catalog.accelerators import get
from charter.catalog.rows import Provenance, TableRow, read_rows
from charter.units import GB, GIB

BITS_PER_BYTE = 8
PER_ACCELERATOR = re.compile(r"\bper (chip|GPU)$")
"""In an instance type: a price of one accelerator, by which machines of any size are billed."""
PART_ONLY = "(GPU part only)"
"""In an instance type: the price covers the accelerators, the host is billed apart."""
CONTRACT = "contract"
"""The confidence of a price that the user agreed with a provider."""
ALL_REGIONS = "all"


class Market(StrEnum):
    """Market on which an instance is bought."""

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
    spot_zones_at_on_demand: int | None = None
    """Zones whose spot price was the on-demand price: no spot offer, and not in the median. None if unknown."""
    valid_from: str = ""
    valid_until: str = ""
    """First and last day of a contract, `2026-12-31`; empty where there is no such limit."""

    @property
    def whole_machine(self) -> bool:
        """False where the price covers the accelerators only and the host is billed apart."""
        return PART_ONLY not in self.instance_type

    @property
    def scales(self) -> bool:
        """Return True if the price is that of one accelerator of a machine, and not of a machine with one.

        >>> Offer.__dict__["scales"].fget(type("Row", (), {"instance_type": "tpu-v5p per chip"}))
        True
        """
        return PER_ACCELERATOR.search(self.instance_type) is not None

    @property
    def is_contract(self) -> bool:
        """Return True if the user agreed this price with the provider."""
        return self.provenance.confidence.startswith(CONTRACT)

    @property
    def is_estimate(self) -> bool:
        """Return True if the source itself calls the price an estimate, or made it from a ratio."""
        return names_estimate(f"{self.note} {self.provenance.confidence}")

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Key shared by all snapshots of one offer: cloud, instance type, accelerator, region."""
        return self.cloud, self.instance_type, self.accelerator, self.region

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

    def is_stale(self, today: date, days: int) -> bool:
        """Return True if the price may be older than `days`; a contract is stale once it has ended.

        >>> read_offers(_EXAMPLE, "mine.csv")[0].is_stale(date(2026, 8, 30), 60)
        False
        """
        if self.is_contract:
            ends = earliest_day(self.valid_until)
            return ends is not None and ends < today
        age = age_days(self.provenance.as_of, today)
        return age is None or age > days


def names_estimate(text: str) -> bool:
    """Return True if a note says that a price was estimated or derived from a ratio.

    >>> names_estimate("source says ESTIMATED, not published"), names_estimate("flat price, all regions")
    (True, False)
    """
    return re.search(r"estimat|\bratio\b", text, flags=re.IGNORECASE) is not None


def as_of_key(text: str) -> tuple[int, int, int]:
    """Year, month and day of a date text, the latest that it names; unknown parts are 0.

    >>> as_of_key("2026-08-20"), as_of_key("2024-2025 (v6 catalog)"), as_of_key("undated")
    ((2026, 8, 20), (2025, 0, 0), (0, 0, 0))
    """
    dates = re.findall(r"(20\d\d)(?:-(0[1-9]|1[0-2])(?!\d)(?:-(\d\d))?)?", text)
    return max(((int(y), int(m or 0), int(d or 0)) for y, m, d in dates), default=(0, 0, 0))


def earliest_day(as_of: str) -> date | None:
    """The first day that a date text may mean, None if it names none: a year alone may be its first of January.

    >>> earliest_day("2026-08-20"), earliest_day("2026 (inferred)"), earliest_day("undated")
    (datetime.date(2026, 8, 20), datetime.date(2026, 1, 1), None)
    """
    year, month, day = as_of_key(as_of)
    try:
        return date(year, month or 1, day or 1)
    except ValueError:
        return None


def age_days(as_of: str, today: date) -> int | None:
    """Return the days since a date text, at the most that it may mean; None where it names no date.

    >>> [age_days(text, date(2026, 8, 30)) for text in ("2026-08-20", "2026 (inferred)", "undated")]
    [10, 241, None]
    """
    day = earliest_day(as_of)
    return None if day is None else (today - day).days


def read_offers(text: str, file: str) -> tuple[Offer, ...]:
    """Offers of a CSV in the layout of `prices.csv`; the first row that contradicts itself stops with its place."""
    return read_rows(text, file, offer_of_row)


def offer_of_row(row: TableRow) -> Offer:
    """The offer of a row in the layout of `prices.csv`."""
    count = int(row.positive("count"))
    prices = {market: row.positive_or_none(column) for market, column in PRICE_COLUMNS.items()}
    spot_min = row.positive_or_none("spot_usd_h_min_az")
    _check_prices(row, count, prices, spot_min)
    network, ram, disk = (row.number_or_none(name) for name in ("network_gbit_s", "ram_gib", "local_nvme_gb"))
    vcpus, capped = row.number_or_none("vcpu"), row.number_or_none("spot_azs_capped_at_ondemand")
    return Offer(
        cloud=row.text("cloud"),
        instance_type=row.text("instance_type"),
        accelerator=get(row.text("accelerator")).name,
        count=count,
        region=row.text("region"),
        on_demand_usd_per_hour=prices[Market.ON_DEMAND],
        spot_usd_per_hour=prices[Market.SPOT],
        spot_min_usd_per_hour=spot_min,
        reserved_1y_usd_per_hour=prices[Market.RESERVED_1Y],
        reserved_3y_usd_per_hour=prices[Market.RESERVED_3Y],
        vcpus=None if vcpus is None else int(vcpus),
        host_memory_bytes=None if ram is None else ram * GIB,
        network_bytes_per_second=None if network is None else network * GB / BITS_PER_BYTE,
        local_disk_bytes=None if disk is None else disk * GB,
        note=row.optional_text("note"),
        provenance=row.provenance(),
        spot_zones_at_on_demand=None if capped is None else int(capped),
        valid_from=row.optional_text("valid_from"),
        valid_until=row.optional_text("valid_until"),
    )


PRICE_COLUMNS = {
    Market.ON_DEMAND: "ondemand_usd_h",
    Market.SPOT: "spot_usd_h_median_az",
    Market.RESERVED_1Y: "reserved_1y_usd_h",
    Market.RESERVED_3Y: "reserved_3y_usd_h",
}


def arithmetic_holds(usd_per_hour: float, count: float, usd_per_accelerator_hour: float) -> bool:
    """Return True if a price per accelerator is the instance's price by its accelerators, to 0.1 % and 0.01 cent.

    >>> arithmetic_holds(55.04, 8, 6.88), arithmetic_holds(55.04, 8, 55.04)
    (True, False)
    """
    expected = usd_per_hour / count
    return abs(expected - usd_per_accelerator_hour) <= 0.001 * expected + 0.0001


def _check_prices(row: TableRow, count: int, prices: dict[Market, float | None], spot_min: float | None) -> None:
    per_accelerator = row.positive_or_none("ondemand_usd_per_acc_h")
    on_demand, spot = prices[Market.ON_DEMAND], prices[Market.SPOT]
    if all(price is None for price in prices.values()):
        raise row.problem("ondemand_usd_h", "neither an on-demand nor a spot nor a reserved price")
    if on_demand is not None and spot is not None and spot > on_demand:
        raise row.problem("spot_usd_h_median_az", f"spot {spot} is above on-demand {on_demand}")
    if spot is not None and spot_min is not None and spot_min > spot * 1.0001:
        raise row.problem("spot_usd_h_min_az", f"the cheapest zone {spot_min} is above the median {spot}")
    printed = None if on_demand is None else per_accelerator
    if on_demand is not None and printed is not None and not arithmetic_holds(on_demand, count, printed):
        raise row.problem("ondemand_usd_per_acc_h", f"{printed} is not {on_demand} over {count} accelerators")


_EXAMPLE = """cloud,instance_type,accelerator,count,region,ondemand_usd_h,as_of,confidence,source
aws,p5.48xlarge,H100,8,us-east-1,55.04,2026-08-20,seen,a price list
"""
