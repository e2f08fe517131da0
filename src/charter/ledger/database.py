"""Database of a ledger: a SQLite file on a local disk, or a PostgreSQL server.

Imports SQLAlchemy: import it lazily.
"""

import os
import sqlite3
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from sqlalchemy import URL, Engine, create_engine, event, make_url
from sqlalchemy.engine import Connection
from sqlalchemy.exc import ArgumentError, DatabaseError, DBAPIError

from charter.errors import DataError, MissingExtraError, UsageError, how_to_install
from charter.ledger.place import MOUNTINFO, has_lost_commits, is_network_filesystem, is_server

BUSY_TIMEOUT_MILLISECONDS = 10_000
"""Longer than any transaction here by far; who holds the lock for that long is another program."""
CONNECT_TIMEOUT_SECONDS = 10
"""A server on the same network answers in milliseconds; a wrong address often not at all."""
SECONDS_BETWEEN_TRIES = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""A PostgreSQL server restarts in seconds; after half a minute the caller gives up, and its restart policy decides."""
TRIES = 3
"""Of a transaction whose server hung up in the middle; reaching the server again is waited for besides."""
LOST_CONNECTION_STATES = ("08", "57P", "57014")
"""SQLSTATE classes: connection exception, operator intervention (PostgreSQL manual, appendix A); and a statement that
the server has ended at its `statement_timeout`, since a server that hangs is as good as away."""

Result = TypeVar("Result")


class LedgerUnreachableError(DataError):
    """The server of the ledger does not answer, or has hung up; the same transaction may be tried again."""


@dataclass(frozen=True, kw_only=True)
class Database:
    """An opened database."""

    engine: Engine
    name: str
    """For messages: the file, or the server's address."""

    @property
    def is_file(self) -> bool:
        """Return True if it is a SQLite file."""
        return self.engine.dialect.name == "sqlite"

    @property
    def mark(self) -> str:
        """Return the mark of a value's place in a statement."""
        return "?" if self.is_file else "%s"

    @contextmanager
    def transaction(self, *, reading: bool = False, patient: bool = True) -> Iterator[Connection]:
        """One transaction; a lock held by others for too long, or a damaged file, becomes a DataError.

        `patient` waits for a server that is away before the transaction begins.
        """
        try:
            with self._connection(patient=patient) as connection:
                connection = connection.execution_options(charter_reading=reading)
                with connection.begin():
                    yield connection
        except (DatabaseError, sqlite3.DatabaseError) as error:
            raise _explained(self, error) from error
        except UnicodeDecodeError as error:
            # The driver reads the text of table definitions on its own.
            raise damaged(self.name, str(error)) from error

    def repeated(self, work: Callable[[Connection], Result], *, reading: bool = False) -> Result:
        """Work in one transaction, tried again when the server hangs up in it: for work that may be done twice."""
        for tries_left in reversed(range(TRIES)):
            try:
                with self.transaction(reading=reading) as connection:
                    return work(connection)
            except LedgerUnreachableError:
                if not tries_left:
                    raise
        raise AssertionError("the last try returns or raises")

    def _connection(self, *, patient: bool) -> Connection:
        for seconds in SECONDS_BETWEEN_TRIES if patient and not self.is_file else ():
            try:
                return self.engine.connect()
            except DatabaseError as error:
                if not isinstance(_explained(self, error), LedgerUnreachableError):
                    raise
                time.sleep(seconds)
        return self.engine.connect()


def connect(where: str | Path, *, mountinfo: Path = MOUNTINFO) -> Database:
    """The database at a path or a `postgresql://` address; the file is made when there is none."""
    if is_server(where):
        return _connect_server(str(where))
    return _connect_file(Path(where), mountinfo=mountinfo)


