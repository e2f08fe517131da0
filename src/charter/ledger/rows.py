"""Reading and writing the ledger's rows inside a transaction. Imports SQLAlchemy: import it lazily."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from sqlalchemy import Connection, RowMapping, delete, func, insert, select, update

from charter.errors import UsageError
from charter.ledger.account import account
from charter.ledger.attempt import Attempt, elapsed
from charter.ledger.call import row_check
from charter.ledger.database import damaged
from charter.ledger.focus import charge
from charter.ledger.schema import attempts, charges

ATTEMPT_FIELDS = tuple(field.name for field in fields(Attempt))
CHECKED = tuple(column.name for column in attempts.columns if column.name != "row_check")


@dataclass(frozen=True, kw_only=True)
class Progress:
    """What a heartbeat or an end says; None leaves a value as it was."""

    at: float
    monotonic: float | None
    last_step: int | None
    kept_step: int | None
    tokens: int | None
    pairs: int | None
    episodes: int | None
    records: int | None

    def told(self) -> dict[str, int]:
        """The values that were given."""
        names = ("last_step", "kept_step", "tokens", "pairs", "episodes", "records")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


def insert_attempt(connection: Connection, values: Mapping[str, Any]) -> int:
    """Add a running attempt; its number is the next one of its stage."""
    same_stage = (attempts.c.run == values["run"]) & (attempts.c.stage == values["stage"])
    last = connection.scalar(select(func.max(attempts.c.number)).where(same_stage)) or 0
    unset = {"duration_milliseconds": 0, "tokens": 0, "pairs": 0, "episodes": 0, "records": 0, "note": ""}
    row = {**unset, **values, "number": last + 1, "outcome": "running"}
    inserted = connection.execute(insert(attempts).values(row)).inserted_primary_key
    assert inserted is not None
    seal(connection, int(inserted[0]))
    settle_stage(connection, run=values["run"], stage=values["stage"])
    return int(inserted[0])


def running_row(connection: Connection, attempt_id: int) -> RowMapping:
    """The row of an attempt that has not ended; UsageError for any other."""
    wanted = select(attempts).where(attempts.c.attempt_id == attempt_id)
    row = connection.execute(wanted).mappings().one_or_none()
    if row is None:
        raise UsageError(f"the ledger has no attempt {attempt_id}")
    _refuse_changed(connection, row)
    if row["outcome"] != "running":
        raise UsageError(f"attempt {attempt_id} of stage {row['stage']} has already ended: {row['outcome']}")
    return row


def running_rows(connection: Connection, *, run: str | None) -> tuple[RowMapping, ...]:
    """The rows of all attempts that have not ended."""
    wanted = select(attempts).where(attempts.c.outcome == "running").order_by(attempts.c.attempt_id)
    if run is not None:
        wanted = wanted.where(attempts.c.run == run)
    found = tuple(connection.execute(wanted).mappings().all())
    for row in found:
        _refuse_changed(connection, row)
    return found


def write_progress(connection: Connection, row: RowMapping, progress: Progress) -> int:
    """Bring a running attempt up to date; returns its duration in milliseconds."""
    milliseconds, clock = elapsed(
        started_at=row["started_at"],
        at=progress.at,
        started_monotonic=row["started_monotonic"],
        monotonic=progress.monotonic,
        so_far_milliseconds=row["duration_milliseconds"],
    )
    timing = {"last_heartbeat": progress.at, "duration_milliseconds": milliseconds, "clock": clock}
    _update(connection, row["attempt_id"], {**timing, **progress.told()})
    return milliseconds


def write_end(connection: Connection, row: RowMapping, *, milliseconds: int, outcome: str, note: str) -> None:
    """Close an attempt after `milliseconds` and write the charges of its stage."""
    ended_at = row["started_at"] + milliseconds / 1000
    _update(connection, row["attempt_id"], {"ended_at": ended_at, "outcome": outcome, "note": note})
    settle_stage(connection, run=row["run"], stage=row["stage"])


def read_attempts(connection: Connection, *, run: str | None, stage: str | None) -> tuple[Attempt, ...]:
    """Attempts in the order they were begun."""
    wanted = select(attempts).order_by(attempts.c.attempt_id)
    if run is not None:
        wanted = wanted.where(attempts.c.run == run)
    if stage is not None:
        wanted = wanted.where(attempts.c.stage == stage)
    found = []
    for row in connection.execute(wanted).mappings():
        _refuse_changed(connection, row)
        found.append(Attempt(**{name: row[name] for name in ATTEMPT_FIELDS}))
    return tuple(found)


def seal(connection: Connection, attempt_id: int) -> None:
    """Write the check of an attempt's row, after the row."""
    row = connection.execute(select(attempts).where(attempts.c.attempt_id == attempt_id)).mappings().one()
    sealed = update(attempts).where(attempts.c.attempt_id == attempt_id).values(row_check=_check_of(row))
    connection.execute(sealed)


def seal_all(connection: Connection) -> None:
    """Write the check of every attempt: rows of an older schema have none."""
    for (attempt_id,) in connection.execute(select(attempts.c.attempt_id)).all():
        seal(connection, attempt_id)


def _check_of(row: RowMapping) -> int:
    return row_check(tuple(row[name] for name in CHECKED))


def _refuse_changed(connection: Connection, row: RowMapping) -> None:
    if row["row_check"] != _check_of(row):
        name = connection.engine.url.render_as_string()
        raise damaged(name, f"attempt {row['number']} of stage {row['stage']!a} does not match its check")


def _update(connection: Connection, attempt_id: int, values: Mapping[str, Any]) -> None:
    connection.execute(update(attempts).where(attempts.c.attempt_id == attempt_id).values(dict(values)))
    seal(connection, attempt_id)


def settle_stage(connection: Connection, *, run: str, stage: str) -> None:
    """Write the charges of one stage anew: what an attempt lost is known when the next one begins."""
    accounted = account(read_attempts(connection, run=run, stage=stage))
    ended = [charge(item) for item in accounted if item.attempt.outcome != "running"]
    if ended:
        old = [row["x_AttemptId"] for row in ended]
        connection.execute(delete(charges).where(charges.c.x_AttemptId.in_(old)))
        connection.execute(insert(charges), ended)


def settle_all(connection: Connection) -> None:
    """Write all charges anew: they follow from the attempts."""
    for run, stage in connection.execute(select(attempts.c.run, attempts.c.stage).distinct()).all():
        settle_stage(connection, run=run, stage=stage)
