"""Read the bundled tables; refuse a row that does not say where it comes from, from when, and how sure it is."""

import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from io import StringIO
from pathlib import Path
from typing import TypeVar

from charter.errors import CatalogError

DATA = Path(__file__).parent / "data"
PROVENANCE = ("source", "as_of", "confidence")
Made = TypeVar("Made")


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Origin of a fact: its source, the date it stands for, and how sure it is."""

    source: str
    as_of: str
    confidence: str

    @property
    def verified(self) -> bool:
        """False for a row from memory or of low confidence: it must stay visible to the user.

        >>> Provenance(source="data sheet", as_of="2026-11", confidence="M").verified
        False
        """
        doubtful = ("memory", "assumption", "derived", "analyst")
        return self.confidence not in ("M", "L") and not any(word in self.confidence for word in doubtful)


@dataclass(frozen=True, kw_only=True)
class TableRow:
    """One line of a table, with its place for error messages."""

    file: str
    number: int
    cells: Mapping[str, str]

    def problem(self, column: str, message: str) -> CatalogError:
        """The error that names file, row and column."""
        return CatalogError(f"{self.file}, row {self.number}, column {column}: {message}")

    def text(self, column: str) -> str:
        """A cell that must not be empty."""
        value = (self.cells.get(column) or "").strip()
        if not value:
            raise self.problem(column, "is empty; every row needs it")
        return value

    def optional_text(self, column: str) -> str:
        """A cell that may be empty."""
        return (self.cells.get(column) or "").strip()

    def number_or_none(self, column: str) -> float | None:
        """A number that is not negative, or None for an empty cell (null is not zero)."""
        raw = self.optional_text(column)
        if not raw:
            return None
        try:
            value = float(raw)
        except ValueError:
            raise self.problem(column, f"{raw!r} is not a number") from None
        if not 0 <= value < float("inf"):
            raise self.problem(column, f"{raw} is not a size, rate or price")
        return value

    def positive(self, column: str) -> float:
        """A number above zero."""
        value = self.number_or_none(column)
        if not value:
            raise self.problem(column, f"{self.optional_text(column) or 'nothing'!r} found; it must be above zero")
        return value

    def positive_or_none(self, column: str) -> float | None:
        """A number above zero, or None for an empty cell."""
        return self.positive(column) if self.optional_text(column) else None

    def provenance(self, source_column: str = "source") -> Provenance:
        """Source, date and confidence; refused when one is missing."""
        return Provenance(source=self.text(source_column), as_of=self.text("as_of"), confidence=self.text("confidence"))


def read_rows(text: str, file: str, make: Callable[[TableRow], Made]) -> tuple[Made, ...]:
    """Every line of a CSV text made into a value; the first line that cannot be stops with its place.

    >>> read_rows("name,size\\na,1\\n", "x.csv", lambda row: row.positive("size"))
    (1.0,)
    """
    lines = csv.DictReader(StringIO(text))
    rows = []
    for number, cells in enumerate(lines, start=2):
        if None in cells or None in cells.values():
            raise CatalogError(f"{file}, row {number}: has not as many columns as the header")
        rows.append(make(TableRow(file=file, number=number, cells=cells)))
    return tuple(rows)


def read_table(file: str, make: Callable[[TableRow], Made]) -> tuple[Made, ...]:
    """A bundled table."""
    return read_rows((DATA / file).read_text(encoding="utf-8"), file, make)


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
def storage_prices() -> tuple[StoragePrice, ...]:
    """Storage, request and transfer prices.

    >>> next(price.usd for price in storage_prices() if (price.provider, price.product) == ("aws", "S3"))
    0.023
    """
    return tuple(read_table("storage_prices.csv", _storage_price))


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
