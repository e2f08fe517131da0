"""What tells a ledger's file from others, and its schema from older ones; without SQLAlchemy."""

SCHEMA_VERSION = 5
"""Raised when a table changes, together with a step in `migrations.py`. 2: the outcome `hung`; 3: calls; 4: owners,
tags, shards, energy and idle time of attempts, sums by day, other charges, bills; 5: samples of what is stored."""
APPLICATION_ID = 0x43485254
"""`CHRT`, in `PRAGMA application_id`: tells a ledger from any other SQLite file."""
QUICK_CHECK_BYTES = 32 * 2**20
"""A larger file is not read whole when it is opened: at 1 GB/s or less that would cost the second that a resume
has. Its rows and answers carry checks of their own, and `charter cost report` reads them all."""
