"""Rows of attempts and the sums over them, inside a transaction: no page ever adds up a million rows.

Imports SQLAlchemy: import it lazily.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from functools import cache
from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, bindparam, func, select, update
from sqlalchemy.dialects import postgresql, sqlite

from charter.errors import UsageError
from charter.ledger.account import TOTALLED, Accounted, account, by_day, totals_of_one
from charter.ledger.attempt import Attempt
from charter.ledger.call import row_check
from charter.ledger.database import damaged
from charter.ledger.focus import ApiUsage
from charter.ledger.schema import IS_RUNNING, attempts, spend_sums, spending_claims
from charter.ledger.sums import APPLICATION_ID, CALL_SUMS, DIMENSIONS, SUMMED, Claim, check_of_sums

ATTEMPT_FIELDS = tuple(field.name for field in fields(Attempt))
CHECKED = tuple(column.name for column in attempts.columns if column.name != "row_check")


def attempt_row(connection: Connection, attempt_id: int) -> RowMapping:
    """The row of an attempt; UsageError when there is none."""
    wanted = select(attempts).where(attempts.c.attempt_id == attempt_id)
    row = connection.execute(wanted).mappings().one_or_none()
    if row is None:
        raise UsageError(f"the ledger has no attempt {attempt_id}")
    _refuse_changed(connection, row)
    return row


def running_row(connection: Connection, attempt_id: int) -> RowMapping:
    """The row of an attempt that has not ended; UsageError for any other."""
    row = attempt_row(connection, attempt_id)
    if row["outcome"] != "running":
        raise UsageError(f"attempt {attempt_id} of stage {row['stage']} has already ended: {row['outcome']}")
    return row


def running_rows(connection: Connection, *, run: str | None) -> tuple[RowMapping, ...]:
    """The rows of all attempts that have not ended, in the order they were begun.

    Those of all runs are read: they are few, and only so does SQLite take the index that has nothing else.
    """
    rows = connection.execute(select(attempts).where(IS_RUNNING)).mappings().all()
    running = sorted((row for row in rows if run is None or row["run"] == run), key=lambda row: row["attempt_id"])
    for row in running:
        _refuse_changed(connection, row)
    return tuple(running)


def read_attempts(
    connection: Connection,
    *,
    run: str | None = None,
    stage: str | None = None,
    ids: Sequence[int] | None = None,
    newest: int | None = None,
) -> tuple[Attempt, ...]:
    """Attempts in the order they were begun; the `newest` so many, or those with some ids, when asked."""
    of_stage = run is not None and stage is not None
    # Both are the same order where both work; each has an index that the newest are read from, without sorting all.
    back = attempts.c.number.desc() if of_stage else attempts.c.attempt_id.desc()
    wanted = select(attempts).order_by(attempts.c.attempt_id if newest is None else back)
    if run is not None:
        wanted = wanted.where(attempts.c.run == run)
    if stage is not None:
        wanted = wanted.where(attempts.c.stage == stage)
    if ids is not None:
        wanted = wanted.where(attempts.c.attempt_id.in_(ids))
    if newest is not None:
        wanted = wanted.limit(newest)
    attempts_read = tuple(_attempt(connection, row) for row in connection.execute(wanted).mappings())
    return attempts_read if newest is None else attempts_read[::-1]


def read_running(connection: Connection, *, run: str | None) -> tuple[Attempt, ...]:
    """The attempts that have not ended."""
    return tuple(_attempt(connection, row) for row in running_rows(connection, run=run))


def read_recent(connection: Connection, *, run: str | None, stage: str | None, limit: int) -> tuple[Accounted, ...]:
    """The newest attempts, oldest first; later ones at the same shards are read too, for what each has lost."""
    # Only the attempts at a stage of one run have an index that the newest are read from.
    runs = (run,) if run is not None or stage is None else _runs(connection)
    of_runs = [item for each in runs for item in read_attempts(connection, run=each, stage=stage, newest=limit)]
    newest = sorted(of_runs, key=lambda attempt: attempt.attempt_id)[-limit:]
    first_ids: dict[tuple[str, str, int | None], int] = {}
    for attempt in newest:
        first_ids.setdefault((attempt.run, attempt.stage, attempt.shard), attempt.attempt_id)
    by_id: dict[int, Accounted] = {}
    for (name, of_stage, shard), first_id in first_ids.items():
        same = account(read_shard(connection, run=name, stage=of_stage, shard=shard, first_id=first_id))
        by_id.update((item.attempt.attempt_id, item) for item in same)
    return tuple(by_id[attempt.attempt_id] for attempt in newest)


def _runs(connection: Connection) -> tuple[str, ...]:
    """The runs of a ledger, from its sums and what runs: attempts may be a million."""
    ended = connection.execute(select(spend_sums.c.run).distinct()).scalars()
    return tuple(dict.fromkeys([*ended, *(row["run"] for row in running_rows(connection, run=None))]))


def read_shard(
    connection: Connection, *, run: str, stage: str, shard: int | None, first_id: int = 0
) -> tuple[Attempt, ...]:
    """The attempts at one shard of a stage, or at the stage as a whole, from one on."""
    wanted = select(attempts).where(attempts.c.run == run, attempts.c.stage == stage, attempts.c.shard == shard)
    wanted = wanted.where(attempts.c.attempt_id >= first_id)
    rows = connection.execute(wanted.order_by(attempts.c.attempt_id)).mappings()
    return tuple(_attempt(connection, row) for row in rows)


def seal(connection: Connection, attempt_id: int) -> None:
    """Write the check of an attempt's row, after the row."""
    row = connection.execute(select(attempts).where(attempts.c.attempt_id == attempt_id)).mappings().one()
    sealed = update(attempts).where(attempts.c.attempt_id == row["attempt_id"])
    connection.execute(sealed.values(row_check=check_of(row)))


