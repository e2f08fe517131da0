"""Reading and writing samples of what is stored inside a transaction. Imports SQLAlchemy: import it lazily."""

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields

from sqlalchemy import Connection, func, insert, select

from charter.ledger.account import MILLISECONDS_PER_SECOND, day_of
from charter.ledger.database import damaged
from charter.ledger.schema import stored_samples as table
from charter.ledger.stored import DAY, StoredSample, by_place, days_of
from charter.ledger.sum_rows import Spend, add_spend, added, negative
from charter.ledger.sums import APPLICATION_ID

FIELDS = tuple(field.name for field in fields(StoredSample))


def write_stored(connection: Connection, samples: Sequence[StoredSample]) -> None:
    """Add the samples that are not there yet; the sums follow. Doing it twice changes nothing.

    Only what is near in time is read, so the time this takes does not grow with the number of samples.
    """
    for (run, place), new in by_place(samples).items():
        _lock(connection, run, place)
        neighbours = _near(connection, run, place, at=new[0].at_milliseconds)
        missing = {*new} - {*neighbours}
        if missing:
            rows = [{"sample_id": sample.sample_id, **asdict(sample)} for sample in missing]
            connection.execute(insert(table), rows)
            off = negative(spend_of_stored(neighbours))
            add_spend(connection, added(off, spend_of_stored([*neighbours, *missing])))


def _near(connection: Connection, run: str, place: str, *, at: int) -> tuple[StoredSample, ...]:
    """The samples of a place whose days a sample at `at`, or a later one, can change.

    That is from the day of the sample before it on, and the one before that day, which says what was held then.
    """
    since = _last_before(connection, run, place, at)
    if since is not None:
        day = since // DAY * DAY
        before = _last_before(connection, run, place, day)
        since = day if before is None else before
    return read_stored(connection, run=run, place=place, since=since)


def _last_before(connection: Connection, run: str, place: str, at: int) -> int | None:
    of_place = (table.c.run == run, table.c.place == place, table.c.at_milliseconds < at)
    at_milliseconds = connection.execute(select(func.max(table.c.at_milliseconds)).where(*of_place)).scalar_one()
    return None if at_milliseconds is None else int(at_milliseconds)


def read_stored(
    connection: Connection, *, run: str | None = None, place: str | None = None, since: int | None = None
) -> tuple[StoredSample, ...]:
    """Samples, in no order."""
    wanted = select(table)
    for column, value in ((table.c.run, run), (table.c.place, place)):
        if value is not None:
            wanted = wanted.where(column == value)
    if since is not None:
        wanted = wanted.where(table.c.at_milliseconds >= since)
    samples = []
    for row in connection.execute(wanted).mappings():
        sample = StoredSample(**{name: row[name] for name in FIELDS})
        if sample.sample_id != row["sample_id"]:
            name = connection.engine.url.render_as_string()
            raise damaged(name, f"a sample of what {sample.place!a} holds does not match its check")
        samples.append(sample)
    return tuple(samples)


def spend_of_stored(samples: Iterable[StoredSample]) -> Spend:
    """Return the spend of stored bytes by day, from the first sample of a place to its last."""
    parts: list[Spend] = []
    for series in by_place(samples).values():
        for item in days_of(series):
            it, day = item.terms, day_of(item.start_milliseconds // MILLISECONDS_PER_SECOND)
            key = (it.run, "", "", it.owner, it.tags, "", it.provider, "storage", "", day)
            parts.append({key: {"other_micro_usd": item.micro_usd}})
    return added(*parts)


def _lock(connection: Connection, run: str, place: str) -> None:
    """Two writers of one place go one after the other: both would see the sums without what the other adds.

    A file has one writer at a time anyway.
    """
    if connection.dialect.name != "sqlite":
        number = zlib.crc32(f"{run}\0{place}".encode("utf-8", "backslashreplace"))
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({APPLICATION_ID}, {number - 2**31})")
