"""Reading and writing the ledger's rows inside a transaction. Imports SQLAlchemy: import it lazily."""

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, RowMapping, delete, func, insert, select, update
from sqlalchemy.exc import DatabaseError

from charter.errors import DataError, UsageError
from charter.ledger.account import account
from charter.ledger.attempt import Attempt, elapsed
from charter.ledger.focus import charge
from charter.ledger.schema import APPLICATION_ID, SCHEMA_VERSION, attempts, charges, metadata

ATTEMPT_FIELDS = tuple(field.name for field in fields(Attempt))


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


@contextmanager
def transaction(engine: Engine, path: Path, *, reading: bool = False) -> Iterator[Connection]:
    """One transaction; a lock held by others for too long, or a damaged file, becomes a DataError."""
    try:
        with engine.connect() as connection:
            connection = connection.execution_options(charter_reading=reading)
            with connection.begin():
                yield connection
    except (DatabaseError, sqlite3.DatabaseError) as error:
        raise _explained(path, error) from error


def prepare(connection: Connection, path: Path) -> None:
    """Check the file (quick_check, application, schema version) and make the tables if it is new."""
    version = int(connection.exec_driver_sql("PRAGMA user_version").scalar_one())
    application = int(connection.exec_driver_sql("PRAGMA application_id").scalar_one())
    has_tables = bool(connection.exec_driver_sql("SELECT count(*) FROM sqlite_master").scalar_one())
    if has_tables and application != APPLICATION_ID:
        raise DataError(f"{path} is a SQLite file but not a Charter ledger; move it away and run again")
    if version > SCHEMA_VERSION:
        raise DataError(
            f"{path} was written by a newer Charter (ledger schema {version}); this one knows schema "
            f"{SCHEMA_VERSION}. Install the newer Charter; nothing was changed"
        )
    check = str(connection.exec_driver_sql("PRAGMA quick_check(1)").scalar_one())
    if check != "ok":
        raise DataError(_damaged(path, check))
    if version < SCHEMA_VERSION:
        if has_tables:
            _move_aside(connection)
        metadata.create_all(connection)
        if has_tables:
            _take_over(connection)
        connection.exec_driver_sql(f"PRAGMA application_id={APPLICATION_ID}")
        connection.exec_driver_sql(f"PRAGMA user_version={SCHEMA_VERSION}")


def _move_aside(connection: Connection) -> None:
    """Before an older file gets the present tables; charges follow from attempts and are written anew."""
    connection.exec_driver_sql("DROP TABLE IF EXISTS charges")
    connection.exec_driver_sql("ALTER TABLE attempts RENAME TO attempts_before")


def _take_over(connection: Connection) -> None:
    columns = ", ".join(column.name for column in attempts.columns)
    connection.exec_driver_sql(f"INSERT INTO attempts ({columns}) SELECT {columns} FROM attempts_before")
    connection.exec_driver_sql("DROP TABLE attempts_before")
    for run, stage in connection.execute(select(attempts.c.run, attempts.c.stage).distinct()).all():
        _settle(connection, run=run, stage=stage)


def insert_attempt(connection: Connection, values: Mapping[str, Any]) -> int:
    """Add a running attempt; its number is the next one of its stage."""
    same_stage = (attempts.c.run == values["run"]) & (attempts.c.stage == values["stage"])
    last = connection.scalar(select(func.max(attempts.c.number)).where(same_stage)) or 0
    unset = {"duration_milliseconds": 0, "tokens": 0, "pairs": 0, "episodes": 0, "records": 0, "note": ""}
    row = {**unset, **values, "number": last + 1, "outcome": "running"}
    inserted = connection.execute(insert(attempts).values(row)).inserted_primary_key
    assert inserted is not None
    _settle(connection, run=values["run"], stage=values["stage"])
    return int(inserted[0])


def running_row(connection: Connection, attempt_id: int) -> RowMapping:
    """The row of an attempt that has not ended; UsageError for any other."""
    wanted = select(attempts).where(attempts.c.attempt_id == attempt_id)
    row = connection.execute(wanted).mappings().one_or_none()
    if row is None:
        raise UsageError(f"the ledger has no attempt {attempt_id}")
    if row["outcome"] != "running":
        raise UsageError(f"attempt {attempt_id} of stage {row['stage']} has already ended: {row['outcome']}")
    return row


def running_rows(connection: Connection, *, run: str | None) -> tuple[RowMapping, ...]:
    """The rows of all attempts that have not ended."""
    wanted = select(attempts).where(attempts.c.outcome == "running").order_by(attempts.c.attempt_id)
    if run is not None:
        wanted = wanted.where(attempts.c.run == run)
    return tuple(connection.execute(wanted).mappings().all())


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
    _settle(connection, run=row["run"], stage=row["stage"])


def read_attempts(connection: Connection, *, run: str | None, stage: str | None) -> tuple[Attempt, ...]:
    """Attempts in the order they were begun."""
    wanted = select(attempts).order_by(attempts.c.attempt_id)
    if run is not None:
        wanted = wanted.where(attempts.c.run == run)
    if stage is not None:
        wanted = wanted.where(attempts.c.stage == stage)
    rows = connection.execute(wanted).mappings()
    return tuple(Attempt(**{name: row[name] for name in ATTEMPT_FIELDS}) for row in rows)


def _update(connection: Connection, attempt_id: int, values: Mapping[str, Any]) -> None:
    connection.execute(update(attempts).where(attempts.c.attempt_id == attempt_id).values(dict(values)))


def _settle(connection: Connection, *, run: str, stage: str) -> None:
    """Write the charges of one stage anew: what an attempt lost is known when the next one begins."""
    accounted = account(read_attempts(connection, run=run, stage=stage))
    ended = [charge(item) for item in accounted if item.attempt.outcome != "running"]
    if ended:
        old = [row["x_AttemptId"] for row in ended]
        connection.execute(delete(charges).where(charges.c.x_AttemptId.in_(old)))
        connection.execute(insert(charges), ended)


def _explained(path: Path, error: Exception) -> Exception:
    why = str(getattr(error, "orig", error))
    if "locked" in why or "busy" in why:
        return DataError(
            f"the ledger {path} has been locked by another process for 10 s; "
            "close the program that holds it (an open SQLite browser, say) and run again"
        )
    if "malformed" in why or "not a database" in why or "corrupt" in why:
        return DataError(_damaged(path, why))
    if "full" in why or "disk I/O" in why:
        return DataError(f"the ledger {path} could not be written ({why}); free some space and run again")
    if "unable to open" in why or "readonly" in why:
        return DataError(f"the ledger {path} cannot be opened for writing ({why}); check its permissions")
    return error


def _damaged(path: Path, why: str) -> str:
    return (
        f"the ledger {path} is damaged ({why}). Nothing was changed. Restore a copy, or move it away and run "
        "again: stages that are done stay done, only the record of their cost is gone"
    )
