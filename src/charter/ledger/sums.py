"""Sums over attempts, calls and other charges by run, stage, owner, tag, accelerator, day: answered from kept sums.

    with Ledger.open(place, create=False) as ledger:
        for part in ledger.sums(run="demo", by=("stage", "day")):
            print(part.key["stage"], part.key["day"], part.usd, part.totals.lost_to_kills_micro_usd)

The time this takes does not grow with the number of attempts or calls. Parts add up to their total exactly.

Names of the sums and of their dimensions, and the check of a row of sums; without SQLAlchemy.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields

from charter.errors import UsageError
from charter.ledger.account import TOTALLED, Totals
from charter.ledger.call import SUMMED as CALL_FIELDS
from charter.ledger.call import CallSums
from charter.units import MICRO_USD_PER_USD

SCHEMA_VERSION = 1
"""Version of the tables in `schema.py`; a ledger of any other version is refused."""
APPLICATION_ID = 0x43485254
"""`CHRT`, in `PRAGMA application_id`: tells a ledger from any other SQLite file."""
QUICK_CHECK_BYTES = 32 * 2**20
"""A larger file is not read whole when it is opened: at 1 GB/s or less that would cost the second that a resume
has. Its rows and answers carry checks of their own, and `charter cost report` reads them all."""


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


DIMENSIONS = ("run", "stage", "fingerprint", "owner", "tags", "accelerator", "infra", "market", "outcome", "day")
"""What sums may be taken by, beside `tag:NAME`. `day` is a UTC day (`2026-07-01`).

Calls have the market `api`, no accelerator, and their server as `infra`; other charges have `storage`, `networking`
or `other` as market. Only attempts have an outcome.
"""
TAG = "tag:"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Money that the calls of a run which is under way may still cost."""

    run: str
    owner: str = ""
    tags: str = "{}"
    micro_usd: int = 0


@dataclass(frozen=True, kw_only=True)
class Sums:
    """Sums of some attempts, calls and other charges."""

    key: Mapping[str, str] = field(default_factory=dict)
    """The value of each dimension that was asked for; empty where it is not known."""
    totals: Totals = field(default_factory=Totals)
    """Of attempts; running ones up to their last heartbeat."""
    calls: CallSums = field(default_factory=CallSums)
    other_micro_usd: int = 0

    def __add__(self, other: "Sums") -> "Sums":
        return Sums(
            totals=self.totals + other.totals,
            calls=self.calls + other.calls,
            other_micro_usd=self.other_micro_usd + other.other_micro_usd,
        )

    @property
    def micro_usd(self) -> int:
        """Money for sure: attempts, settled calls, other charges."""
        return self.totals.micro_usd + self.calls.settled_micro_usd + self.other_micro_usd

    @property
    def most_micro_usd(self) -> int:
        """The same with all that calls of which nobody knows may have cost on top."""
        return self.micro_usd + self.calls.unknown_micro_usd

    @property
    def usd(self) -> float:
        """`micro_usd` in dollars."""
        return self.micro_usd / MICRO_USD_PER_USD

    @property
    def most_usd(self) -> float:
        """`most_micro_usd` in dollars."""
        return self.most_micro_usd / MICRO_USD_PER_USD

    @property
    def waste_micro_usd(self) -> int:
        """Money for nothing: lost to kills and failures, and idle machines. No part of it counts twice."""
        totals = self.totals
        return totals.lost_to_kills_micro_usd + totals.lost_to_failures_micro_usd + totals.idle_micro_usd

    @property
    def is_priced(self) -> bool:
        """Return True if any part of it has a price."""
        return bool(self.totals.priced_attempts or self.most_micro_usd)


def asked_dimensions(by: Sequence[str]) -> tuple[str, ...]:
    """The kept dimensions that some asked ones follow from; UsageError for one that there is not.

    >>> asked_dimensions(["stage", "tag:team"])
    ('stage', 'tags')
    """
    for name in by:
        if name not in DIMENSIONS and not name.startswith(TAG):
            available = ", ".join(DIMENSIONS)
            raise UsageError(f"the ledger keeps no sums by {name!r}; it keeps them by {available}, and tag:NAME")
    return tuple(dict.fromkeys("tags" if name.startswith(TAG) else name for name in by))


def grouped(by: Sequence[str], spend: Mapping[tuple[str, ...], Mapping[str, int]]) -> tuple[Sums, ...]:
    """Sums by what was asked, sorted; `spend` is by `asked_dimensions`."""
    base = asked_dimensions(by)
    by_value: dict[tuple[str, ...], dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for key, sums in spend.items():
        values = dict(zip(base, key, strict=True))
        target = by_value[tuple(_value(name, values) for name in by)]
        for name, value in sums.items():
            target[name] += value
    return tuple(_sums(dict(zip(by, key, strict=True)), by_value[key]) for key in sorted(by_value))


def total_of(parts: Iterable[Sums]) -> Sums:
    """The sum of some parts."""
    return sum(parts, Sums())


def _value(name: str, values: Mapping[str, str]) -> str:
    if not name.startswith(TAG):
        return values[name]
    return str(json.loads(values["tags"] or "{}").get(name.removeprefix(TAG), ""))


def _sums(key: Mapping[str, str], values: Mapping[str, int]) -> Sums:
    return Sums(
        key=key,
        totals=Totals(**{name: values.get(name, 0) for name in TOTALLED}),
        calls=CallSums(**{name: values.get(f"calls_{name}", 0) for name in CALL_FIELDS}),
        other_micro_usd=values.get("other_micro_usd", 0),
    )
