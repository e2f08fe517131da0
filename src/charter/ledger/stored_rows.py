"""Reading and writing samples of what is stored inside a transaction. Imports SQLAlchemy: import it lazily."""

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields

from sqlalchemy import Connection, insert, select

from charter.ledger.database import damaged
from charter.ledger.days import MILLISECONDS_PER_SECOND, day_of
from charter.ledger.schema_version import APPLICATION_ID
from charter.ledger.stored import StoredSample, by_place, next_day, pieces
from charter.ledger.sum_rows import Spend, add_spend, added, negative
from charter.ledger.sum_tables import stored_samples as table

FIELDS = tuple(field.name for field in fields(StoredSample))


def write_stored(connection: Connection, samples: Sequence[StoredSample]) -> None:
    """Add the samples that are not there yet; the sums follow. Doing it twice changes nothing."""
    for (run, place), new in by_place(samples).items():
        _lock(connection, run, place)
        known = read_stored(connection, run=run, place=place)
        missing = {*new} - {*known}
        if missing:
            rows = [{"sample_id": sample.sample_id, **asdict(sample)} for sample in missing]
            connection.execute(insert(table), rows)
            off = negative(spend_of_stored(known))
            add_spend(connection, added(off, spend_of_stored([*known, *missing])))


def read_stored(
    connection: Connection, *, run: str | None = None, place: str | None = None
) -> tuple[StoredSample, ...]:
    """Samples, in no order."""
    wanted = select(table)
    for column, value in ((table.c.run, run), (table.c.place, place)):
        if value is not None:
            wanted = wanted.where(column == value)
    found = []
    for row in connection.execute(wanted).mappings():
        sample = StoredSample(**{name: row[name] for name in FIELDS})
        if sample.sample_id != row["sample_id"]:
            name = connection.engine.url.render_as_string()
            raise damaged(name, f"a sample of what {sample.place!a} holds does not match its check")
        found.append(sample)
    return tuple(found)


def spend_of_stored(samples: Iterable[StoredSample]) -> Spend:
    """What was stored comes to by day, from the first sample of a place to its last."""
    parts: list[Spend] = []
    for series in by_place(samples).values():
        for piece in pieces(series, next_day):
            it, day = piece.sample, day_of(piece.start_milliseconds // MILLISECONDS_PER_SECOND)
            key = (it.run, "", "", it.owner, it.tags, "", it.provider, "storage", "", day)
            parts.append({key: {"other_micro_usd": piece.micro_usd}})
    return added(*parts)


def _lock(connection: Connection, run: str, place: str) -> None:
    """Two writers of one place go one after the other: both would see the sums without what the other adds.

    A file has one writer at a time anyway.
    """
    if connection.dialect.name != "sqlite":
        number = zlib.crc32(f"{run}\0{place}".encode("utf-8", "backslashreplace"))
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({APPLICATION_ID}, {number - 2**31})")
