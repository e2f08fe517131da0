"""Marks that tell a ledger's file from others, and its schema from any other version; without SQLAlchemy."""

SCHEMA_VERSION = 1
"""Version of the tables in `schema.py`; a ledger of any other version is refused."""
APPLICATION_ID = 0x43485254
"""`CHRT`, in `PRAGMA application_id`: tells a ledger from any other SQLite file."""
QUICK_CHECK_BYTES = 32 * 2**20
"""A larger file is not read whole when it is opened: at 1 GB/s or less that would cost the second that a resume
has. Its rows and answers carry checks of their own, and `charter cost report` reads them all."""
