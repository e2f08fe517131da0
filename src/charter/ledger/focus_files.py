"""FOCUS datasets as files: CSV with the standard library, Parquet with pyarrow."""

import csv
import io
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from charter.errors import MissingExtraError
from charter.ledger.focus_columns import BY_NAME
from charter.ledger.focus_rows import Cell, Row, column_order

DECIMAL_DIGITS, DECIMAL_SCALE = 38, 15
"""Of decimals in Parquet (decimal128): up to 10^23 USD, to the femto-USD."""
FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\r")
"""Spreadsheet programs run a text that begins with one of them."""


def to_csv(rows: Sequence[Row]) -> str:
    """Rows as CSV text with a header; nulls are empty."""
    columns = column_order(rows)
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=columns, restval="", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: cell_text(value) for name, value in row.items()})
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


def to_parquet(rows: Sequence[Row]) -> bytes:
    """Rows as a Parquet file: costs, prices and quantities as decimals, moments as UTC timestamps."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise MissingExtraError(
            'FOCUS as Parquet needs pyarrow; install it with: pip install "charter-plan[data]", or write .csv'
        ) from None
    columns = column_order(rows)
    fields = [pa.field(name, _type(pa, name, rows)) for name in columns]
    arrays = [pa.array([_value(field.type, row.get(field.name), pa) for row in rows], field.type) for field in fields]
    table = pa.Table.from_arrays(arrays, schema=pa.schema(fields, metadata={"FocusVersion": "1.2"}))
    out = io.BytesIO()
    parquet.write_table(table, out)
    return out.getvalue()


def _type(pa: Any, name: str, rows: Sequence[Row]) -> Any:
    known = BY_NAME.get(name)
    decimal = pa.decimal128(DECIMAL_DIGITS, DECIMAL_SCALE)
    if known is not None:
        return {"Decimal": decimal, "DateTime": pa.timestamp("ms", tz="UTC")}.get(known.type, pa.string())
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
