"""Check of a FOCUS dataset: the rules of the specification that a row alone can break. Pure, for any producer."""

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from charter.errors import needing
from charter.ledger.focus import Cell, Row, column_order
from charter.ledger.focus_columns import BY_NAME, COLUMNS, DEFAULT_VERSION, SUBCATEGORIES, Column, Version, version_of

NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?(E-?[0-9]+)?")
MOMENT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")
UNIT = re.compile(r"([0-9]+ )?[A-Z][A-Za-z]*(-[A-Z][A-Za-z]*)?(/([0-9]+ )?[A-Z][a-z]+)?")
CURRENCY = re.compile(r"[A-Z]{3}")
MOST = 100
"""Findings that are told; a broken exporter breaks every row."""
PRODUCTS = (("ListUnitPrice", "ListCost"), ("ContractedUnitPrice", "ContractedCost"))
TOGETHER = (
    ("PricingQuantity", "PricingUnit"),
    ("ConsumedQuantity", "ConsumedUnit"),
    ("ResourceId", "ResourceType"),
    ("SubAccountId", "SubAccountType"),
    ("SkuId", "SkuPriceId"),
)
"""Pairs of which both or none are null (for usage)."""


@dataclass(frozen=True, kw_only=True)
class FocusFinding:
    """One broken rule."""

    row: int
    """1 for the first row under the header; 0 for the header."""
    column: str
    message: str

    def __str__(self) -> str:
        return f"{'header' if not self.row else f'row {self.row}'}: {self.column}: {self.message}"


def check_focus(
    columns: Iterable[str], rows: Iterable[Mapping[str, str | None]], version: Version | None = None
) -> tuple[FocusFinding, ...]:
    """Check a dataset whose cells are texts, empty or None for null, and return its first 100 faults.

    Without a version it is held to the one whose columns it has.
    """
    names = list(columns)
    version = version or version_of(names)
    findings: list[FocusFinding] = []
    for finding in _header(names, version):
        findings.append(finding)
    for number, row in enumerate(rows, start=1):
        cells = {name: value for name in names if (value := row.get(name)) not in (None, "")}
        for column, message in _row(names, cells, version):
            findings.append(FocusFinding(row=number, column=column, message=message))
            if len(findings) >= MOST:
                return tuple(findings)
    return tuple(findings)


def _header(names: list[str], version: Version) -> Iterator[FocusFinding]:
    standard = {column.name for column in COLUMNS[version]}
    for column in COLUMNS[version]:
        if column.level == "Mandatory" and column.name not in names:
            yield FocusFinding(row=0, column=column.name, message="is mandatory and not there")
    for name in names:
        if names.count(name) > 1:
            yield FocusFinding(row=0, column=name, message="is there more than once")
        if name not in standard and not name.startswith("x_"):
            what = f"is no column that Charter knows of FOCUS {version}, and has no x_"
            yield FocusFinding(row=0, column=name, message=what)
    own = [name.startswith("x_") for name in names]
    if own != sorted(own):
        yield FocusFinding(row=0, column=names[own.index(True)], message="own columns stand after those of FOCUS")


def _row(names: list[str], cells: Mapping[str, str | None], version: Version) -> Iterator[tuple[str, str]]:
    for column in COLUMNS[version]:
        if column.name not in names:
            continue
        value = cells.get(column.name)
        if value is None:
            if not column.nullable:
                yield column.name, "must not be null"
        elif message := _wrong(column, value):
            yield column.name, message
    yield from _relations(names, cells)


def _wrong(column: Column, value: str) -> str | None:
    if column.allowed and value not in column.allowed:
        return f"{value!r} is not one of {', '.join(column.allowed)}"
    match column.type:
        case "Decimal":
            if not NUMBER.fullmatch(value):
                return f"{value!r} is no number as FOCUS writes one"
            if column.least is not None and Decimal(value) < Decimal(str(column.least)):
                return f"{value} is below {column.least:g}"
        case "DateTime":
            return None if _is_moment(value) else f"{value!r} is not a UTC moment as in 2026-07-01T00:00:00Z"
        case "Unit":
            return None if UNIT.fullmatch(value) else f"{value!r} is no unit as FOCUS writes one (GB-Hours, Tokens)"
        case "Currency":
            return None if CURRENCY.fullmatch(value) else f"{value!r} is no ISO 4217 code"
        case "Json":
            return None if _is_object(value) else "is no JSON object of plain values"
        case "JsonObject":
            return None if _has_elements(value) else 'is no JSON object with a list of objects under "Elements"'
        case "String":
            return "has spaces around it" if value != value.strip() else None
    return None


