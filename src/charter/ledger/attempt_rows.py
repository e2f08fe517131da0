"""Reading the rows of attempts inside a transaction, and their checks. Imports SQLAlchemy: import it lazily."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from sqlalchemy import Connection, RowMapping, select, update

from charter.errors import UsageError
from charter.ledger.account import Accounted, account
from charter.ledger.attempt import Attempt
from charter.ledger.call import row_check
from charter.ledger.database import damaged
from charter.ledger.schema import IS_RUNNING, attempts

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
    """The newest attempts, oldest first; others at the same shards are read too, for what each has lost."""
    newest = read_attempts(connection, run=run, stage=stage, newest=limit)
    shards = dict.fromkeys((attempt.run, attempt.stage, attempt.shard) for attempt in newest)
    by_id: dict[int, Accounted] = {}
    for name, of_stage, shard in shards:
        same = account(read_shard(connection, run=name, stage=of_stage, shard=shard))
        by_id.update((item.attempt.attempt_id, item) for item in same)
    return tuple(by_id[attempt.attempt_id] for attempt in newest)


def read_shard(connection: Connection, *, run: str, stage: str, shard: int | None) -> tuple[Attempt, ...]:
    """The attempts at one shard of a stage, or at the stage as a whole."""
    wanted = select(attempts).where(attempts.c.run == run, attempts.c.stage == stage, attempts.c.shard == shard)
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
