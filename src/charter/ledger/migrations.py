"""From every older schema of the ledger to the present one: numbered steps, forward only.

A step's statements are frozen: they make what its version was, not what the tables have become since. All steps
that a database needs run in the one transaction that opens it, so it is never found half way. Servers know no
version before 3. What is derived from other rows (charges, sums, checks) is made anew after the last step.
"""

from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection

from charter.errors import DataError
from charter.ledger.database import Database, damaged
from charter.ledger.missing import NoLedgerError
from charter.ledger.old_tables import CHARGES_OF_2, TABLES_OF_3, statements_of_4, statements_of_5
from charter.ledger.rebuilding import check_attempts_of_3, rebuild
from charter.ledger.schema import metadata, tables_of, version_table
from charter.ledger.schema_version import APPLICATION_ID, QUICK_CHECK_BYTES, SCHEMA_VERSION


def prepare(connection: Connection, database: Database, *, check_whole: bool = False, create: bool = True) -> None:
    """Check what the database is and its version; make or bring up to date its tables."""
    if database.is_file:
        _prepare_file(connection, database, check_whole=check_whole)
    else:
        _prepare_server(connection, database, create=create)


def _prepare_file(connection: Connection, database: Database, *, check_whole: bool) -> None:
    version = _pragma(connection, "user_version")
    has_tables = bool(connection.exec_driver_sql("SELECT count(*) FROM sqlite_master").scalar_one())
    if has_tables and _pragma(connection, "application_id") != APPLICATION_ID:
        raise DataError(f"{database.name} is a SQLite file but not a Charter ledger; move it away and run again")
    _refuse_newer(database, version)
    if check_whole or _pragma(connection, "page_count") * _pragma(connection, "page_size") <= QUICK_CHECK_BYTES:
        check_pages(connection, database)
    if not has_tables:
        metadata.create_all(connection, tables=tables_of("sqlite"))
        connection.exec_driver_sql(f"PRAGMA application_id={APPLICATION_ID}")
    else:
        _step_up(connection, version)
    if version != SCHEMA_VERSION:
        connection.exec_driver_sql(f"PRAGMA user_version={SCHEMA_VERSION}")


def _prepare_server(connection: Connection, database: Database, *, create: bool) -> None:
    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({APPLICATION_ID})")
    if connection.exec_driver_sql("SELECT to_regclass('charter_schema')").scalar_one() is None:
        if not create:
            raise NoLedgerError(f"there is no ledger at {database.name}; `charter run` writes it")
        metadata.create_all(connection, tables=tables_of("postgresql"))
        connection.execute(version_table.insert().values(application_id=APPLICATION_ID, version=SCHEMA_VERSION))
    version = connection.scalar(version_table.select().with_only_columns(version_table.c.version))
    _refuse_newer(database, int(version or 0))
    if version is not None and version < SCHEMA_VERSION:
        _step_up(connection, version)
        connection.execute(version_table.update().values(version=SCHEMA_VERSION))


def _step_up(connection: Connection, version: int) -> None:
    for step in range(version, SCHEMA_VERSION):
        STEPS[step](connection)
    if version < SCHEMA_VERSION:
        rebuild(connection)


def check_pages(connection: Connection, database: Database) -> None:
    """Read the whole file and compare every page, row and index entry with its neighbours (`integrity_check`)."""
    check = str(connection.exec_driver_sql("PRAGMA integrity_check(1)").scalar_one())
    if check != "ok":
        raise damaged(database.name, check.replace("\n", " "))


def _pragma(connection: Connection, name: str) -> int:
    return int(connection.exec_driver_sql(f"PRAGMA {name}").scalar_one())


def _refuse_newer(database: Database, version: int) -> None:
    if version > SCHEMA_VERSION:
        raise DataError(
            f"{database.name} was written by a newer Charter (ledger schema {version}); this one knows schema "
            f"{SCHEMA_VERSION}. Install the newer Charter; nothing was changed"
        )


def _from_1(connection: Connection) -> None:
    """The outcome `hung` is allowed: the table of attempts is made anew around its rows."""
    (made,) = connection.exec_driver_sql("SELECT sql FROM sqlite_master WHERE name = 'attempts'").one()
    allowed = "'interrupted', 'killed')"
    assert allowed in made, "the first schema allowed four ways to end"
    connection.exec_driver_sql("DROP TABLE IF EXISTS charges")
    connection.exec_driver_sql("ALTER TABLE attempts RENAME TO attempts_before")
    connection.exec_driver_sql(made.replace(allowed, "'interrupted', 'killed', 'hung')"))
    connection.exec_driver_sql("INSERT INTO attempts SELECT * FROM attempts_before")
    connection.exec_driver_sql("DROP TABLE attempts_before")
    connection.exec_driver_sql(CHARGES_OF_2)


def _from_2(connection: Connection) -> None:
    """Calls, their answers, and what they cost; a check in every row of the attempts."""
    connection.exec_driver_sql("ALTER TABLE attempts ADD COLUMN row_check INTEGER")
    for statement in TABLES_OF_3:
        connection.exec_driver_sql(statement)


def _from_3(connection: Connection) -> None:
    """Owners, tags, shards, energy and idle time; sums by day; other charges; bills."""
    check_attempts_of_3(connection)
    for statement in statements_of_4(connection.dialect.name):
        connection.exec_driver_sql(statement)


def _from_4(connection: Connection) -> None:
    """Samples of what is stored."""
    for statement in statements_of_5(connection.dialect.name):
        connection.exec_driver_sql(statement)


STEPS: dict[int, Callable[[Any], None]] = {1: _from_1, 2: _from_2, 3: _from_3, 4: _from_4}
"""By the version that a step starts from."""