def check_of(row: RowMapping | Mapping[str, Any]) -> int:
    """Return the check of an attempt's row."""
    return row_check(tuple(row[name] for name in CHECKED))


def _attempt(connection: Connection, row: RowMapping) -> Attempt:
    _refuse_changed(connection, row)
    return Attempt(**{name: row[name] for name in ATTEMPT_FIELDS})


def _refuse_changed(connection: Connection, row: RowMapping) -> None:
    if row["row_check"] != check_of(row):
        name = connection.engine.url.render_as_string()
        raise damaged(name, f"attempt {row['number']} of stage {row['stage']!a} does not match its check")


Key = tuple[str, ...]
"""Values of `DIMENSIONS`."""
Spend = dict[Key, dict[str, int]]
"""Sums by key; what is not named is zero."""
ROWS_AT_ONCE = 500


def spend_of_attempts(accounted: Iterable[Accounted]) -> Spend:
    """Return the spend of attempts by all dimensions."""
    spend: Spend = defaultdict(lambda: defaultdict(int))
    for item in accounted:
        it = item.attempt
        days = by_day(totals_of_one(item), started_at=it.started_at, milliseconds=it.duration_milliseconds)
        for day, part in days:
            where = (it.accelerator, it.infra, it.market, it.outcome, day)
            sums = spend[(it.run, it.stage, it.fingerprint, it.owner or "", it.tags, *where)]
            for name in TOTALLED:
                sums[name] += getattr(part, name)
    return spend


def spend_of_calls(item: ApiUsage, *, day: str, sign: int = 1) -> Spend:
    """Return the spend of the calls to one server; `sign` -1 takes them off again."""
    key = (item.run, item.stage, item.fingerprint, item.owner or "", item.tags, "", item.host, "api", "", day)
    sums = item.route.sums
    return {key: {name: sign * getattr(sums, name.removeprefix("calls_")) for name in CALL_SUMS}}


def added(*parts: Mapping[Key, Mapping[str, int]]) -> Spend:
    """Spend put together."""
    spend: Spend = defaultdict(lambda: defaultdict(int))
    for part in parts:
        for key, sums in part.items():
            for name, value in sums.items():
                spend[key][name] += value
    return spend


def negative(spend: Spend) -> Spend:
    """The same with the other sign, to take it off."""
    return {key: {name: -value for name, value in sums.items()} for key, sums in spend.items()}


def add_spend(connection: Connection, spend: Spend) -> None:
    """Add to the sums; two connections that add at once both count."""
    rows = []
    for key, sums in sorted(spend.items()):
        if any(sums.values()):
            values = {name: sums.get(name, 0) for name in SUMMED}
            rows.append({**dict(zip(DIMENSIONS, key, strict=True)), **values, "sum_check": check_of_sums(values)})
    for start in range(0, len(rows), ROWS_AT_ONCE):
        connection.execute(_upsert(connection.dialect.name), rows[start : start + ROWS_AT_ONCE])


