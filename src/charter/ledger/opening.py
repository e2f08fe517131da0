"""Opening a ledger: without importing SQLAlchemy before one is opened, and with a plain word when it is missing."""

from pathlib import Path
from typing import TYPE_CHECKING

from charter.errors import MissingExtraError, how_to_install
from charter.ledger.place import MOUNTINFO, has_ledger
from charter.ledger.place import NoLedgerError as NoLedgerError

if TYPE_CHECKING:
    from charter.ledger.database import Database


def open_database(
    where: str | Path, *, create: bool = True, check_whole: bool = False, mountinfo: Path = MOUNTINFO
) -> "Database":
    """The database at a path or a `postgresql://` address, checked, with its tables.

    Without `create` nothing is written: NoLedgerError where it, or its tables, are not there.
    """
    if not create and not has_ledger(where):
        raise NoLedgerError(f"there is no ledger at {where}; `charter run` writes it")
    try:
        from charter.ledger import database, schema
    except ImportError as error:
        raise MissingExtraError(
            f"the ledger needs SQLAlchemy ({error.name} is not installed): {how_to_install('run')}"
        ) from error
    opened = database.connect(where, mountinfo=mountinfo)
    try:
        with opened.transaction(reading=not create, patient=False) as connection:
            schema.prepare(connection, opened, check_whole=check_whole, create=create)
    except BaseException:
        opened.engine.dispose()
        raise
    return opened
