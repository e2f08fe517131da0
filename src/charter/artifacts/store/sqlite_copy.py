"""A consistent copy of a SQLite database that others write to meanwhile, by SQLite's own backup.

Copying the file would miss what is still in its write-ahead log, or catch a page in the middle of a change.
"""

import contextlib
import sqlite3
from pathlib import Path

from charter.errors import DataError

BUSY_SECONDS = 10.0
"""How long a writer may hold the database; the ledger's own transactions take milliseconds."""


def copy_database(source: Path, target: Path) -> None:
    """Write a whole copy of a database as one file; a DataError when the database is damaged."""
    try:
        with (
            contextlib.closing(sqlite3.connect(source, timeout=BUSY_SECONDS)) as live,
            contextlib.closing(sqlite3.connect(target)) as copy,
        ):
            live.backup(copy)
            copy.execute("PRAGMA journal_mode=DELETE")
            (found,) = copy.execute("PRAGMA integrity_check(1)").fetchone()
    except sqlite3.Error as error:
        raise DataError(f"{source} cannot be copied: {error}") from error
    if found != "ok":
        raise DataError(f"{source} is damaged: {found}")


def damage_of(path: Path) -> str | None:
    """What is wrong with a database, in SQLite's words; None when nothing is."""
    try:
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=BUSY_SECONDS)) as database:
            (found,) = database.execute("PRAGMA integrity_check(1)").fetchone()
    except sqlite3.Error as error:
        return str(error)
    return None if found == "ok" else str(found)