@cache
def _upsert(dialect: str) -> sqlite.Insert | postgresql.Insert:
    statement = (sqlite.insert if dialect == "sqlite" else postgresql.insert)(spend_sums)
    statement = statement.values({column.name: bindparam(column.name) for column in spend_sums.columns})
    more = {name: spend_sums.c[name] + statement.excluded[name] for name in (*SUMMED, "sum_check")}
    return statement.on_conflict_do_update(index_elements=list(DIMENSIONS), set_=more)


def read_sums(
    connection: Connection,
    *,
    by: Sequence[str] = (),
    equal: Mapping[str, str] | None = None,
    since: str | None = None,
    until: str | None = None,
    with_running: bool = False,
) -> Spend:
    """The sums of what has ended, grouped by some dimensions; DataError when they do not match their check.

    `since` and `until` are days, both included. `with_running` adds running attempts up to their last heartbeat.
    """
    ended = _ended_sums(connection, by, equal or {}, since, until)
    if not with_running:
        return ended
    running = spend_of_attempts(account(read_running(connection, run=(equal or {}).get("run"))))
    return added(ended, _narrowed(running, by, equal or {}, since, until))


def _narrowed(spend: Spend, by: Sequence[str], equal: Mapping[str, str], since: str | None, until: str | None) -> Spend:
    """Spend by all dimensions as spend by some, of the keys that are asked for."""
    parts = []
    for key, sums in spend.items():
        values = dict(zip(DIMENSIONS, key, strict=True))
        inside = (since or "") <= values["day"] and (until is None or values["day"] <= until)
        if inside and all(values[name] == value for name, value in equal.items()):
            parts.append({tuple(values[name] for name in by): sums})
    return added(*parts)


def _ended_sums(
    connection: Connection, by: Sequence[str], equal: Mapping[str, str], since: str | None, until: str | None
) -> Spend:
    columns = [spend_sums.c[name] for name in by]
    wanted = select(*columns, *(func.sum(spend_sums.c[name]) for name in (*SUMMED, "sum_check"))).group_by(*columns)
    wanted = wanted.where(*_conditions(equal, since, until))
    spend: Spend = {}
    for row in connection.execute(wanted):
        values = [int(value or 0) for value in row[len(by) :]]
        sums = dict(zip(SUMMED, values, strict=False))
        if check_of_sums(sums) != values[-1]:
            raise damaged(connection.engine.url.render_as_string(), "the sums by day do not match their check")
        if any(sums.values()):  # what was taken off again leaves a row of zeros, which says nothing
            spend[tuple(row[: len(by)])] = sums
    return spend


def _conditions(equal: Mapping[str, str], since: str | None, until: str | None) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = [spend_sums.c[name] == value for name, value in equal.items()]
    if since is not None:
        conditions.append(spend_sums.c.day >= since)
    if until is not None:
        conditions.append(spend_sums.c.day <= until)
    return conditions


CLAIMS_LOCK = APPLICATION_ID + 1
CLAIM_SECONDS = 60.0
"""A claim that was not renewed for this long is of a run that is gone; supervisors renew theirs every two seconds."""


def claims_of_others(connection: Connection, *, run: str, now: float) -> tuple[Claim, ...] | None:
    """Hold all claims until the transaction ends, and return those of other runs; None where somebody else holds them.

    A database of before there were claims gets their table.
    """
    if not connection.scalar(select(func.pg_try_advisory_xact_lock(CLAIMS_LOCK))):
        return None
    spending_claims.create(connection, checkfirst=True)
    table = spending_claims
    rows = connection.execute(select(table).where(table.c.run != run, table.c.at > now - CLAIM_SECONDS)).mappings()
    return tuple(
        Claim(run=row["run"], owner=row["owner"], tags=row["tags"], micro_usd=row["micro_usd"]) for row in rows
    )


def put_claim(connection: Connection, claim: Claim, *, now: float, is_asking: bool) -> None:
    """Write the claim of a run in the place of its last; that of a run which asks no more is taken away."""
    connection.execute(spending_claims.delete().where(spending_claims.c.run == claim.run))
    if is_asking:
        connection.execute(spending_claims.insert().values(**asdict(claim), at=now))
