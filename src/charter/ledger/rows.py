"""Writing attempts, with the charges and sums that follow, inside a transaction.

Imports SQLAlchemy: import it lazily.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, and_, bindparam, delete, func, insert, select, update

from charter.errors import UsageError
from charter.ledger.account import Accounted, account
from charter.ledger.attempt import Attempt, Reached, elapsed
from charter.ledger.focus import charge
from charter.ledger.imported import CONTENT_LENGTH, PREFIX, Change, ImportedAttempt
from charter.ledger.schema import attempts, charges, spend_sums
from charter.ledger.sum_rows import (
    add_spend,
    added,
    attempt_row,
    negative,
    read_attempts,
    read_shard,
    seal,
    spend_of_attempts,
)

UNSET = {"duration_milliseconds": 0, "tokens": 0, "pairs": 0, "episodes": 0, "records": 0, "note": ""}


@dataclass(frozen=True, kw_only=True)
class AttemptProgress:
    """Values of a heartbeat or an end; None leaves a value as it was."""

    at: float
    monotonic: float | None
    told: Reached

    def values(self) -> dict[str, Any]:
        """The values that were given, by column."""
        names = {"step": "last_step"}
        return {names.get(name, name): value for name, value in self.told.items() if value is not None}


def insert_attempt(connection: Connection, values: Mapping[str, Any]) -> int:
    """Add a running attempt; its number is the next one of its stage."""
    same_stage = (attempts.c.run == values["run"]) & (attempts.c.stage == values["stage"])
    last = connection.scalar(select(func.max(attempts.c.number)).where(same_stage)) or 0
    with settling(connection, run=values["run"], stage=values["stage"], shard=values["shard"]):
        row = {**UNSET, **values, "number": last + 1, "outcome": "running"}
        inserted = connection.execute(insert(attempts).values(row)).inserted_primary_key
        assert inserted is not None
        seal(connection, int(inserted[0]))
    return int(inserted[0])


def write_progress(connection: Connection, row: RowMapping, progress: AttemptProgress) -> int:
    """Bring a running attempt up to date; returns its duration in milliseconds."""
    milliseconds, clock = elapsed(
        started_at=row["started_at"],
        at=progress.at,
        started_monotonic=row["started_monotonic"],
        monotonic=progress.monotonic,
        so_far_milliseconds=row["duration_milliseconds"],
    )
    timing = {"last_heartbeat": progress.at, "duration_milliseconds": milliseconds, "clock": clock}
    _update(connection, row["attempt_id"], {**timing, **progress.values()})
    return milliseconds


def write_end(connection: Connection, row: RowMapping, *, milliseconds: int, outcome: str, note: str) -> None:
    """Close an attempt after `milliseconds` and write the charges that follow."""
    ended_at = row["started_at"] + milliseconds / 1000
    with settling(connection, run=row["run"], stage=row["stage"], shard=row["shard"]):
        _update(connection, row["attempt_id"], {"ended_at": ended_at, "outcome": outcome, "note": note})


def write_settled(connection: Connection, row: RowMapping, values: Mapping[str, Any]) -> None:
    """Put what somebody else has measured in the place of what an ended attempt said, and the charges that follow."""
    with settling(connection, run=row["run"], stage=row["stage"], shard=row["shard"]):
        new = {**row, **values}
        ended_at = new["started_at"] + new["duration_milliseconds"] / 1000
        _update(connection, row["attempt_id"], {**values, "ended_at": ended_at})


def _update(connection: Connection, attempt_id: int, values: Mapping[str, Any]) -> None:
    connection.execute(update(attempts).where(attempts.c.attempt_id == attempt_id).values(dict(values)))
    seal(connection, attempt_id)


@contextmanager
def settling(connection: Connection, *, run: str, stage: str, shard: int | None) -> Iterator[None]:
    """Bring charges and sums up to date with what is done inside to attempts at one shard of a stage.

    What an attempt lost is known when the next one begins, so that a change to one may change all before it. What is
    removed inside leaves the sums.
    """
    before = {item.attempt.attempt_id: item for item in _ended(connection, run, stage, shard)}
    yield
    after = {item.attempt.attempt_id: item for item in _ended(connection, run, stage, shard)}
    changed = [item for number, item in after.items() if before.get(number) != item]
    was = [item for number, item in before.items() if after.get(number) != item]
    write_charges(connection, changed)
    add_spend(connection, added(negative(spend_of_attempts(was)), spend_of_attempts(changed)))


def _ended(connection: Connection, run: str, stage: str, shard: int | None) -> list[Accounted]:
    accounted = account(read_shard(connection, run=run, stage=stage, shard=shard))
    return [item for item in accounted if item.attempt.outcome != "running"]


def write_charges(connection: Connection, accounted: Sequence[Accounted]) -> None:
    """Write the charges of ended attempts in the place of those there were."""
    if accounted:
        old = delete(charges).where(charges.c.x_AttemptId == bindparam("id"))
        connection.execute(old, [{"id": item.attempt.attempt_id} for item in accounted])
        connection.execute(insert(charges), [charge(item) for item in accounted])


KEPT = ("run", "stage", "kind", "fingerprint")
"""What an attempt was imported as stays when it is imported again."""


def write_imported(connection: Connection, imported: Sequence[ImportedAttempt]) -> tuple[Change, ...]:
    """Add attempts, or bring those that are there under their keys up to date."""
    return tuple(_write(connection, item) for item in imported)


def read_imported(connection: Connection, *, run: str | None) -> tuple[Attempt, ...]:
    """The attempts of a run (None: of all) that were imported, in the order they were added."""
    ids = connection.execute(select(attempts.c.attempt_id).where(_is_imported(run))).scalars().all()
    return read_attempts(connection, run=run, ids=ids) if ids else ()


def remove_imported(connection: Connection, *, run: str, import_id: str) -> int:
    """Remove the attempts of one import with all that follows from them; how many there were.

    Rows that Charter's own attempts wrote are never among them. They are locked first: of two that remove the same
    import at once, one finds nothing.
    """
    same = _is_imported(run) & attempts.c.job_id.startswith(f"{PREFIX}{import_id}:", autoescape=True)
    imported = connection.execute(select(attempts.c.attempt_id, attempts.c.stage).where(same).with_for_update()).all()
    for stage in sorted({row.stage for row in imported}):
        ids = [row.attempt_id for row in imported if row.stage == stage]
        with settling(connection, run=run, stage=stage, shard=None):
            connection.execute(delete(charges).where(charges.c.x_AttemptId.in_(ids)))
            connection.execute(delete(attempts).where(attempts.c.attempt_id.in_(ids)))
        _remove_empty_sums(connection, run=run, stage=stage)
    return len(imported)


def _remove_empty_sums(connection: Connection, *, run: str, stage: str) -> None:
    """Remove sums that are zero now, as making all of them anew would."""
    empty = [column == 0 for column in spend_sums.columns if not column.primary_key]
    connection.execute(delete(spend_sums).where(spend_sums.c.run == run, spend_sums.c.stage == stage, *empty))


def _is_imported(run: str | None) -> ColumnElement[bool]:
    """Both marks of an imported attempt: a scheduler's job may have any name."""
    marks = (attempts.c.clock == "imported", attempts.c.job_id.startswith(PREFIX))
    return and_(*marks) if run is None else and_(attempts.c.run == run, *marks)


