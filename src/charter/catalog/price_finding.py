"""What a check of prices has found: the rule, the row, how grave it is."""

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """`error`: the row must not be used; `warning`: doubtful; `note`: read in a way that the user should know."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, kw_only=True)
class Finding:
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
        """Whether the row must not be used."""
        return self.severity is Severity.ERROR
