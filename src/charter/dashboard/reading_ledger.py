"""The ledger as a snapshot has it: sums that the ledger keeps, what runs, and the last attempts."""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TypedDict

from charter.dashboard.snapshot import Group, LedgerNow
from charter.errors import CharterError
from charter.ledger import Accounted, Ledger
from charter.ledger.place import NoLedgerError
from charter.ledger.store import has_ledger, ledger_place
from charter.ledger.sums import Sums, total_of

RECENT = 300
"""Attempts that a snapshot holds one by one, for an exact curve of spending; of a run with more it holds sums."""
OF_STAGE = 25
BY = ("stage", "accelerator", "owner", "tags", "outcome", "day")
SECONDS_PER_DAY = 86_400


class LedgerPlace(TypedDict):
    """Where the ledger of a project is, and which run of it."""

    run_dir: Path
    run: str | None
    server: str | None


def read_ledger(run_dir: Path, *, run: str | None, server: str | None) -> LedgerNow:
    """The sums of one run; empty without a ledger, and with the reason in words when it cannot be read."""
    place = ledger_place(run_dir, server)
    if not has_ledger(place):
        return LedgerNow()
    only = run if server else None
    try:
        with Ledger.open(place, create=False) as ledger:
            parts, running = ledger.sums(by=BY, run=only), ledger.running(run=only)
            whole = total_of(parts)
            recent = ledger.recent(run=only, limit=RECENT) if whole.totals.attempts <= RECENT else ()
    except NoLedgerError:
        return LedgerNow()  # on a server: nothing has run yet
    except CharterError as error:
        return LedgerNow(problem=f"the ledger could not be read: {error}")
    outcomes: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for part in parts:
        if part.totals.attempts:
            outcomes[part.key["stage"]][part.key["outcome"]] += part.totals.attempts
    return LedgerNow(
        whole=whole,
        by_stage=_by(parts, "stage"),
        by_accelerator=_groups(parts, "accelerator"),
        by_owner=_groups(parts, "owner"),
        by_tag=_tags(parts),
        outcomes={stage: dict(counts) for stage, counts in outcomes.items()},
        running=running,
        recent=recent,
        spend=exact_spend(recent) if recent else daily_spend(_by(parts, "day")),
    )


def read_attempts(run_dir: Path, *, run: str | None, server: str | None, stage: str) -> tuple[Accounted, ...]:
    """The last attempts at one stage, oldest first; none when there is no ledger."""
    place = ledger_place(run_dir, server)
    if not has_ledger(place):
        return ()
    with Ledger.open(place, create=False) as ledger:
        return ledger.recent(run=run if server else None, stage=stage, limit=OF_STAGE)


def exact_spend(accounted: Iterable[Accounted]) -> tuple[tuple[float, int], ...]:
    """What was spent until when, each attempt evenly over its time: unix seconds and micro-USD, never falling."""
    rates: dict[float, float] = defaultdict(float)
    for item in accounted:
        cost, seconds = item.cost_micro_usd, item.attempt.seconds
        if cost and seconds > 0:
            rates[item.attempt.started_at] += cost / seconds
            rates[item.attempt.started_at + seconds] -= cost / seconds
    points: list[tuple[float, int]] = []
    rate = spent = before = 0.0
    for moment in sorted(rates):
        spent += rate * (moment - before) if points else 0.0
        points.append((moment, round(spent)))
        rate, before = rate + rates[moment], moment
    return tuple(points)


def daily_spend(days: dict[str, Sums]) -> tuple[tuple[float, int], ...]:
    """The same from sums by UTC day: a point at the end of each day, and one at the beginning of the first."""
    priced = sorted(day for day, part in days.items() if day and part.micro_usd)
    if not priced:
        return ()
    points, spent = [(_midnight(priced[0]), 0)], 0
    for day in priced:
        spent += days[day].micro_usd
        points.append((_midnight(day) + SECONDS_PER_DAY, spent))
    return tuple(points)


def _midnight(day: str) -> float:
    return datetime.strptime(day, "%Y-%m-%d").replace(tzinfo=UTC).timestamp()


def _by(parts: Iterable[Sums], name: str) -> dict[str, Sums]:
    found: dict[str, Sums] = {}
    for part in parts:
        key = part.key[name]
        found[key] = found.get(key, Sums()) + part
    return found


def _groups(parts: Iterable[Sums], name: str) -> tuple[Group, ...]:
    """Sums by one dimension, without what has no value there."""
    return _sorted([Group(name=key, sums=sums) for key, sums in _by(parts, name).items() if key])


def _tags(parts: Iterable[Sums]) -> tuple[Group, ...]:
    """Every `tag: value`; what has several tags counts under each."""
    found: dict[str, Sums] = {}
    for part in parts:
        for key, value in json.loads(part.key["tags"] or "{}").items():
            name = f"{key}: {value}"
            found[name] = found.get(name, Sums()) + part
    return _sorted([Group(name=name, sums=sums) for name, sums in found.items()])


def _sorted(groups: Sequence[Group]) -> tuple[Group, ...]:
    return tuple(sorted(groups, key=lambda group: (-group.sums.micro_usd, -group.sums.totals.milliseconds, group.name)))
