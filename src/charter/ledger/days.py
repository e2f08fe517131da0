"""Sums spread over the days on which they arose: pure, in whole units, so that days add up to their total."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from charter.ledger.account import TOTALLED, Totals

MILLISECONDS_PER_SECOND = 1000


def day_of(unix_seconds: float) -> str:
    """The UTC day of a moment.

    >>> day_of(86_400.0)
    '1970-01-02'
    """
    return datetime.fromtimestamp(unix_seconds, tz=UTC).date().isoformat()


def by_day(totals: Totals, *, started_at: float, milliseconds: int) -> Iterator[tuple[str, Totals]]:
    """Sums of something that ran evenly from `started_at`, by UTC day.

    What cannot be divided (the attempt itself, a last micro-USD) falls on the later day.

    >>> spread = by_day(Totals(attempts=1, micro_usd=10), started_at=86_400.0 - 1, milliseconds=4000)
    >>> [(day, part.attempts, part.micro_usd) for day, part in spread]
    [('1970-01-01', 0, 2), ('1970-01-02', 1, 8)]
    """
    before = Totals()
    for day, so_far in _days(started_at, milliseconds):
        until = totals if so_far == milliseconds else _share(totals, so_far, milliseconds)
        yield day, Totals(**{name: getattr(until, name) - getattr(before, name) for name in TOTALLED})
        before = until


def _days(started_at: float, milliseconds: int) -> Iterator[tuple[str, int]]:
    """Every day that is touched, with the milliseconds until its end."""
    start = round(started_at * MILLISECONDS_PER_SECOND)
    moment = datetime.fromtimestamp(started_at, tz=UTC)
    midnight = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    while True:
        day, midnight = midnight.date().isoformat(), midnight + timedelta(days=1)
        passed = round(midnight.timestamp() * MILLISECONDS_PER_SECOND) - start
        if passed >= milliseconds:
            yield day, milliseconds
            return
        yield day, max(passed, 0)


def _share(totals: Totals, part: int, whole: int) -> Totals:
    return Totals(**{name: getattr(totals, name) * part // whole for name in TOTALLED})