def _connect_file(path: Path, *, mountinfo: Path) -> Database:
    """A SQLite file, with the settings that survive a kill and a power cut.

    WAL with `synchronous=FULL`: a commit that returned is on disk. Writers use BEGIN IMMEDIATE and wait up to
    10 s for a lock. Network file systems are refused: their locks and their shared memory cannot be relied on.
    Text that is not UTF-8 is read as it is, so that the check of its row can say that it is damaged.
    """
    if is_network_filesystem(path.parent, mountinfo=mountinfo):
        raise DataError(
            f"the ledger {path} would lie on a network file system, where SQLite can lose what it has written "
            "and two writers can meet\n  put the project on a local disk, or set storage.ledger to "
            "postgresql://HOST/DATABASE"
        )
    if has_lost_commits(path):
        raise damaged(str(path), f"{path.name}-wal: committed transactions lie behind a broken frame")
    is_read_only = path.exists() and not all(
        os.access(place, os.W_OK, effective_ids=True) for place in (path, path.parent)
    )
    if is_read_only:
        url = _url_of_read_only(path)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        url = URL.create("sqlite+pysqlite", database=str(path.resolve()))
    engine = create_engine(url)

    def configure(connection: sqlite3.Connection, _record: Any) -> None:
        connection.isolation_level = None
        connection.text_factory = partial(str, encoding="utf-8", errors="surrogateescape")
        connection.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MILLISECONDS}")
        if not is_read_only:
            connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA foreign_keys=ON")

    def begin(connection: Connection) -> None:
        reading = is_read_only or connection.get_execution_options().get("charter_reading", False)
        connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")

    event.listen(engine, "connect", configure)
    event.listen(engine, "begin", begin)
    return Database(engine=engine, name=str(path))


def _url_of_read_only(path: Path) -> URL:
    """Return the address of a file on a disk, or of an owner, that lets nobody write here.

    SQLite reads a file in WAL mode only with its shared memory beside it, which it cannot make there; without a log
    nothing is missing from the file itself, and it may be read as one that does not change.
    """
    log = path.with_name(f"{path.name}-wal")
    has_log = log.exists() and log.stat().st_size > 0
    query = {"mode": "ro", "uri": "true", **({} if has_log else {"immutable": "1"})}
    return URL.create("sqlite+pysqlite", database=f"file:{quote(str(path.resolve()))}", query=query)


def _connect_server(address: str) -> Database:
    """A PostgreSQL server. A commit that returned is on the server's disk, whatever its default is."""
    url = server_url(address)
    try:
        settings = {"connect_timeout": CONNECT_TIMEOUT_SECONDS, **TCP_SETTINGS}
        unset = {name: value for name, value in settings.items() if name not in url.query}
        engine = create_engine(url, connect_args=unset, pool_pre_ping=True)
    except ImportError as error:
        raise MissingExtraError(
            f"a ledger on PostgreSQL needs psycopg ({error.name} is not installed): {how_to_install('postgres')}"
        ) from error

    def open_bound(_dialect: Any, _record: Any, arguments: Any, options: Any) -> Any:
        connection = bound_connection().connect(*arguments, **options)
        connection.longest_silence_seconds = SILENCE_SECONDS
        return connection

    def configure(connection: Any, _record: Any) -> None:
        autocommit = connection.autocommit
        connection.autocommit = True
        connection.execute(f"SET statement_timeout = {round(1000 * STATEMENT_SECONDS)}")
        if connection.execute("SHOW synchronous_commit").fetchone()[0] == "off":
            connection.execute("SET synchronous_commit = on")
        connection.autocommit = autocommit

    event.listen(engine, "do_connect", open_bound)
    event.listen(engine, "connect", configure)
    return Database(engine=engine, name=address)


def server_url(address: str) -> URL:
    """The address for SQLAlchemy, with psycopg as the driver; a password in it is refused.

    >>> server_url("postgresql://db.lab/charter").drivername
    'postgresql+psycopg'
    """
    try:
        url = make_url(address)
    except ArgumentError:
        raise UsageError(_not_a_server("what is given is no address")) from None
    if url.password is not None or "password" in url.query:
        raise UsageError(
            f"the address of the ledger {url.set(query={}).render_as_string()} holds a password, which would be "
            "written into records and logs\n  leave it out, and give it by a PGPASSFILE (~/.pgpass) or by PGPASSWORD"
        )
    if url.drivername not in ("postgresql", "postgres", "postgresql+psycopg"):
        raise UsageError(_not_a_server(f"found {url.drivername}://"))
    return url.set(drivername="postgresql+psycopg")


def _not_a_server(reason: str) -> str:
    return f"a ledger on a server is postgresql://HOST/DATABASE; {reason}. Leave storage.ledger out for a SQLite file"


