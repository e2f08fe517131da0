"""Names of the sums and of their dimensions, and the check of a row of sums; without SQLAlchemy."""

from collections.abc import Mapping
from dataclasses import fields

from charter.ledger.account import TOTALLED
from charter.ledger.call import CallSums

SCHEMA_VERSION = 1
"""Version of the tables in `schema.py`; a ledger of any other version is refused."""
APPLICATION_ID = 0x43485254
"""`CHRT`, in `PRAGMA application_id`: tells a ledger from any other SQLite file."""
QUICK_CHECK_BYTES = 32 * 2**20
"""A larger file is not read whole when it is opened: at 1 GB/s or less that would cost the second that a resume
has. Its rows and answers carry checks of their own, and `charter cost report` reads them all."""


DIMENSIONS = ("run", "stage", "fingerprint", "owner", "tags", "accelerator", "infra", "market", "outcome", "day")
"""What sums are kept by: `day` is the UTC day, `tags` the project's tags as one JSON text. Empty where not known."""
CALL_SUMS = tuple(f"calls_{field.name}" for field in fields(CallSums))
SUMMED = (*TOTALLED, *CALL_SUMS, "other_micro_usd")
"""The sums, in the order that their check counts them."""


def check_of_sums(values: Mapping[str, int]) -> int:
    """A weighted sum of sums: the check of rows added up is the check of their totals, so any GROUP BY can be checked.

    >>> check_of_sums({"attempts": 2, "milliseconds": 5}) - check_of_sums({"attempts": 2})
    15
    """
    return sum((2 * index + 1) * values.get(name, 0) for index, name in enumerate(SUMMED))
