"""What follows from the rows of the ledger, made anew: checks, charges, sums. Imports SQLAlchemy: import it lazily."""

from collections.abc import Iterator, Mapping

from sqlalchemy import Connection, RowMapping, delete, select

from charter.ledger.account import account
from charter.ledger.attempt import Attempt
from charter.ledger.attempt_rows import ATTEMPT_FIELDS, check_of, seal_rows
from charter.ledger.database import damaged
from charter.ledger.days import day_of
from charter.ledger.other_rows import read_other, spend_of_other
from charter.ledger.rows import write_charges
from charter.ledger.schema import attempts, charges
from charter.ledger.stored_rows import read_stored, spend_of_stored
from charter.ledger.sum_names import DIMENSIONS
from charter.ledger.sum_rows import Spend, add_spend, added, read_sums, spend_of_attempts, spend_of_calls
from charter.ledger.sum_tables import spend_sums
from charter.ledger.usage_rows import read_usage

CHECKED_BEFORE_4 = (
    "attempt_id", "run", "stage", "kind", "number", "fingerprint", "accelerator", "count", "infra", "market",
    "started_at", "started_monotonic", "ended_at", "duration_milliseconds", "clock", "last_heartbeat", "first_step",
    "last_step", "kept_step", "outcome", "tokens", "pairs", "episodes", "records", "price_micro_usd_per_hour",
    "price_source", "price_as_of", "host", "pid", "note",
)  # fmt: skip
ROWS_AT_ONCE = 2_000
SHARDS_AT_ONCE = 500


def check_attempts_of_3(connection: Connection) -> None:
    """Compare the rows of version 3 with their checks before they get new ones; those of older versions have none."""
    names = ", ".join(f'"{name}"' for name in (*CHECKED_BEFORE_4, "row_check"))
    for row in connection.exec_driver_sql(f"SELECT {names} FROM attempts").mappings():
        if row["row_check"] is not None and row["row_check"] != check_of(row, CHECKED_BEFORE_4):
            name = connection.engine.url.render_as_string()
            raise damaged(name, f"attempt {row['number']} of stage {row['stage']!a} does not match its check")


def rebuild(connection: Connection) -> None:
    """Write the checks of attempts, and all charges and sums, anew from the rows that they follow from."""
    connection.execute(delete(charges))
    for rows in _chunks(connection):
        seal_rows(connection, rows)
    for group in _groups(connection):
        ended = [item for item in account(group) if item.attempt.outcome != "running"]
        write_charges(connection, ended)
    rebuild_sums(connection)


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
    kept = read_sums(connection, by=by)
    true: Spend = {}
    for spend in _spend(connection):
        true = added(true, *({key[:-1]: sums} for key, sums in spend.items()))
    wrong = [key for key in {*kept, *true} if _plain(kept.get(key, {})) != _plain(true.get(key, {}))]
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


def _chunks(connection: Connection) -> Iterator[list[RowMapping]]:
    """All attempts, some at a time."""
    last = -1
    wanted = select(attempts).order_by(attempts.c.attempt_id).limit(ROWS_AT_ONCE)
    while rows := list(connection.execute(wanted.where(attempts.c.attempt_id > last)).mappings()):
        yield rows
        last = rows[-1]["attempt_id"]


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
