"""Bills of providers as files: FOCUS, AWS Cost and Usage Reports, and simple CSV with a few columns."""

import csv
import hashlib
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path

from charter.errors import DataError, UsageError
from charter.ledger.bill import BillLine

Format = str
SECONDS_OF_UNITS = {"second": 1, "sec": 1, "s": 1, "minute": 60, "min": 60, "hour": 3600, "hr": 3600, "h": 3600,
                    "day": 86_400}  # fmt: skip
FOCUS = {
    "cost": ("BilledCost",), "start": ("ChargePeriodStart",), "end": ("ChargePeriodEnd",),
    "quantity": ("PricingQuantity", "ConsumedQuantity"), "unit": ("PricingUnit", "ConsumedUnit"),
    "price": ("ContractedUnitPrice", "ListUnitPrice"), "resource": ("ResourceName", "ResourceId"), "sku": ("SkuId",),
    "text": ("ChargeDescription",), "tags": ("Tags",), "currency": ("BillingCurrency",),
}  # fmt: skip
CUR = {
    "cost": ("lineItem/UnblendedCost", "line_item_unblended_cost"),
    "start": ("lineItem/UsageStartDate", "line_item_usage_start_date"),
    "end": ("lineItem/UsageEndDate", "line_item_usage_end_date"),
    "quantity": ("lineItem/UsageAmount", "line_item_usage_amount"),
    "unit": ("pricing/unit", "pricing_unit"),
    "price": ("lineItem/UnblendedRate", "line_item_unblended_rate"),
    "resource": ("lineItem/ResourceId", "line_item_resource_id"),
    "sku": ("lineItem/UsageType", "line_item_usage_type"),
    "text": ("lineItem/LineItemDescription", "line_item_line_item_description"),
    "currency": ("lineItem/CurrencyCode", "line_item_currency_code"),
}
"""Names of the legacy report, and of CUR 2.0 (AWS Data Exports, table CUR2.0)."""
SIMPLE = {
    "cost": ("cost_usd", "cost", "amount", "usd", "total"),
    "start": ("start", "started_at", "start_time"),
    "end": ("end", "ended_at", "end_time"),
    "quantity": ("quantity", "hours", "seconds", "gpu_hours"),
    "unit": ("unit",),
    "price": ("price", "unit_price", "rate"),
    "resource": ("resource", "instance", "machine", "node", "job", "job_id"),
    "sku": ("sku", "type", "instance_type"),
    "text": ("description",),
    "currency": ("currency",),
}
TAG_PREFIXES = ("resourceTags/user:", "resource_tags_user_", "tag:", "tag_")


@dataclass(frozen=True, kw_only=True)
class Bill:
    """A bill that was read."""

    name: str
    format: Format
    sha256: str
    lines: tuple[BillLine, ...]
    currency: str = "USD"

    @property
    def usd(self) -> Decimal:
        """All its lines."""
        return sum((line.usd for line in self.lines), Decimal(0))


def read_bill(path: Path) -> Bill:
    """Read a bill; UsageError or DataError name the line that cannot be read and what it should hold."""
    if not path.is_file():
        raise UsageError(f"there is no file {path}; give the provider's bill as CSV")
    content = path.read_bytes()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text ({error}); export the bill as CSV") from None
    reader = csv.DictReader(io.StringIO(text, newline=""))
    header = [name for name in reader.fieldnames or () if name]
    format_, columns = _format(path, header)
    lines = tuple(_lines(path, reader, columns))
    if not lines:
        raise DataError(f"{path} has a header and no line under it")
    return Bill(name=path.name, format=format_, sha256=hashlib.sha256(content).hexdigest(), lines=lines)


