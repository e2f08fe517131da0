"""Cost of attempts, the retained share of it, and the totals: pure, in whole micro-USD and milliseconds.

Rounding rule: the cost of an attempt is rounded once, to the nearest micro-USD, halves to even. Everything
else is a sum or a difference of such integers, so parts add up to their total exactly.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta

from charter.ledger.attempt import Attempt

MILLISECONDS_PER_HOUR = 3_600_000
COUNTERS = ("tokens", "pairs", "episodes", "records")


@dataclass(frozen=True, kw_only=True)
class Accounted:
    """An attempt with its cost, divided into what was kept and what was lost."""

    attempt: Attempt
    cost_micro_usd: int | None
    lost_milliseconds: int
    """Time of steps that a later attempt has to do, or had to do, again."""
    lost_micro_usd: int | None
    idle_micro_usd: int | None = None
    """Of the money whose result was kept, what idle machines cost; None without a price or where nobody looked."""

    @property
    def idle_milliseconds(self) -> int:
        """Of the time whose result was kept, that in which machines did nothing; 0 where nobody looked."""
        return min(self.attempt.idle_milliseconds or 0, self.useful_milliseconds)

    @property
    def useful_milliseconds(self) -> int:
        """Time whose result was kept."""
        return self.attempt.duration_milliseconds - self.lost_milliseconds


@dataclass(frozen=True, kw_only=True)
class Totals:
    """Sums over attempts; two of them add up field by field."""

    attempts: int = 0
    milliseconds: int = 0
    billed_unit_milliseconds: int = 0
    """Time multiplied by the number of accelerators."""
    useful_milliseconds: int = 0
    lost_to_kills_milliseconds: int = 0
    lost_to_failures_milliseconds: int = 0
    micro_usd: int = 0
    """Cost of the attempts that have a price."""
    lost_to_kills_micro_usd: int = 0
    lost_to_failures_micro_usd: int = 0
    priced_milliseconds: int = 0
    """Time that `micro_usd` stands for; less than `milliseconds` when some attempts have no price."""
    priced_attempts: int = 0
    tokens: int = 0
    pairs: int = 0
    episodes: int = 0
    records: int = 0
    useful_tokens: int = 0
    useful_pairs: int = 0
    useful_episodes: int = 0
    useful_records: int = 0
    idle_milliseconds: int = 0
    """Of `useful_milliseconds`, time in which machines were held and did nothing."""
    idle_micro_usd: int = 0
    watched_milliseconds: int = 0
    """Time of attempts in which somebody looked whether machines were idle."""
    energy_joules: int = 0
    metered_milliseconds: int = 0
    """Time that `energy_joules` stands for; less than `milliseconds` where nobody measured."""

    def __add__(self, other: "Totals") -> "Totals":
        return Totals(**{name: getattr(self, name) + getattr(other, name) for name in TOTALLED})

    @property
    def fully_priced(self) -> bool:
        """Return True if every attempt has a price (true of no attempts at all)."""
        return self.priced_attempts == self.attempts


TOTALLED = tuple(field.name for field in fields(Totals))


def divide_half_even(numerator: int, denominator: int) -> int:
    """The quotient of two whole numbers, rounded to nearest, halves to even; exact for any size.

    >>> divide_half_even(5, 2), divide_half_even(7, 2), divide_half_even(8, 3)
    (2, 4, 3)
    """
    quotient, remainder = divmod(numerator, denominator)
    return quotient + (2 * remainder > denominator or (2 * remainder == denominator and quotient % 2 == 1))


def cost_micro_usd(*, milliseconds: int, count: int, price_micro_usd_per_hour: int) -> int:
    """Cost of `count` units for a time: price x count x time / 3,600,000 ms, in micro-USD, rounded once.

    >>> cost_micro_usd(milliseconds=1_800_000, count=8, price_micro_usd_per_hour=2_500_000)
    10000000
    """
    return divide_half_even(price_micro_usd_per_hour * count * milliseconds, MILLISECONDS_PER_HOUR)


def lost_milliseconds(attempt: Attempt, *, kept_step: int) -> int:
    """Time spent on the steps after `kept_step`, taking every step of the attempt as equally long.

    Start-up time is spread over the steps with the rest. An attempt that made no step is lost whole.

    An attempt of 10 s from step 0 to step 10, continued from step 8, lost 2 s.
    """
    steps = attempt.last_step - attempt.first_step
    if steps <= 0:
        return attempt.duration_milliseconds
    lost_steps = attempt.last_step - min(max(kept_step, attempt.first_step), attempt.last_step)
    return divide_half_even(attempt.duration_milliseconds * lost_steps, steps)


def account(attempts: Iterable[Attempt]) -> tuple[Accounted, ...]:
    """Every attempt with its cost and its lost part, in the order given.

    What an attempt lost is known when the next attempt at the same stage, shard and fingerprint starts: all steps
    after that one's first step. Before that, a killed or failed attempt counts as lost after its last known
    checkpoint, and an interrupted one (it stopped at a checkpoint) as kept. Attempts under a fingerprint that
    was given up are lost unless they finished.
    """
    ordered = tuple(attempts)
    by_shard: dict[tuple[str, str, int | None], list[Attempt]] = defaultdict(list)
    for attempt in ordered:
        by_shard[attempt.run, attempt.stage, attempt.shard].append(attempt)
    lost: dict[int, int] = {}
    for group in by_shard.values():
        group.sort(key=lambda attempt: attempt.number)
        for index, attempt in enumerate(group):
            lost[attempt.attempt_id] = _lost(attempt, later=group[index + 1 :])
    return tuple(_accounted(attempt, lost[attempt.attempt_id]) for attempt in ordered)


def _lost(attempt: Attempt, *, later: Sequence[Attempt]) -> int:
    if attempt.outcome in ("done", "running"):
        return 0
    successor = next((other for other in later if other.fingerprint == attempt.fingerprint), None)
    if successor is not None:
        return lost_milliseconds(attempt, kept_step=successor.first_step)
    if later:
        return attempt.duration_milliseconds
    if attempt.kept_step is not None:
        return lost_milliseconds(attempt, kept_step=attempt.kept_step)
    kept_step = attempt.last_step if attempt.outcome == "interrupted" else attempt.first_step
    return lost_milliseconds(attempt, kept_step=kept_step)


def _accounted(attempt: Attempt, lost: int) -> Accounted:
    price = attempt.price_micro_usd_per_hour
    if price is None:
        return Accounted(attempt=attempt, cost_micro_usd=None, lost_milliseconds=lost, lost_micro_usd=None)
    cost = cost_micro_usd(
        milliseconds=attempt.duration_milliseconds, count=attempt.count, price_micro_usd_per_hour=price
    )
    duration = attempt.duration_milliseconds
    lost_money = divide_half_even(cost * lost, duration) if duration else 0
    idle_money = None
    if attempt.idle_milliseconds is not None:
        idle = min(attempt.idle_milliseconds, duration - lost)
        idle_money = min(divide_half_even(cost * idle, duration), cost - lost_money) if duration else 0
    return Accounted(
        attempt=attempt,
        cost_micro_usd=cost,
        lost_milliseconds=lost,
        lost_micro_usd=lost_money,
        idle_micro_usd=idle_money,
    )


def totals_of(accounted: Iterable[Accounted]) -> Totals:
    """The sums over some attempts."""
    return sum((totals_of_one(item) for item in accounted), Totals())


def stage_totals(accounted: Iterable[Accounted]) -> dict[str, Totals]:
    """The sums by stage, stages in the order of their first attempt."""
    by_stage: dict[str, Totals] = {}
    for item in accounted:
        by_stage[item.attempt.stage] = by_stage.get(item.attempt.stage, Totals()) + totals_of_one(item)
    return by_stage


def totals_of_one(item: Accounted) -> Totals:
    """One attempt as sums."""
    attempt, priced = item.attempt, item.cost_micro_usd is not None
    duration = attempt.duration_milliseconds
    failed = attempt.outcome == "failed"
    lost, lost_money = item.lost_milliseconds, item.lost_micro_usd or 0
    counts = {name: getattr(attempt, name) for name in COUNTERS}
    useful = {
        f"useful_{name}": divide_half_even(count * item.useful_milliseconds, duration) if duration else count
        for name, count in counts.items()
    }
    return Totals(
        attempts=1,
        milliseconds=duration,
        billed_unit_milliseconds=duration * attempt.count,
        useful_milliseconds=item.useful_milliseconds,
        lost_to_kills_milliseconds=0 if failed else lost,
        lost_to_failures_milliseconds=lost if failed else 0,
        micro_usd=item.cost_micro_usd or 0,
        lost_to_kills_micro_usd=0 if failed else lost_money,
        lost_to_failures_micro_usd=lost_money if failed else 0,
        priced_milliseconds=duration if priced else 0,
        priced_attempts=int(priced),
        **counts,
        **useful,
        idle_milliseconds=item.idle_milliseconds,
        idle_micro_usd=item.idle_micro_usd or 0,
        watched_milliseconds=0 if attempt.idle_milliseconds is None else duration,
        energy_joules=attempt.energy_joules or 0,
        metered_milliseconds=0 if attempt.energy_joules is None else duration,
    )


MILLISECONDS_PER_SECOND = 1000


def wall_milliseconds(attempts: Iterable[Attempt]) -> int:
    """Wall clock of a run: the time in which at least one of its attempts ran. Machine time is the sum instead.

    >>> from types import SimpleNamespace as A
    >>> wall_milliseconds([A(started_at=0, seconds=60), A(started_at=50, seconds=20), A(started_at=100, seconds=5)])
    75000
    """
    spans = sorted((attempt.started_at, attempt.started_at + attempt.seconds) for attempt in attempts)
    wall, until = 0.0, float("-inf")
    for start, end in spans:
        wall += max(0.0, end - max(start, until))
        until = max(until, end)
    return round(wall * MILLISECONDS_PER_SECOND)


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


def _share(totals: Totals, part: int, total: int) -> Totals:
    return Totals(**{name: getattr(totals, name) * part // total for name in TOTALLED})
