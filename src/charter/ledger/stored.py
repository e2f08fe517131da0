"""Bytes that a run keeps, as a step function over time, and what they cost: pure, in whole bytes and milliseconds.

A sample says how many bytes a place held at a moment; they count until the next sample of that place. Samples are a
set: recording one twice, or in another order, changes nothing. Between two samples bytes x time is exact as far as
nothing but Charter changes the place. After the last one nobody has looked: that time is told apart, and never charged.

Rounding rule: what a place costs on a UTC day at one price is rounded once, to the nearest micro-USD, halves to even;
everything else is a sum of such integers. So a new sample changes the money of few days, however many there are.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_EVEN, Decimal
from itertools import pairwise
from typing import Literal

from charter.ledger.account import divide_half_even
from charter.ledger.attempt import NO_TAGS
from charter.units import GB, GIB, SECONDS_PER_MONTH

Category = Literal["Storage", "Networking", "Other"]
"""Service categories of FOCUS 1.2."""


@dataclass(frozen=True, kw_only=True)
class OtherCharge:
    """One charge, as it was measured or billed."""

    run: str
    stage: str = ""
    """Empty for what no stage alone has caused."""
    category: Category
    service: str
    """A `CREDIT` lowers the cost: its money is below zero."""
    provider: str
    resource: str
    """What is paid for: a bucket, a volume."""
    started_at: float
    ended_at: float
    quantity: str
    """A decimal number of `unit`, as text, so that it stays exact."""
    unit: str
    unit_price_micro_usd: int | None = None
    micro_usd: int | None = None
    price_source: str | None = None
    price_as_of: str | None = None
    owner: str | None = None
    tags: str = NO_TAGS


RUN_DIRECTORY = "run directory"
"""The place of what a run keeps by itself. It is one, wherever the run goes on: a copy of it that a machine of before
may still hold is not counted."""
OWN_DISK = "own disk"
MILLISECONDS_PER_MONTH = round(SECONDS_PER_MONTH) * 1000
DAY = 86_400_000
"""Milliseconds of a UTC day."""
PRICED_BYTE_MILLISECONDS = GB * MILLISECONDS_PER_MONTH
"""What a price is for: a GB over a month."""
NANO = Decimal("1e-9")
STORED_ON = {True: "Disk", False: "Object storage"}
SENT, FEE, CREDIT = "Transfer", "Fee", "Credit"


@dataclass(frozen=True, kw_only=True)
class StoredSample:
    """Number of bytes of a run that a place held at a moment."""

    run: str
    place: str
    """`RUN_DIRECTORY`, or where copies are kept: a directory, `s3://bucket/path`."""
    at_milliseconds: int
    """Since 1970, by the clock of the machine that looked."""
    bytes: int
    sent_bytes: int = 0
    """Sent to the place since the sample before by the process that looked."""
    why: str = ""
    """What had happened: `stage_done`, `copied`, `cleaned`."""
    host: str = ""
    provider: str = OWN_DISK
    price_micro_usd_per_gb_month: int | None = None
    """A GB is 10^9 bytes, a month 730 hours. None where no price is known; 0 on own disks."""
    price_source: str = ""
    price_as_of: str = ""
    owner: str = ""
    tags: str = NO_TAGS

    @property
    def sample_id(self) -> str:
        """Return the unique id of the sample, which is also its check: a hash of all its values."""
        return hashlib.sha256(repr(astuple(self)).encode("utf-8", "backslashreplace")).hexdigest()[:32]

    @property
    def order(self) -> tuple[object, ...]:
        """Places one after the other, each by time; of one moment, what counts comes last."""
        price = -1 if self.price_micro_usd_per_gb_month is None else self.price_micro_usd_per_gb_month
        return (self.run, self.place, self.at_milliseconds, self.bytes, price, self.sample_id)

    @property
    def is_disk(self) -> bool:
        """Return True if it is a directory."""
        return "://" not in self.place


@dataclass(frozen=True, kw_only=True)
class StoredDay:
    """Amount that one place held on a UTC day on the terms of one sample."""

    terms: StoredSample
    """Any of the samples; price and payer are the same in all."""
    start_milliseconds: int
    end_milliseconds: int
    byte_milliseconds: int
    """Bytes x time."""

    @property
    def micro_usd(self) -> int:
        """Its cost; 0 also where no price is known."""
        price = self.terms.price_micro_usd_per_gb_month or 0
        return divide_half_even(price * self.byte_milliseconds, PRICED_BYTE_MILLISECONDS)


def by_place(samples: Iterable[StoredSample]) -> dict[tuple[str, str], tuple[StoredSample, ...]]:
    """Samples by run and place."""
    by_key: dict[tuple[str, str], set[StoredSample]] = defaultdict(set)
    for sample in samples:
        by_key[sample.run, sample.place].add(sample)
    return {key: tuple(sorted(by_key[key], key=_order)) for key in sorted(by_key)}


def steps(samples: Iterable[StoredSample]) -> list[StoredSample]:
    """The samples of one place in time; of several at one millisecond the one with the most bytes counts."""
    return list({sample.at_milliseconds: sample for sample in sorted(samples, key=_order)}.values())


def byte_milliseconds(samples: Iterable[StoredSample], *, since: int, until: int) -> int:
    """Bytes x time of one place between two moments: nothing before the first sample, what the last one says after it.

    >>> at_0 = StoredSample(run="r", place=RUN_DIRECTORY, at_milliseconds=0, bytes=10)
    >>> at_5 = StoredSample(run="r", place=RUN_DIRECTORY, at_milliseconds=5, bytes=2)
    >>> byte_milliseconds([at_5, at_0], since=1, until=8)
    46
    """
    ordered = steps(samples)
    ends = [*(sample.at_milliseconds for sample in ordered[1:]), until]
    return sum(
        sample.bytes * max(0, min(end, until) - max(sample.at_milliseconds, since))
        for sample, end in zip(ordered, ends, strict=True)
    )


def days_of(samples: Iterable[StoredSample]) -> list[StoredDay]:
    """One place from its first sample to its last, by day and terms."""
    days: dict[tuple[object, ...], StoredDay] = {}
    for sample, following in pairwise(steps(samples)):
        at = sample.at_milliseconds
        while at < following.at_milliseconds:
            end = min(next_day(at), following.at_milliseconds)
            key, here = (at // DAY, *_terms(sample)), sample.bytes * (end - at)
            before = days.get(key)
            days[key] = StoredDay(
                terms=sample if before is None else before.terms,
                start_milliseconds=at if before is None else before.start_milliseconds,
                end_milliseconds=end,
                byte_milliseconds=here if before is None else before.byte_milliseconds + here,
            )
            at = end
    return list(days.values())


def micro_usd_of(samples: Iterable[StoredSample]) -> int:
    """Return the cost of one place from its first sample to its last, as far as prices are known."""
    return sum(day.micro_usd for day in days_of(samples))


def charges_by_month(samples: Iterable[StoredSample]) -> Iterator[OtherCharge]:
    """Yield the charges for bytes stored and sent: one per place, calendar month (UTC), price and payer."""
    for series in by_place(samples).values():
        groups: dict[tuple[object, ...], list[StoredDay]] = defaultdict(list)
        for day in days_of(series):
            if day.byte_milliseconds:
                groups[(next_month(day.start_milliseconds), *_terms(day.terms))].append(day)
        yield from map(_stored, groups.values())
        sent: dict[tuple[object, ...], list[StoredSample]] = defaultdict(list)
        for sample in series:
            if sample.sent_bytes and not sample.is_disk:
                sent[next_month(sample.at_milliseconds), sample.owner, sample.tags].append(sample)
        yield from map(_sent, sent.values())


def next_day(milliseconds: int) -> int:
    """The midnight (UTC) after a moment.

    >>> next_day(0), next_day(86_399_999)
    (86400000, 86400000)
    """
    return (milliseconds // DAY + 1) * DAY


def next_month(milliseconds: int) -> int:
    """The start of the calendar month (UTC) after a moment.

    >>> next_month(0) // 86_400_000
    31
    """
    month = datetime.fromtimestamp(milliseconds // 1000, tz=UTC).replace(day=1, hour=0, minute=0, second=0)
    return round((month + timedelta(days=32)).replace(day=1).timestamp()) * 1000


def gib_months(num_byte_milliseconds: int) -> float:
    """GiB x months of 730 hours.

    >>> gib_months(2**30 * 730 * 3_600_000)
    1.0
    """
    return num_byte_milliseconds / (GIB * MILLISECONDS_PER_MONTH)


def _order(sample: StoredSample) -> tuple[object, ...]:
    return sample.order


def _terms(sample: StoredSample) -> tuple[object, ...]:
    """Return the values that the rows of one charge share."""
    price = (sample.price_micro_usd_per_gb_month, sample.price_source, sample.price_as_of)
    return (sample.provider, *price, sample.owner, sample.tags)


def _stored(group: Sequence[StoredDay]) -> OtherCharge:
    sample, total = group[0].terms, sum(day.byte_milliseconds for day in group)
    quantity = (Decimal(total) / PRICED_BYTE_MILLISECONDS).quantize(NANO, ROUND_HALF_EVEN)
    price = sample.price_micro_usd_per_gb_month
    return OtherCharge(
        run=sample.run,
        category="Storage",
        service=STORED_ON[sample.is_disk],
        provider=sample.provider,
        resource=_resource(sample),
        started_at=group[0].start_milliseconds / 1000,
        ended_at=group[-1].end_milliseconds / 1000,
        quantity=f"{quantity:f}",
        unit="GB-Months",
        unit_price_micro_usd=price,
        micro_usd=None if price is None else sum(day.micro_usd for day in group),
        price_source=sample.price_source or None,
        price_as_of=sample.price_as_of or None,
        owner=sample.owner or None,
        tags=sample.tags,
    )


def _sent(group: Sequence[StoredSample]) -> OtherCharge:
    """Without a price: who charges for it, and whether, depends on networks that Charter does not know."""
    sample = group[0]
    return OtherCharge(
        run=sample.run,
        category="Networking",
        service=SENT,
        provider=sample.provider,
        resource=_resource(sample),
        started_at=sample.at_milliseconds / 1000,
        ended_at=group[-1].at_milliseconds / 1000,
        quantity=f"{Decimal(sum(item.sent_bytes for item in group)) / GB:f}",
        unit="GB",
        owner=sample.owner or None,
        tags=sample.tags,
    )


def _resource(sample: StoredSample) -> str:
    return f"{sample.run}: {sample.place}" if sample.place == RUN_DIRECTORY else sample.place
