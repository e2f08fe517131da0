"""Bytes that a run keeps, as a step function over time, and what they cost: pure, in whole bytes and milliseconds.

A sample says how many bytes a place held at a moment; they count until the next sample of that place. Samples are a
set: recording one twice, or in another order, changes nothing. Between two samples bytes x time is exact as far as
nothing but Charter changes the place. After the last one nobody has looked: that time is told apart, and never charged.

Rounding rule: money is rounded where a place's cost so far is told, to the nearest micro-USD, halves to even. What a
day or a month costs is a difference of two such sums, so that days and months add up to the whole exactly.
"""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_EVEN, Decimal
from itertools import pairwise

from charter.ledger.account import divide_half_even
from charter.ledger.attempt import NO_TAGS
from charter.ledger.other import OtherCharge
from charter.units import GB, GIB, HOURS_PER_MONTH, SECONDS_PER_HOUR

RUN_DIRECTORY = "run directory"
"""The place of what a run keeps by itself. It is one, wherever the run goes on: a copy of it that a machine of before
may still hold is not counted."""
OWN_DISK = "own disk"
MILLISECONDS_PER_MONTH = round(HOURS_PER_MONTH * SECONDS_PER_HOUR) * 1000
PRICED_BYTE_MILLISECONDS = GB * MILLISECONDS_PER_MONTH
"""What a price is for: a GB over a month."""
NANO = Decimal("1e-9")
STORED_ON = {True: "Disk", False: "Object storage"}
SENT = "Transfer"


@dataclass(frozen=True, kw_only=True)
class StoredSample:
    """How many bytes of a run a place held at a moment."""

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
        """What tells it from every other sample, and its check: a hash of all its values."""
        return hashlib.sha256(repr(astuple(self)).encode("utf-8", "backslashreplace")).hexdigest()[:32]

    @property
    def order(self) -> tuple[object, ...]:
        """Places one after the other, each by time; of one moment, what counts comes last."""
        price = -1 if self.price_micro_usd_per_gb_month is None else self.price_micro_usd_per_gb_month
        return (self.run, self.place, self.at_milliseconds, self.bytes, price, self.sample_id)

    @property
    def is_disk(self) -> bool:
        """Whether it is a directory."""
        return "://" not in self.place


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Bytes that did not change for a time; `micro_usd` is 0 also where no price is known."""

    sample: StoredSample
    start_milliseconds: int
    end_milliseconds: int
    micro_usd: int

    @property
    def byte_milliseconds(self) -> int:
        """Bytes x time."""
        return self.sample.bytes * (self.end_milliseconds - self.start_milliseconds)


def by_place(samples: Iterable[StoredSample]) -> dict[tuple[str, str], tuple[StoredSample, ...]]:
    """Samples by run and place."""
    found: dict[tuple[str, str], set[StoredSample]] = defaultdict(set)
    for sample in samples:
        found[sample.run, sample.place].add(sample)
    return {key: tuple(sorted(found[key], key=_order)) for key in sorted(found)}


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


def micro_usd_of(samples: Iterable[StoredSample], *, until: int) -> int:
    """What one place has cost up to a moment, as far as prices are known."""
    ordered = steps(samples)
    ends = [*(sample.at_milliseconds for sample in ordered[1:]), until]
    return _micro_usd(
        sum(
            _priced(sample, max(0, min(end, until) - sample.at_milliseconds))
            for sample, end in zip(ordered, ends, strict=True)
        )
    )


def pieces(samples: Iterable[StoredSample], next_cut: Callable[[int], int]) -> Iterator[Piece]:
    """One place from its first sample to its last, cut also where `next_cut` of a moment says."""
    so_far = 0
    for sample, following in pairwise(steps(samples)):
        at = sample.at_milliseconds
        while at < following.at_milliseconds:
            end = min(next_cut(at), following.at_milliseconds)
            before, so_far = so_far, so_far + _priced(sample, end - at)
            money = _micro_usd(so_far) - _micro_usd(before)
            yield Piece(sample=sample, start_milliseconds=at, end_milliseconds=end, micro_usd=money)
            at = end


def charges_by_month(samples: Iterable[StoredSample]) -> Iterator[OtherCharge]:
    """What was stored and sent as charges: one per place, calendar month (UTC), price and payer."""
    for series in by_place(samples).values():
        groups: dict[tuple[object, ...], list[Piece]] = defaultdict(list)
        for piece in pieces(series, next_month):
            if piece.byte_milliseconds:
                groups[(next_month(piece.start_milliseconds), *_terms(piece.sample))].append(piece)
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
    day = 86_400_000
    return (milliseconds // day + 1) * day


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


def _priced(sample: StoredSample, milliseconds: int) -> int:
    return (sample.price_micro_usd_per_gb_month or 0) * sample.bytes * milliseconds


def _micro_usd(priced_byte_milliseconds: int) -> int:
    return divide_half_even(priced_byte_milliseconds, PRICED_BYTE_MILLISECONDS)


def _terms(sample: StoredSample) -> tuple[object, ...]:
    """What the rows of one charge have in common."""
    price = (sample.price_micro_usd_per_gb_month, sample.price_source, sample.price_as_of)
    return (sample.provider, *price, sample.owner, sample.tags)


def _stored(group: Sequence[Piece]) -> OtherCharge:
    sample, whole = group[0].sample, sum(piece.byte_milliseconds for piece in group)
    quantity = (Decimal(whole) / PRICED_BYTE_MILLISECONDS).quantize(NANO, ROUND_HALF_EVEN)
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
        micro_usd=None if price is None else sum(piece.micro_usd for piece in group),
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
