"""Sums of the ledger, compared with their rows or made anew. Imports SQLAlchemy: import it lazily.

Attempts of a lost or emptied ledger, made anew from what the directories of finished stages keep of them.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, delete, select

from charter.errors import loads_json
from charter.ledger.account import account, day_of
from charter.ledger.attempt import Attempt, Outcome, tags_text
from charter.ledger.charge_rows import read_other, read_stored, read_usage, spend_of_other, spend_of_stored
from charter.ledger.database import damaged
from charter.ledger.schema import attempts, spend_sums
from charter.ledger.sum_rows import (
    ATTEMPT_FIELDS,
    Spend,
    add_spend,
    added,
    check_of,
    read_sums,
    spend_of_attempts,
    spend_of_calls,
)
from charter.ledger.sums import DIMENSIONS
from charter.units import MICRO_USD_PER_USD, SECONDS_PER_HOUR

MOST = 1e12
"""Of seconds and dollars that a stage can have taken: 30,000 years."""
TIMINGS_FILE = "timings.json"
"""In the directory of a finished stage: what the ledger had of it when it ended."""
SOURCE = "timings.json of the stage: the ledger has lost it"


def rebuilt_attempts(
    directory: Path,
    *,
    run: str,
    stage: str,
    kind: str,
    fingerprint: str,
    owner: str | None = None,
    tags: Mapping[str, str] | None = None,
) -> tuple[Attempt, ...]:
    """The attempts of a finished stage as one that finished it and, before that, one with all that was lost.

    Time and money are those that `timings.json` says (to the millisecond, and to half a micro-USD per hour); how many
    attempts there were, on what and how much they counted is lost. None without the file.
    """
    timings = _timings(directory / TIMINGS_FILE)
    if timings is None:
        return ()
    seconds, useful, usd = timings["seconds"], timings["useful_seconds"], timings["cost_usd"]
    price = None if usd is None or not seconds else round(usd * MICRO_USD_PER_USD * SECONDS_PER_HOUR / seconds)
    lost, begun = max(0.0, seconds - useful), timings["finished_at"] - seconds
    parts = [(begun, lost, Outcome.KILLED)] if lost > 0 else []
    parts.append((begun + lost, min(useful, seconds), Outcome.DONE))
    return tuple(
        Attempt(
            attempt_id=-1,
            run=run,
            stage=stage,
            kind=kind,
            number=number,
            fingerprint=fingerprint,
            accelerator="",
            count=1,
            infra="",
            market="",
            started_at=at,
            duration_milliseconds=round(1000 * part),
            clock="wall",
            last_heartbeat=at + part,
            first_step=0,
            last_step=0,
            outcome=outcome,
            price_micro_usd_per_hour=price,
            price_source=None if price is None else SOURCE,
            note=f"rebuilt from {SOURCE}",
            owner=owner,
            tags=tags_text(tags),
        )
        for number, (at, part, outcome) in enumerate(parts, start=1)
    )


def booked_as(directory: Path) -> str | None:
    """Return the name of the run that a finished stage was booked under; None where its directory does not say."""
    timings = _timings(directory / TIMINGS_FILE)
    return None if timings is None else timings["run"]


def _timings(path: Path) -> Mapping[str, Any] | None:
    """Return the content of the file; None where it is missing, torn, or not of this kind."""
    try:
        document = loads_json(path.read_bytes())
        usd = document["cost_usd"]
        values = {name: float(document[name]) for name in ("finished_at", "seconds", "useful_seconds")}
        values["cost_usd"] = 0.0 if usd is None else float(usd)
        if not all(0 <= value <= MOST for value in values.values()):
            return None
        run = document.get("run")
        return values | {
            "cost_usd": None if usd is None else values["cost_usd"],
            "run": run if isinstance(run, str) else None,
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None


SHARDS_AT_ONCE = 500


def rebuild_sums(connection: Connection) -> None:
    """Write all sums anew. Calls count on the day of their last one: when they came to be known is not kept."""
    connection.execute(delete(spend_sums))
    for spend in _spend(connection):
        add_spend(connection, spend)


def refuse_wrong_sums(connection: Connection) -> None:
    """DataError when the kept sums are not those of their rows, which are all read.

    Days are left out: on which one a call came to be known is not kept.
    """
    by = DIMENSIONS[:-1]
    stored_sums = read_sums(connection, by=by)
    true: Spend = {}
    for spend in _spend(connection):
        true = added(true, *({key[:-1]: sums} for key, sums in spend.items()))
    wrong = [key for key in {*stored_sums, *true} if _plain(stored_sums.get(key, {})) != _plain(true.get(key, {}))]
    if wrong:
        where = connection.engine.url.render_as_string()
        raise damaged(where, f"its sums of run {min(wrong)[0]!a}, stage {min(wrong)[1]!a} are not those of its rows")


def _plain(sums: Mapping[str, int]) -> dict[str, int]:
    return {name: value for name, value in sums.items() if value}


def _spend(connection: Connection) -> Iterator[Spend]:
    for group in _groups(connection):
        yield spend_of_attempts(item for item in account(group) if item.attempt.outcome != "running")
    for item in read_usage(connection, run=None):
        yield spend_of_calls(item, day=day_of(item.route.last_at))
    for other in read_other(connection):
        yield spend_of_other(other)
    yield spend_of_stored(read_stored(connection))


def _groups(connection: Connection) -> Iterator[list[Attempt]]:
    """All attempts by shard of a stage, whole groups at a time."""
    order = (attempts.c.run, attempts.c.stage, attempts.c.shard, attempts.c.attempt_id)
    group: list[Attempt] = []
    shards = 0
    wanted = select(attempts).order_by(*order)
    result = connection.execute(wanted, execution_options={"stream_results": True})
    for row in result.mappings():
        if row["row_check"] != check_of(row):
            name = connection.engine.url.render_as_string()
            raise damaged(name, f"attempt {row['number']} of stage {row['stage']!a} does not match its check")
        attempt = Attempt(**{name: row[name] for name in ATTEMPT_FIELDS})
        new = not group or (group[-1].run, group[-1].stage, group[-1].shard) != (
            attempt.run, attempt.stage, attempt.shard,
        )  # fmt: skip
        if new and shards >= SHARDS_AT_ONCE:
            yield group
            group, shards = [], 0
        shards += new
        group.append(attempt)
    if group:
        yield group
