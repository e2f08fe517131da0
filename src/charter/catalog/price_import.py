"""Read a price list in any layout that Charter knows, check it, and make it into rows of `prices.csv`.

Nothing is dropped in silence: what a layout leaves out by design is counted in `left_out`, and rows that fail a check
are findings of severity `error`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from enum import StrEnum

from charter.catalog.price_book import PriceBook
from charter.catalog.price_checks import check_rows
from charter.catalog.price_finding import Finding
from charter.catalog.price_import_contract import read_contract
from charter.catalog.price_import_gpuhunt import read_gpuhunt
from charter.catalog.price_import_own import read_own
from charter.catalog.price_import_skypilot import read_skypilot
from charter.catalog.price_outliers import reference_of
from charter.catalog.price_reading import Import, Reading
from charter.catalog.price_row import PriceRow, lines_of, read_lines
from charter.catalog.rows import Row
from charter.errors import UsageError


class PriceFormat(StrEnum):
    """A layout of price lists."""

    CHARTER = "charter"
    SKYPILOT = "skypilot"
    GPUHUNT = "gpuhunt"
    CONTRACT = "contract"


_NEEDED_COLUMNS: Mapping[PriceFormat, tuple[str, ...]] = {
    PriceFormat.CHARTER: ("cloud", "instance_type", "accelerator", "count", "region", "ondemand_usd_h"),
    PriceFormat.SKYPILOT: ("InstanceType", "AcceleratorName", "AcceleratorCount", "Price", "Region"),
    PriceFormat.GPUHUNT: ("instance_name", "location", "price", "gpu_count", "gpu_name", "spot"),
    PriceFormat.CONTRACT: ("cloud",),
}
_CONTRACT_PRICES = {"usd_per_hour", "usd_per_accelerator_hour"}
_READERS: Mapping[PriceFormat, Callable[[Sequence[Row], Import], Reading]] = {
    PriceFormat.CHARTER: read_own,
    PriceFormat.SKYPILOT: read_skypilot,
    PriceFormat.GPUHUNT: read_gpuhunt,
    PriceFormat.CONTRACT: read_contract,
}


@dataclass(frozen=True, kw_only=True)
class Checked:
    """A price list with everything that the rules say about it."""

    format: PriceFormat
    rows: tuple[PriceRow, ...]
    findings: tuple[Finding, ...]
    left_out: Mapping[str, int]
    """Lines that are no offers of accelerators, by reason."""

    @property
    def errors(self) -> tuple[Finding, ...]:
        """Findings that forbid the use of a row."""
        return tuple(finding for finding in self.findings if finding.is_error)

    @property
    def good_rows(self) -> tuple[PriceRow, ...]:
        """The rows without an error."""
        bad = lines_of(self.findings)
        return tuple(row for row in self.rows if row.number not in bad)


def format_of(header: Sequence[str], file: str) -> PriceFormat:
    """The layout that a header belongs to.

    >>> format_of(["cloud", "accelerator", "usd_per_accelerator_hour"], "mine.csv")
    <PriceFormat.CONTRACT: 'contract'>
    """
    for layout, needed in _NEEDED_COLUMNS.items():
        fits = set(needed) <= set(header)
        if fits and (layout is not PriceFormat.CONTRACT or _CONTRACT_PRICES & set(header)):
            return layout
    known = "; ".join(f"{layout}: {', '.join(needed)}" for layout, needed in _NEEDED_COLUMNS.items())
    raise UsageError(
        f"{file}: the header is {', '.join(header) or 'empty'}; no known layout of price lists has it\n"
        f"  the columns that tell them apart: {known}, usd_per_hour or usd_per_accelerator_hour"
    )


def read_prices(
    text: str, about: Import, *, layout: PriceFormat | None = None, book: PriceBook | None = None, today: date
) -> Checked:
    """Read and check a price list; `book` is what its prices are compared with, the bundled one if left out."""
    header, lines, ragged = read_lines(text, about.file)
    found = format_of(header, about.file)
    if layout is not None and layout is not found:
        missing = ", ".join(name for name in _NEEDED_COLUMNS[layout] if name not in header)
        raise UsageError(
            f"{about.file}: --format {layout} needs the column{'s' if ',' in missing else ''} "
            f"{missing or 'usd_per_hour or usd_per_accelerator_hour'}; the header is that of {found}"
        )
    known = (book or PriceBook.bundled()).offers()
    instances = {(offer.cloud, offer.instance_type): (offer.accelerator, offer.count) for offer in known}
    reading = _READERS[found](lines, replace(about, instances=instances))
    told = check_rows(reading.rows, reference=reference_of(known), today=today)
    findings = sorted((*ragged, *reading.findings, *told), key=lambda finding: finding.row)
    return Checked(format=found, rows=reading.rows, findings=tuple(findings), left_out=reading.left_out)
