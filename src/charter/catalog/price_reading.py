"""What the readers of price lists share: what they are told, and what they give back."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date

from charter.catalog.price_finding import Finding
from charter.catalog.price_row import PriceRow


@dataclass(frozen=True, kw_only=True)
class Import:
    """What a file does not say of itself."""

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
        """What the rows carry as their date."""
        return self.as_of or self.imported_on.isoformat()

    def source(self, kind: str) -> str:
        """What the rows carry as their source."""
        return f"{kind} {self.file}, imported {self.imported_on.isoformat()}"


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The rows of a file, what was wrong with them, and the lines that are no offers."""

    rows: tuple[PriceRow, ...]
    findings: tuple[Finding, ...] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)
