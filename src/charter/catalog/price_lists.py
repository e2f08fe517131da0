"""Price lists: where they lie, how they differ, how they are written."""

import csv
import io
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from io import StringIO
from pathlib import Path
from statistics import median
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from charter.catalog.accelerators import closest, get
from charter.catalog.offer import Market, Offer, earliest_day
from charter.catalog.price_book import PriceBook
from charter.catalog.price_import import Checked, PriceFormat, read_prices
from charter.catalog.price_row import Import, PriceRow
from charter.errors import UsageError, loads_json

FETCH_SECONDS = 60.0
LARGEST_LIST = 64 << 20
"""Bytes of a list: SkyPilot's of a large cloud has some ten million."""


@dataclass(frozen=True, kw_only=True)
class PriceListText:
    """One list as text, and whose prices it has."""

    source: str
    """As the user wrote it, or the file below a directory that the user wrote."""
    text: str
    cloud: str

    @property
    def file(self) -> str:
        """Last part of the source, which the imported rows name as theirs."""
        return urlsplit(self.source).path.rstrip("/").rpartition("/")[2] or self.source

    def checked(self, *, layout: str | None = None, as_of: str = "", today: date) -> Checked:
        """Return its rows with everything that the rules say about them."""
        formats = [item.value for item in PriceFormat]
        if layout is not None and layout not in formats:
            raise UsageError(
                f"--format {layout} is unknown{closest(layout, formats)}; it is one of {', '.join(formats)}"
            )
        if as_of and earliest_day(as_of) is None:
            raise UsageError(f"--as-of {as_of} names no date; write it like 2026-08-20")
        about = Import(file=self.file, imported_on=today, cloud=self.cloud, as_of=as_of)
        return read_prices(self.text, about, layout=PriceFormat(layout) if layout else None, today=today)


def list_in(path: Path, *, cloud: str = "") -> PriceListText:
    """Read one list from disk; UsageError where there is no text."""
    if not path.is_file():
        raise UsageError(f"there is no file {path}")
    with path.open("rb") as file:
        body = _whole(str(path), file.read(LARGEST_LIST + 1))
    return PriceListText(source=str(path), text=_text(str(path), body), cloud=cloud)


def lists_at(sources: Sequence[str], *, cloud: str) -> Iterator[PriceListText]:
    """Read each list; a directory of SkyPilot's catalog has one for each cloud (`aws/vms.csv`)."""
    for source in sources:
        path = Path(source)
        if urlsplit(source).scheme in ("http", "https"):
            yield _fetched(source, cloud)
        elif path.is_dir():
            yield from _catalog(path)
        else:
            yield list_in(path, cloud=cloud)


def only(checked: Checked, accelerators: Collection[str]) -> Checked:
    """Return the rows of some accelerators, of all where none is named; what is left out is counted."""
    if not accelerators:
        return checked
    names = {get(name).name for name in accelerators}
    rows = tuple(row for row in checked.rows if row.accelerator in names)
    lines = {row.number for row in rows} | {0}
    read = {row.number for row in checked.rows}
    findings = tuple(finding for finding in checked.findings if finding.row in lines or finding.row not in read)
    left_out = {**checked.left_out, "other accelerators than asked for": len(checked.rows) - len(rows)}
    return replace(checked, rows=rows, findings=findings, left_out=left_out)


def _catalog(directory: Path) -> Iterator[PriceListText]:
    files = sorted(directory.glob("*/vms.csv"))
    if not files:
        raise UsageError(f"{directory} holds no CLOUD/vms.csv; give the directory of one version of SkyPilot's catalog")
    for file in files:
        yield list_in(file, cloud=file.parent.name)


