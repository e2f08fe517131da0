"""One line of a price list as it was read, before anything about it is believed."""

from collections.abc import Iterable, Mapping
from csv import DictReader
from dataclasses import dataclass, field
from datetime import date
from enum import StrEnum
from io import StringIO

from charter.catalog.accelerators import get
from charter.catalog.offer import Market
from charter.catalog.rows import TableRow
from charter.errors import UsageError
from charter.units import MIB, THOUSANDS


class Severity(StrEnum):
    """`error`: the row must not be used; `warning`: doubtful; `note`: read in a way that the user should know."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, kw_only=True)
class PriceFinding:
    """One thing that a rule says about one row of prices."""

    rule: str
    severity: Severity
    row: int
    """Line in the file, the header being 1; 0 where no single line is meant."""
    message: str
    offer: str = ""
    """Cloud, instance type, accelerator and region, for people."""

    @property
    def is_error(self) -> bool:
        """Return True if the row must not be used."""
        return self.severity is Severity.ERROR


SAME_MEMORY = 0.10
"""Share by which a printed memory may differ from the catalog's: what drivers report is up to 8 % below the chips'
capacity (T4 with ECC on), and the false 288 GB of an MI325X is 12.5 % above."""


@dataclass(frozen=True, kw_only=True)
class PriceRow:
    """Prices per instance-hour as printed; `None` is a price that is not there, zero one that cannot be true."""

    number: int
    """Line in the file, the header being 1."""
    cloud: str
    instance_type: str
    accelerator: str
    """The catalog's name, or what the file says where the catalog does not know it (`known` is false then)."""
    known: bool
    count: float
    region: str
    zone: str = ""
    on_demand: float | None = None
    spot: float | None = None
    spot_min: float | None = None
    reserved_1y: float | None = None
    reserved_3y: float | None = None
    usd_per_accelerator_hour: float | None = None
    """As printed beside the instance's price, to be compared with it."""
    memory_mib: float | None = None
    """Memory of one accelerator as printed."""
    vcpus: float | None = None
    ram_gib: float | None = None
    network_gbit_per_second: float | None = None
    local_disk_gb: float | None = None
    spot_zones_at_on_demand: float | None = None
    is_slice: bool = False
    """A slice of a pod, whose count is the slice's and no property of a machine."""
    is_contract: bool = False
    as_of: str = ""
    confidence: str = ""
    source: str = ""
    note: str = ""
    valid_from: str = ""
    valid_until: str = ""

    @property
    def label(self) -> str:
        """Cloud, instance type, accelerators, zone or region."""
        place = self.zone or self.region
        return f"{self.cloud} {self.instance_type} {self.count:g} x {self.accelerator} {place}".replace("  ", " ")

    @property
    def prices(self) -> dict[Market, float]:
        """The prices that are there."""
        by_market = {
            Market.ON_DEMAND: self.on_demand,
            Market.SPOT: self.spot,
            Market.RESERVED_1Y: self.reserved_1y,
            Market.RESERVED_3Y: self.reserved_3y,
        }
        return {market: price for market, price in by_market.items() if price is not None}

    @property
    def has_own_spot(self) -> bool:
        """Return True if there is a spot price that is not simply the on-demand price."""
        return self.spot is not None and self.spot != self.on_demand

    def finding(self, rule: str, severity: Severity, message: str) -> PriceFinding:
        """A finding about this row."""
        return PriceFinding(rule=rule, severity=severity, row=self.number, message=message, offer=self.label)


def read_lines(text: str, file: str) -> tuple[tuple[str, ...], tuple[TableRow, ...], tuple[PriceFinding, ...]]:
    """Header, lines and findings of a CSV text; a line with more or fewer cells than the header is a finding.

    >>> read_lines("a,b\\n1,2\\n3\\n", "x.csv")[2][0].row
    3
    """
    reader = DictReader(StringIO(text.removeprefix("\ufeff")), skipinitialspace=True)
    header = tuple(name.strip() for name in reader.fieldnames or ())
    reader.fieldnames = list(header)
    rows, findings = [], []
    for cells in reader:
        if None in cells or None in cells.values():
            message = f"has not as many cells as the header ({len(header)})"
            findings.append(
                PriceFinding(rule="ragged-row", severity=Severity.ERROR, row=reader.line_num, message=message)
            )
        else:
            rows.append(TableRow(file=file, number=reader.line_num, cells=cells))
    return header, tuple(rows), tuple(findings)


