"""Price lists where a user names them: a file, the address of a CSV or JSON list, a directory of SkyPilot's catalog."""

import csv
import io
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from charter.catalog.accelerators import get
from charter.catalog.aliases import closest
from charter.catalog.offer import earliest_day
from charter.catalog.price_import import Checked, PriceFormat, read_prices
from charter.catalog.price_row import Import
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