def damaged(name: str, why: str) -> DataError:
    """The error for a ledger whose bytes are not what was written."""
    return DataError(
        f"the ledger {name} is damaged ({why}). Nothing was changed. Restore a copy, or move it away and run "
        "again: stages that are done stay done, only the record of their cost is gone"
    )


def _explained(database: Database, error: Exception) -> Exception:
    why = str(getattr(error, "orig", error)).strip()
    if not database.is_file:
        return _explained_server(database.name, error, why)
    if "locked" in why or "busy" in why:
        return DataError(
            f"the ledger {database.name} has been locked by another process for 10 s; "
            "close the program that holds it (an open SQLite browser, say) and run again"
        )
    if any(sign in why for sign in ("malformed", "not a database", "corrupt", "no such", "unsupported file format")):
        return damaged(database.name, why)
    if "full" in why or "disk I/O" in why:
        return DataError(f"the ledger {database.name} could not be written ({why}); free some space and run again")
    if "unable to open" in why or "readonly" in why:
        return DataError(f"the ledger {database.name} cannot be opened for writing ({why}); check its permissions")
    return error


def _explained_server(name: str, error: Exception, why: str) -> Exception:
    state = getattr(getattr(error, "orig", None), "sqlstate", None)
    lost = isinstance(error, DBAPIError) and error.connection_invalidated
    if (
        lost
        or (state is None and "OperationalError" in type(error).__name__)
        or (state is not None and state.startswith(LOST_CONNECTION_STATES))
    ):
        return LedgerUnreachableError(
            f"the ledger {name} cannot be reached ({why})\n  check that the server runs, the address, and the "
            "password (PGPASSFILE or PGPASSWORD), and run again"
        )
    if state is not None and state.startswith(("28", "3D", "42501")):
        return DataError(
            f"the ledger {name} refuses ({why})\n  make the database (createdb) and a role that may create tables in it"
        )
    if state is not None and state.startswith(("XX", "58", "53")):
        return DataError(f"the server of the ledger {name} reports a fault of its own ({why}); ask who runs it")
    return error


STATEMENT_SECONDS = 60.0
"""After so long the server ends a statement itself (`statement_timeout`), whether it computes or waits for a lock: what
the ledger asks of it takes milliseconds, and seconds at a million rows. Opening, which may migrate, is not bound."""
SILENCE_SECONDS = 75.0
"""After so long without a byte the connection is given up here: a server that is frozen, not gone, keeps its TCP
connection alive and ends no statement. More than `STATEMENT_SECONDS`, so that one that works has said so before."""
TCP_SETTINGS = {
    "keepalives": 1,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""Seconds, and milliseconds for the last: a machine that is gone is noticed after half a minute. The kernel's own
settings take two hours for it, and a quarter of one for data that nobody acknowledges."""
LOOK_SECONDS = 0.1
"""Between two looks at the clock while nothing is heard."""
PQGen = Generator[int, int, Any]
"""How psycopg asks to be told when a socket can be read or written: it yields what it waits for."""


@cache
def bound_connection() -> Any:
    """Return the class of connections that break when their server has been silent for too long.

    A class of psycopg's, which only the extra `postgres` brings.
    """
    import psycopg

    class BoundConnection(psycopg.Connection[Any]):  # type: ignore[misc]  # psycopg is not checked
        """A connection that breaks when its server has been silent for too long while it owed an answer."""

        longest_silence_seconds: float | None = None
        """None waits for ever."""

        def wait(self, gen: PQGen, interval: float = LOOK_SECONDS, **more: Any) -> Any:
            """Wait for an answer; psycopg does so here for every statement, commit and rollback."""
            limit = self.longest_silence_seconds
            return super().wait(gen if limit is None else self._impatient(gen, limit), interval, **more)

        def _impatient(self, gen: PQGen, limit: float) -> PQGen:
            """The same waits, of which one that is too long ends the connection."""
            heard = time.monotonic()
            try:
                wanted = next(gen)
                while True:
                    ready = yield wanted
                    if ready:
                        heard = time.monotonic()
                    elif time.monotonic() - heard > limit:
                        self.close()
                        raise psycopg.OperationalError(f"the server owed an answer and was silent for {limit:g} s")
                    wanted = gen.send(ready)
            except StopIteration as done:
                return done.value

    return BoundConnection
