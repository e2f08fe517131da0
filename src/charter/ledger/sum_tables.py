"""Tables beside attempts and calls: sums that answer at once, other charges, what is stored, bills of providers.

Imports SQLAlchemy: import it lazily.
"""

from sqlalchemy import Column, Float, ForeignKey, Index, Integer, Table, Text, UniqueConstraint

from charter.ledger.schema import Whole, metadata
from charter.ledger.sum_names import DIMENSIONS, SUMMED

spend_sums = Table(
    "spend_sums",
    metadata,
    *(Column(name, Text, primary_key=True) for name in DIMENSIONS),
    *(Column(name, Whole, nullable=False) for name in SUMMED),
    Column("sum_check", Whole, nullable=False),
)
"""What ended attempts, calls and other charges come to. Derived: `rebuild_sums` makes it anew from their rows."""

other_charges = Table(
    "other_charges",
    metadata,
    Column("charge_id", Integer, primary_key=True),
    Column("run", Text, nullable=False),
    Column("stage", Text, nullable=False),
    Column("category", Text, nullable=False),
    Column("service", Text, nullable=False),
    Column("provider", Text, nullable=False),
    Column("resource", Text, nullable=False),
    Column("started_at", Float, nullable=False),
    Column("ended_at", Float, nullable=False),
    Column("quantity", Text, nullable=False),
    Column("unit", Text, nullable=False),
    Column("unit_price_micro_usd", Whole),
    Column("micro_usd", Whole),
    Column("price_source", Text),
    Column("price_as_of", Text),
    Column("owner", Text),
    Column("tags", Text, nullable=False),
    Column("row_check", Whole, nullable=False),
    sqlite_autoincrement=True,
)
"""What is neither an attempt nor a call: storage, transfer, fees. Rows are added, never changed."""
Index("other_charges_of_runs", other_charges.c.run)

stored_samples = Table(
    "stored_samples",
    metadata,
    Column("sample_id", Text, primary_key=True),
    Column("run", Text, nullable=False),
    Column("place", Text, nullable=False),
    Column("at_milliseconds", Whole, nullable=False),
    Column("bytes", Whole, nullable=False),
    Column("sent_bytes", Whole, nullable=False),
    Column("why", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("provider", Text, nullable=False),
    Column("price_micro_usd_per_gb_month", Whole),
    Column("price_source", Text, nullable=False),
    Column("price_as_of", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("tags", Text, nullable=False),
)
"""How many bytes of a run a place held, and when. Rows are added, never changed; the id is a hash of the others."""
Index("stored_samples_of_places", stored_samples.c.run, stored_samples.c.place, stored_samples.c.at_milliseconds)

bills = Table(
    "bills",
    metadata,
    Column("bill_id", Integer, primary_key=True),
    Column("sha256", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("format", Text, nullable=False),
    Column("imported_at", Float, nullable=False),
    Column("lines", Whole, nullable=False),
    Column("currency", Text, nullable=False),
    Column("billed_usd", Text, nullable=False),
    Column("row_check", Whole, nullable=False),
    UniqueConstraint("sha256"),
    sqlite_autoincrement=True,
)
"""Bills of providers that were read. Rows are added, never changed; nothing of the ledger is overwritten by them."""

bill_lines = Table(
    "bill_lines",
    metadata,
    Column("bill_id", Integer, ForeignKey("bills.bill_id"), primary_key=True),
    Column("line", Integer, primary_key=True),
    Column("content", Text, nullable=False),
    Column("row_check", Whole, nullable=False),
)
"""The lines of a bill as they were understood, as JSON."""

bill_findings = Table(
    "bill_findings",
    metadata,
    Column("bill_id", Integer, ForeignKey("bills.bill_id"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("run", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("content", Text, nullable=False),
    Column("row_check", Whole, nullable=False),
)
"""How a bill's lines stood against the ledger when it was read, as JSON."""