def _write(connection: Connection, item: ImportedAttempt) -> Change:
    row = _known(connection, item)
    values = _values(item)
    if row is not None:
        new = {name: value for name, value in values.items() if name not in KEPT and value not in (None, row[name])}
        if not set(new) - {"note"} and _content(item) in row["note"]:
            return "known"
        write_settled(connection, row, new)
        return "updated"
    begun = {**values, "duration_milliseconds": 0, "started_monotonic": None, "shard": None, "host": "", "pid": 0}
    attempt_id = insert_attempt(connection, begun)
    write_settled(connection, attempt_row(connection, attempt_id), values)
    return "added"


def _known(connection: Connection, item: ImportedAttempt) -> RowMapping | None:
    same = (attempts.c.run == item.run) & (attempts.c.job_id == item.job_id)
    attempt_id = connection.execute(select(attempts.c.attempt_id).where(same)).scalar_one_or_none()
    row = None if attempt_id is None else attempt_row(connection, attempt_id)
    if row is not None and row["stage"] != item.stage:
        raise UsageError(
            f"asked to import it as stage {item.stage}, but it is in the ledger as attempt {row['number']} of stage "
            f"{row['stage']}; what is imported twice would be counted twice"
        )
    return row


def _values(item: ImportedAttempt) -> dict[str, Any]:
    """The columns of an attempt that has ended."""
    values = asdict(item)
    del values["key"], values["content"]
    note = f"{values['note']}; {_content(item)}".removeprefix("; ")
    return {
        **values,
        "note": note,
        "job_id": item.job_id,
        "clock": "imported",
        "last_heartbeat": item.started_at + item.duration_milliseconds / 1000,
        "kept_step": item.last_step,
    }


def _content(item: ImportedAttempt) -> str:
    """Return the note of an attempt's origin; the same content at another place changes nothing."""
    return f"sha256 {item.content[:CONTENT_LENGTH]}"
