"""Writing, reading and removing imported attempts inside a transaction. Imports SQLAlchemy: import it lazily."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, and_, delete, select

from charter.errors import UsageError
from charter.ledger.attempt import Attempt
from charter.ledger.attempt_rows import attempt_row, read_attempts
from charter.ledger.imported import CONTENT_LENGTH, PREFIX, Change, ImportedAttempt
from charter.ledger.rows import insert_attempt, settling, write_settled
from charter.ledger.schema import attempts, charges, spend_sums

KEPT = ("run", "stage", "kind", "fingerprint")
"""What an attempt was imported as stays when it is imported again."""


def write_imported(connection: Connection, imported: Sequence[ImportedAttempt]) -> tuple[Change, ...]:
    """Add attempts, or bring those that are there under their keys up to date."""
    return tuple(_write(connection, item) for item in imported)


def read_imported(connection: Connection, *, run: str) -> tuple[Attempt, ...]:
    """The attempts of a run that were imported, in the order they were added."""
    ids = connection.execute(select(attempts.c.attempt_id).where(_is_imported(run))).scalars().all()
    return read_attempts(connection, run=run, ids=ids) if ids else ()


def remove_imported(connection: Connection, *, run: str, import_id: str) -> int:
    """Remove the attempts of one import with all that follows from them; how many there were.

    Rows that Charter's own attempts wrote are never among them. They are locked first: of two that remove the same
    import at once, one finds nothing.
    """
    same = _is_imported(run) & attempts.c.job_id.startswith(f"{PREFIX}{import_id}:", autoescape=True)
    found = connection.execute(select(attempts.c.attempt_id, attempts.c.stage).where(same).with_for_update()).all()
    for stage in sorted({row.stage for row in found}):
        ids = [row.attempt_id for row in found if row.stage == stage]
        with settling(connection, run=run, stage=stage, shard=None):
            connection.execute(delete(charges).where(charges.c.x_AttemptId.in_(ids)))
            connection.execute(delete(attempts).where(attempts.c.attempt_id.in_(ids)))
        _remove_empty_sums(connection, run=run, stage=stage)
    return len(found)


def _remove_empty_sums(connection: Connection, *, run: str, stage: str) -> None:
    """Remove sums that are zero now, as making all of them anew would."""
    empty = [column == 0 for column in spend_sums.columns if not column.primary_key]
    connection.execute(delete(spend_sums).where(spend_sums.c.run == run, spend_sums.c.stage == stage, *empty))


def _is_imported(run: str) -> ColumnElement[bool]:
    """Both marks of an imported attempt: an engine's job may have any name."""
    return and_(attempts.c.run == run, attempts.c.clock == "imported", attempts.c.job_id.startswith(PREFIX))


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
    found = connection.execute(select(attempts.c.attempt_id).where(same)).scalar_one_or_none()
    row = None if found is None else attempt_row(connection, found)
    if row is not None and row["stage"] != item.stage:
        raise UsageError(
            f"asked to import it as stage {item.stage}, but it is in the ledger as attempt {row['number']} of stage "
            f"{row['stage']}; what is imported twice would be counted twice"
        )
    return row


def _values(item: ImportedAttempt) -> dict[str, Any]:
    """The columns of an attempt that has ended."""
    told = asdict(item)
    del told["key"], told["content"]
    note = f"{told['note']}; {_content(item)}".removeprefix("; ")
    return {
        **told,
        "note": note,
        "job_id": item.job_id,
        "clock": "imported",
        "last_heartbeat": item.started_at + item.duration_milliseconds / 1000,
        "kept_step": item.last_step,
    }


def _content(item: ImportedAttempt) -> str:
    """How a note says what an attempt was read from; the same content at another place changes nothing."""
    return f"sha256 {item.content[:CONTENT_LENGTH]}"