def _relations(names: list[str], cells: Mapping[str, str | None]) -> Iterator[tuple[str, str]]:
    for start, end in (("ChargePeriodStart", "ChargePeriodEnd"), ("BillingPeriodStart", "BillingPeriodEnd")):
        first, last = cells.get(start), cells.get(end)
        if first and last and first > last:
            yield end, f"{last} is before {start} {first}"
    begin, of_month = cells.get("ChargePeriodStart"), cells.get("BillingPeriodStart")
    if begin and of_month and not of_month <= begin < (cells.get("BillingPeriodEnd") or "9"):
        yield "BillingPeriodStart", f"the charge of {begin} lies outside of it"
    if cells.get("ChargeCategory") == "Usage" and cells.get("ChargeClass") != "Correction":
        for name in ("PricingQuantity", "PricingCategory", "ConsumedQuantity", "ListUnitPrice", "SkuId", "SkuPriceId"):
            if name in names and cells.get(name) is None:
                yield name, "must not be null for usage"
        yield from _products(cells)
    for one, other in TOGETHER:
        if one in names and other in names and (cells.get(one) is None) != (cells.get(other) is None):
            yield other, f"must be null exactly when {one} is"
    category, sub = cells.get("ServiceCategory"), cells.get("ServiceSubcategory")
    if category in SUBCATEGORIES and sub is not None and sub not in SUBCATEGORIES[category]:
        yield "ServiceSubcategory", f"{sub!r} is not a part of {category!r}"


def _products(cells: Mapping[str, str | None]) -> Iterator[tuple[str, str]]:
    quantity = _decimal(cells.get("PricingQuantity"))
    for unit_price, cost in PRODUCTS:
        price, total = _decimal(cells.get(unit_price)), _decimal(cells.get(cost))
        if quantity is not None and price is not None and total is not None and quantity * price != total:
            yield cost, f"{total} is not {unit_price} x PricingQuantity = {quantity * price}"


def _decimal(value: str | None) -> Decimal | None:
    try:
        return None if value is None else Decimal(value)
    except InvalidOperation:
        return None


def _is_moment(value: str) -> bool:
    if not MOMENT.fullmatch(value):
        return False
    try:
        datetime.fromisoformat(value.replace("Z", "+00:00"))
    except ValueError:
        return False
    return True


def _is_object(value: str) -> bool:
    try:
        content = json.loads(value)
    except ValueError:
        return False
    return isinstance(content, dict) and all(not isinstance(item, dict | list) for item in content.values())


def _has_elements(value: str) -> bool:
    try:
        content = json.loads(value)
    except ValueError:
        return False
    elements = content.get("Elements") if isinstance(content, dict) else None
    return isinstance(elements, list) and all(isinstance(item, dict) for item in elements)


DECIMAL_DIGITS, DECIMAL_SCALE = 38, 15
"""Of decimals in Parquet (decimal128): up to 10^23 USD, to the femto-USD."""
FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\r")
"""Spreadsheet programs run a text that begins with one of them."""


def to_csv(rows: Sequence[Row], version: Version = DEFAULT_VERSION) -> str:
    """Rows as CSV text with a header; nulls are empty."""
    columns = column_order(rows, version)
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=columns, restval="", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: cell_text(row.get(name)) for name in columns})
    return text.getvalue()


def cell_text(value: Cell) -> str:
    """A cell as FOCUS writes it: plain decimals, no plus sign, nothing that a spreadsheet would run.

    >>> cell_text(Decimal("1E-7")), cell_text(Decimal("2.500000")), cell_text("=1+1")
    ('0.0000001', '2.500000', "'=1+1")
    """
    if value is None:
        return ""
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, str) and value.startswith(FORMULA_SIGNS):
        return f"'{value}"
    return str(value)


def to_parquet(rows: Sequence[Row], version: Version = DEFAULT_VERSION) -> bytes:
    """Rows as a Parquet file: costs, prices and quantities as decimals, moments as UTC timestamps."""
    with needing("FOCUS as Parquet needs pyarrow", "data", otherwise="; .csv needs nothing"):
        import pyarrow as pa
        from pyarrow import parquet
    columns = column_order(rows, version)
    fields = [pa.field(name, _type(pa, name, rows)) for name in columns]
    arrays = [pa.array([_value(field.type, row.get(field.name), pa) for row in rows], field.type) for field in fields]
    table = pa.Table.from_arrays(arrays, schema=pa.schema(fields, metadata={"FocusVersion": version}))
    out = io.BytesIO()
    parquet.write_table(table, out)
    return out.getvalue()


def _type(pa: Any, name: str, rows: Sequence[Row]) -> Any:
    column = BY_NAME.get(name)
    decimal = pa.decimal128(DECIMAL_DIGITS, DECIMAL_SCALE)
    if column is not None:
        return {"Decimal": decimal, "DateTime": pa.timestamp("ms", tz="UTC")}.get(column.type, pa.string())
    values = [value for row in rows if (value := row.get(name)) is not None]
    if values and all(isinstance(value, Decimal) for value in values):
        return decimal
    return pa.int64() if values and all(isinstance(value, int) for value in values) else pa.string()


def _value(type_: Any, value: Cell, pa: Any) -> Any:
    if value is None:
        return None
    if pa.types.is_decimal(type_):
        return Decimal(value).quantize(Decimal(1).scaleb(-DECIMAL_SCALE))
    if pa.types.is_timestamp(type_):
        from datetime import datetime

        return datetime.fromisoformat(str(value).replace("Z", "+00:00"))
    return value if pa.types.is_integer(type_) else str(value)
