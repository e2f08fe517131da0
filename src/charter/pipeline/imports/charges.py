"""A foreign run as attempts of the ledger: who told its time, what it ran on, at which price. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

from charter.catalog.accelerators import parse_request
from charter.errors import Problem, SpecError, UsageError
from charter.ledger.imported import ImportedAttempt, note_of
from charter.pipeline.imports.found import FoundAttempt, FoundRun
from charter.units import MICRO_USD_PER_USD

KEY_LENGTH = 20
MARKETS = ("on_demand", "spot", "reserved", "owned")


@dataclass(frozen=True, kw_only=True)
class Machines:
    """What the run was on, as its owner says: logs do not tell."""

    accelerators: str | None = None
    """`H100:8`, of one node."""
    nodes: int = 1
    usd_per_hour: float | None = None
    """Of one accelerator, or of a node without any."""
    started_at: float | None = None
    """Unix seconds; where the log has no clock."""
    hours: float | None = None
    """On the wall, of the whole run; where the log does not tell."""
    infra: str = "imported"
    market: str = "on_demand"

    def check(self) -> None:
        """UsageError for a name that nobody knows."""
        if self.market not in MARKETS:
            raise UsageError(f"--market {self.market!r} is none of {', '.join(MARKETS)}")
        if self.accelerators is not None:
            parse_request(self.accelerators)

    @property
    def accelerator(self) -> tuple[str, int]:
        """Name and how many in all; processors count by nodes."""
        name, count = parse_request(self.accelerators or "cpu")
        return name, self.nodes if name == "cpu" else count * self.nodes


@dataclass(frozen=True, kw_only=True)
class Belongs:
    """Which stage of which run the attempts are put under."""

    run: str
    stage: str
    kind: str
    fingerprint: str
    owner: str | None
    tags: str
    imported_at: float
    """Unix seconds of this import."""


def imported_attempts(
    found: FoundRun, machines: Machines, belongs: Belongs, *, another: bool = False
) -> tuple[ImportedAttempt, ...]:
    """The attempts of a run; raises with every option that is missing at once.

    `another` says that it is not the run that has the same first step in the ledger.
    """
    problems = list(_problems(found, machines))
    if problems:
        raise SpecError(problems)
    seconds = _seconds(found, machines)
    starts = _starts(found, machines, seconds)
    identity = found.content if another else found.identity
    made = []
    for number, attempt in enumerate(found.attempts):
        made.append(
            _attempt(
                found,
                attempt,
                machines,
                belongs,
                key=f"{identity[:KEY_LENGTH]}:{number}",
                seconds=seconds[number],
                started_at=starts[number],
                last=number == len(found.attempts) - 1,
            )
        )
    return tuple(made)


def _problems(found: FoundRun, machines: Machines) -> Iterator[Problem]:
    what = f"{found.source} ({found.format})"
    if machines.accelerators is None:
        hint = "give --accelerators H100:8 (or cpu) and --nodes"
        yield Problem(message=f"{what} does not say what it ran on", hint=hint)
    if machines.started_at is None and any(attempt.started_at is None for attempt in found.attempts):
        yield Problem(message=f"{what} has no clock", hint="give --started-at 2026-07-01T09:00")
    unknown = [attempt for attempt in found.attempts if attempt.seconds is None]
    if unknown and machines.hours is None:
        spans = ", ".join(f"{item.first_step} to {item.last_step}" for item in unknown)
        hint = "give --hours, the time on the wall of the whole run"
        yield Problem(message=f"{what} does not say how long its steps {spans} took", hint=hint)
    known = sum(attempt.seconds or 0.0 for attempt in found.attempts)
    if machines.hours is not None and unknown and machines.hours * 3600 < known:
        message = f"--hours {machines.hours:g} is less than the {known / 3600:.3f} hours that {what} tells of"
        yield Problem(message=message, hint="give the time of the whole run, all its processes together")


def _seconds(found: FoundRun, machines: Machines) -> list[float]:
    """Of each process; hours that were given go to those whose time is not known, by their steps."""
    told = [attempt.seconds for attempt in found.attempts]
    if machines.hours is None:
        return [seconds or 0.0 for seconds in told]
    if None not in told:
        known = sum(seconds or 0.0 for seconds in told)
        return [machines.hours * 3600 * (seconds or 0.0) / known if known else 0.0 for seconds in told]
    left = machines.hours * 3600 - sum(seconds or 0.0 for seconds in told)
    steps = [_steps(item) if item.seconds is None else 0 for item in found.attempts]
    shared = [left * count / max(1, sum(steps)) for count in steps]
    return [share if seconds is None else seconds for seconds, share in zip(told, shared, strict=True)]


def _steps(attempt: FoundAttempt) -> int:
    return max(1, attempt.last_step - attempt.first_step)


def _starts(found: FoundRun, machines: Machines, seconds: list[float]) -> list[float]:
    """By the log's clock; without one, one process after the other from the start that was given."""
    starts, next_start = [], machines.started_at or 0.0
    for attempt, spent in zip(found.attempts, seconds, strict=True):
        started = attempt.started_at if attempt.started_at is not None and not machines.started_at else next_start
        starts.append(started)
        next_start = started + spent
    return starts


def _attempt(
    found: FoundRun,
    attempt: FoundAttempt,
    machines: Machines,
    belongs: Belongs,
    *,
    key: str,
    seconds: float,
    started_at: float,
    last: bool,
) -> ImportedAttempt:
    name, count = machines.accelerator
    price = None if machines.usd_per_hour is None else round(machines.usd_per_hour * MICRO_USD_PER_USD)
    return ImportedAttempt(
        key=key,
        content=found.content,
        run=belongs.run,
        stage=belongs.stage,
        kind=belongs.kind,
        fingerprint=belongs.fingerprint,
        accelerator=name,
        count=count,
        infra=machines.infra,
        market=machines.market,
        started_at=started_at,
        duration_milliseconds=round(seconds * 1000),
        first_step=attempt.first_step,
        last_step=attempt.last_step,
        outcome=("done" if found.is_done else "interrupted") if last else "killed",
        tokens=attempt.tokens,
        price_micro_usd_per_hour=price,
        price_source=None if price is None else "--usd-per-hour of charter import",
        note=note_of(found.source, found.format, at=belongs.imported_at),
        owner=belongs.owner,
        tags=belongs.tags,
    )