def _fetched(address: str, cloud: str) -> PriceListText:
    try:
        with urlopen(Request(address, headers={"User-Agent": "charter"}), timeout=FETCH_SECONDS) as answer:
            body = answer.read(LARGEST_LIST + 1)
            is_json = "json" in answer.headers.get("Content-Type", "") or urlsplit(address).path.endswith(".json")
    except (URLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise UsageError(f"{address} cannot be read: {reason}") from None
    _whole(address, body)
    return PriceListText(source=address, text=_as_csv(address, body) if is_json else _text(address, body), cloud=cloud)


def _whole(source: str, body: bytes) -> bytes:
    if len(body) > LARGEST_LIST:
        raise UsageError(f"{source} is longer than {LARGEST_LIST >> 20} MiB; that is no price list")
    return body


def _text(source: str, body: bytes) -> str:
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{source} is not UTF-8 text: {error}") from None


def _as_csv(address: str, body: bytes) -> str:
    """Return a JSON array of flat objects as CSV with all their names as columns."""
    try:
        rows = loads_json(body)
    except ValueError as error:
        raise UsageError(f"{address} is not JSON: {error}") from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UsageError(f"{address} is no array of objects; a price list has one object for each offer")
    columns = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, columns)
    writer.writeheader()
    writer.writerows({name: "" if value is None else value for name, value in row.items()} for row in rows)
    return out.getvalue()


SAME_PRICE = 5e-5
"""USD per hour below which two prices are one: they are written with that precision."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """One price that is not what it was."""

    old: Offer
    new: Offer
    market: Market

    @property
    def old_usd_per_hour(self) -> float | None:
        """Price of the instance in the first book, None if it was not offered."""
        return self.old.usd_per_hour(self.market)

    @property
    def new_usd_per_hour(self) -> float | None:
        """Price of the instance in the second book, None if it is not offered."""
        return self.new.usd_per_hour(self.market)

    @property
    def ratio(self) -> float | None:
        """New over old; None where one of them is not offered: null is not zero."""
        old, new = self.old_usd_per_hour, self.new_usd_per_hour
        return None if old is None or new is None else new / old


@dataclass(frozen=True, kw_only=True)
class PriceBookDifference:
    """Two books side by side."""

    changed: tuple[Change, ...]
    unchanged: int
    """Prices of offers in both books that are equal."""
    only_in_old: tuple[Offer, ...]
    only_in_new: tuple[Offer, ...]


def difference(old: PriceBook, new: PriceBook) -> PriceBookDifference:
    """Compare the latest offers of two books, market by market.

    >>> difference(PriceBook.bundled(), PriceBook.bundled()).changed
    ()
    """
    first = {offer.key: offer for offer in old.offers()}
    second = {offer.key: offer for offer in new.offers()}
    changes = [
        Change(old=first[key], new=second[key], market=market)
        for key in first
        if key in second
        for market in Market
        if (first[key].usd_per_hour(market), second[key].usd_per_hour(market)) != (None, None)
    ]
    changed = tuple(change for change in changes if not _same(change))
    return PriceBookDifference(
        changed=tuple(sorted(changed, key=lambda change: (change.old.accelerator, change.old.key, change.market))),
        unchanged=len(changes) - len(changed),
        only_in_old=tuple(offer for key, offer in first.items() if key not in second),
        only_in_new=tuple(offer for key, offer in second.items() if key not in first),
    )


def _same(change: Change) -> bool:
    old, new = change.old_usd_per_hour, change.new_usd_per_hour
    return old is not None and new is not None and abs(new - old) < SAME_PRICE


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
                *(row.cloud, row.instance_type, row.accelerator, _cell(row.count), _cell(row.vcpus)),
                *(_cell(row.ram_gib), row.region, _cell(row.on_demand), _cell(each), _cell(spot_min), _cell(row.spot)),
                *(_cell(row.spot_zones_at_on_demand), _cell(row.reserved_1y), _cell(row.reserved_3y)),
                *(_cell(row.network_gbit_per_second), _cell(row.local_disk_gb), row.as_of, row.confidence),
                *(row.source, row.note, row.valid_from, row.valid_until),
            )
        )
    return out.getvalue()


def _cell(value: float | None) -> str:
    """A number without trailing zeros; empty for None."""
    if value is None:
        return ""
    return f"{value:.6f}".rstrip("0").rstrip(".")
