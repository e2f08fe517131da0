"""Rows of price lists written as a `prices.csv`: zones put together, prices rounded to a ten-thousandth cent."""

import csv
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from io import StringIO
from statistics import median

from charter.catalog.price_row import PriceRow

COLUMNS = (
    "cloud",
    "instance_type",
    "accelerator",
    "count",
    "vcpu",
    "ram_gib",
    "region",
    "ondemand_usd_h",
    "ondemand_usd_per_acc_h",
    "spot_usd_h_min_az",
    "spot_usd_h_median_az",
    "spot_azs_capped_at_ondemand",
    "reserved_1y_usd_h",
    "reserved_3y_usd_h",
    "network_gbit_s",
    "local_nvme_gb",
    "as_of",
    "confidence",
    "source",
    "note",
    "valid_from",
    "valid_until",
)


def by_region(rows: Iterable[PriceRow]) -> tuple[PriceRow, ...]:
    """One row for each machine and region out of one for each zone.

    On demand: the median zone. Spot: minimum and median over the zones whose spot price is their own; zones at the
    on-demand price are counted apart. Rows of other layouts, which have no zones, stay as they are.
    """
    groups: dict[tuple[object, ...], list[PriceRow]] = defaultdict(list)
    for row in rows:
        market = tuple(row.prices) if row.is_contract else ()
        groups[row.cloud, row.instance_type, row.accelerator, row.count, row.region, row.as_of, market].append(row)
    return tuple(_region(zones) for zones in groups.values())


def _region(zones: Sequence[PriceRow]) -> PriceRow:
    own = [row.spot for row in zones if row.spot is not None and row.has_own_spot]
    capped = sum(row.spot is not None and not row.has_own_spot for row in zones)
    on_demand = [row.on_demand for row in zones if row.on_demand is not None]
    first = zones[0]
    if len(zones) == 1 and first.spot_min is not None and first.has_own_spot:
        return first
    zone_cap = first.spot_zones_at_on_demand
    return replace(
        first,
        zone="",
        on_demand=median(on_demand) if on_demand else None,
        spot=median(own) if own else None,
        spot_min=min(own) if own else None,
        spot_zones_at_on_demand=float(capped) if capped or (zone_cap is None and own) else zone_cap,
    )


def merged(old: Iterable[PriceRow], new: Iterable[PriceRow]) -> tuple[PriceRow, ...]:
    """Old rows without those that a new one replaces (same offer; of contracts also the same market), then the new."""
    added = tuple(new)
    replaced = {_identity(row) for row in added}
    return (*(row for row in old if _identity(row) not in replaced), *added)


def _identity(row: PriceRow) -> tuple[object, ...]:
    market = (*row.prices, row.valid_from) if row.is_contract else ()
    return row.cloud, row.instance_type, row.accelerator, row.count, row.region, row.is_contract, market


def prices_csv(rows: Iterable[PriceRow]) -> str:
    """The text of a `prices.csv`."""
    out = StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        each = row.on_demand / row.count if row.on_demand is not None else None
        spot_min = row.spot_min if row.spot_min is not None else row.spot
        writer.writerow(
            (
                *(row.cloud, row.instance_type, row.accelerator, _text(row.count), _text(row.vcpus)),
                *(_text(row.ram_gib), row.region, _text(row.on_demand), _text(each), _text(spot_min), _text(row.spot)),
                *(_text(row.spot_zones_at_on_demand), _text(row.reserved_1y), _text(row.reserved_3y)),
                *(_text(row.network_gbit_per_second), _text(row.local_disk_gb), row.as_of, row.confidence),
                *(row.source, row.note, row.valid_from, row.valid_until),
            )
        )
    return out.getvalue()


def _text(value: float | None) -> str:
    """A number without trailing zeros; empty for None."""
    if value is None:
        return ""
    return f"{value:.6f}".rstrip("0").rstrip(".")