def _format(path: Path, header: Sequence[str]) -> tuple[Format, dict[str, str]]:
    lowered = {name.lower(): name for name in header}
    for name, known in (("FOCUS", FOCUS), ("AWS CUR", CUR), ("CSV", SIMPLE)):
        found = {part: lowered[alias.lower()] for part, aliases in known.items() for alias in reversed(aliases)
                 if alias.lower() in lowered}  # fmt: skip
        if "cost" in found and ("start" in found or name == "CSV") and ("resource" in found or name != "CSV"):
            return name, found
    raise DataError(
        f"{path} is no bill that Charter can read: its columns are {', '.join(header[:12])}\n"
        "  it reads FOCUS (BilledCost, ChargePeriodStart, ...), AWS Cost and Usage Reports, and CSV with cost_usd, "
        "resource (a machine or a job), and start, end, hours or seconds, price where there are any"
    )


def _lines(path: Path, reader: "csv.DictReader[str]", columns: Mapping[str, str]) -> Iterator[BillLine]:
    for row in reader:
        where = f"{path}:{reader.line_num}"
        if None in row:
            raise DataError(f"{where}: has more cells than the header")
        cells = {part: (row.get(name) or "").strip() for part, name in columns.items()}
        currency = cells.get("currency") or "USD"
        if currency.upper() != "USD":
            raise DataError(f"{where}: is in {currency}; the ledger is in USD, and no rate is assumed")
        cost = _decimal(where, columns["cost"], cells["cost"])
        quantity = _decimal(where, columns["quantity"], cells["quantity"]) if cells.get("quantity") else None
        start, end = (_moment(where, cells.get(part, "")) for part in ("start", "end"))
        yield BillLine(
            line=reader.line_num,
            started_at=start,
            ended_at=end,
            seconds=_seconds(quantity, cells.get("unit", ""), columns.get("quantity", ""), start, end),
            unit_price_usd=_decimal(where, columns["price"], cells["price"]) if cells.get("price") else None,
            usd=cost,
            resource=_plain(cells.get("resource", "")),
            sku=cells.get("sku", ""),
            text=cells.get("text", ""),
            tags=_tags(where, row, cells.get("tags", "")),
        )


def _decimal(where: str, column: str, text: str) -> Decimal:
    try:
        value = Decimal(text.replace("$", "").replace(",", "") or "0")
    except InvalidOperation:
        raise DataError(f"{where}: {column} {text!r} is no number") from None
    if not value.is_finite():
        raise DataError(f"{where}: {column} {text!r} is no finite number")
    return value


def _moment(where: str, text: str) -> float | None:
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        raise DataError(f"{where}: {text!r} is no moment; write 2026-07-01T00:00:00Z") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _seconds(
    quantity: Decimal | None, unit: str, column: str, start: float | None, end: float | None
) -> Decimal | None:
    """Billed unit-seconds: the quantity in its unit, or the period where there is no quantity."""
    if quantity is None:
        return None if start is None or end is None else Decimal(round((end - start) * 1000)).scaleb(-3)
    name = (unit or column).lower().rpartition("_")[2].rpartition("-")[2].rpartition(" ")[2]
    factor = SECONDS_OF_UNITS.get(name) or SECONDS_OF_UNITS.get(name.removesuffix("s"))
    return None if factor is None else quantity * factor


def _tags(where: str, row: Mapping[str, str], text: str) -> dict[str, str]:
    found = {name: value for name, value in row.items() if name and name.startswith("x_") and value}
    for prefix in TAG_PREFIXES:
        found |= {name.removeprefix(prefix): value for name, value in row.items() if name.startswith(prefix) and value}
    if text:
        try:
            content = json.loads(text)
        except ValueError:
            raise DataError(f"{where}: Tags is no JSON object") from None
        if not isinstance(content, dict):
            raise DataError(f"{where}: Tags is no JSON object")
        found |= {str(name): str(value) for name, value in content.items()}
    for name in ("run", "stage", "attempt", "job_id", "JobID"):
        if row.get(name):
            found.setdefault(name, row[name])
    return found


def _plain(text: str) -> str:
    """Without what `charter cost export` puts before a text that a spreadsheet would run."""
    return text[1:] if text.startswith("'") and text[1:2] in ("=", "+", "-", "@") else text