def number(row: TableRow, column: str, findings: list[PriceFinding]) -> float | None:
    """A number that is not negative, None for an empty cell; anything else becomes a finding and None."""
    raw = row.optional_text(column)
    if not raw:
        return None
    plain = raw.removeprefix("$")
    try:
        value = float(plain.replace(",", "") if THOUSANDS.fullmatch(plain) else plain)
    except ValueError:
        value = -1.0
    if 0 <= value < float("inf"):
        return value
    message = f"column {column}: {raw!r} is not a number of zero or more"
    findings.append(PriceFinding(rule="not-a-number", severity=Severity.ERROR, row=row.number, message=message))
    return None


def resolve(printed: str, *, memory_mib: float | None = None, instance_type: str = "") -> tuple[str, bool]:
    """The catalog's name for a printed one, and whether it has one.

    A bare family name is settled by the memory printed beside it (`A100` with 81,920 MiB is the 80 GB board), and by
    an instance type that says PCIe.

    >>> resolve("A100", memory_mib=81920), resolve("H100", instance_type="gpu_1x_h100_pcie"), resolve("K80")
    (('A100-SXM-80GB', True), ('H100-PCIe-80GB', True), ('K80', False))
    """
    tried = [printed]
    if memory_mib and "-" not in printed:
        tried = [f"{printed}-{_nominal_gb(memory_mib)}GB", printed]
    if "pcie" in instance_type.casefold():
        tried = [*(f"{name}-PCIe" for name in tried), *tried]
    for name in tried:
        catalog_name = _name_or_none(name)
        if catalog_name is not None:
            return catalog_name, True
    return printed, False


def _name_or_none(name: str) -> str | None:
    try:
        return get(name).name
    except UsageError:
        return None


def _nominal_gb(memory_mib: float) -> int:
    """The size in a product's name: 81,559 or 81,920 MiB are the 80 GB board, 95,830 MiB the 94 GB one."""
    gib = memory_mib / 1024
    sizes = (16, 24, 32, 40, 48, 64, 80, 94, 96, 128, 141, 144, 180, 192, 256, 288)
    return min(sizes, key=lambda size: abs(size - gib))


def memory_problem(row: PriceRow) -> str:
    """Return the fault of an accelerator's printed memory, or nothing."""
    if row.memory_mib is None or not row.known:
        return ""
    expected_mib = get(row.accelerator).memory_bytes / MIB
    ratio = row.memory_mib / expected_mib
    if abs(ratio - 1) <= SAME_MEMORY:
        return ""
    message = f"{row.memory_mib:,.0f} MiB per accelerator; {row.accelerator} has {expected_mib:,.0f} MiB"
    if row.count > 1 and abs(ratio / row.count - 1) <= SAME_MEMORY:
        return f"{message}: the sum over {row.count:g} accelerators?"
    if abs(ratio * 1024 - 1) <= SAME_MEMORY:
        return f"{message}: gigabytes in a column of mebibytes?"
    return message


def lines_of(findings: Iterable[PriceFinding]) -> frozenset[int]:
    """Lines that an error stands on."""
    return frozenset(finding.row for finding in findings if finding.is_error)


@dataclass(frozen=True, kw_only=True)
class Import:
    """Facts about a price file that it does not state itself."""

    file: str
    imported_on: date
    cloud: str = ""
    """For layouts of which each file is one cloud's."""
    as_of: str = ""
    """The date of the prices; the day of the import if left out."""
    instances: Mapping[tuple[str, str], tuple[str, int]] = field(default_factory=dict)
    """Accelerator and count of known instance types by cloud and name."""

    @property
    def date_of_prices(self) -> str:
        """Return the date of the rows."""
        return self.as_of or self.imported_on.isoformat()

    def source(self, kind: str) -> str:
        """Return the source of the rows."""
        return f"{kind} {self.file}, imported {self.imported_on.isoformat()}"


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The rows of a file, what was wrong with them, and the lines that are no offers."""

    rows: tuple[PriceRow, ...]
    findings: tuple[PriceFinding, ...] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)
