"""Tables of the ledger (SQLAlchemy Core) and the settings of a connection. Imports SQLAlchemy."""

import sqlite3
from pathlib import Path
from typing import Any

from sqlalchemy import (
    CheckConstraint,
    Column,
    Engine,
    Float,
    ForeignKey,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    create_engine,
    event,
)
from sqlalchemy.engine import Connection

from charter.ledger.attempt import OUTCOMES
from charter.ledger.filesystem import is_network_filesystem

SCHEMA_VERSION = 2
"""Raised when a table changes; kept in `PRAGMA user_version`. 2: the outcome `hung`."""
APPLICATION_ID = 0x43485254
"""`CHRT`, in `PRAGMA application_id`: tells a ledger from any other SQLite file."""
BUSY_TIMEOUT_MILLISECONDS = 10_000

metadata = MetaData()

attempts = Table(
    "attempts",
    metadata,
    Column("attempt_id", Integer, primary_key=True),
    Column("run", Text, nullable=False),
    Column("stage", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("number", Integer, nullable=False),
    Column("fingerprint", Text, nullable=False),
    Column("accelerator", Text, nullable=False),
    Column("count", Integer, nullable=False),
    Column("infra", Text, nullable=False),
    Column("market", Text, nullable=False),
    Column("started_at", Float, nullable=False),
    Column("started_monotonic", Float),
    Column("ended_at", Float),
    Column("duration_milliseconds", Integer, nullable=False),
    Column("clock", Text, nullable=False),
    Column("last_heartbeat", Float, nullable=False),
    Column("first_step", Integer, nullable=False),
    Column("last_step", Integer, nullable=False),
    Column("kept_step", Integer),
    Column("outcome", Text, nullable=False),
    Column("tokens", Integer, nullable=False),
    Column("pairs", Integer, nullable=False),
    Column("episodes", Integer, nullable=False),
    Column("records", Integer, nullable=False),
    Column("price_micro_usd_per_hour", Integer),
    Column("price_source", Text),
    Column("price_as_of", Text),
    Column("host", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("note", Text, nullable=False),
    UniqueConstraint("run", "stage", "number"),
    CheckConstraint("duration_milliseconds >= 0"),
    CheckConstraint("count >= 1"),
    CheckConstraint("outcome IN ({})".format(", ".join(f"'{name}'" for name in OUTCOMES))),
    sqlite_autoincrement=True,
)

charges = Table(
    "charges",
    metadata,
    Column("x_AttemptId", Integer, ForeignKey("attempts.attempt_id"), primary_key=True),
    Column("x_StageId", Text, nullable=False),
    Column("ChargePeriodStart", Text, nullable=False),
    Column("ChargePeriodEnd", Text, nullable=False),
    Column("ChargeCategory", Text, nullable=False),
    Column("ChargeDescription", Text, nullable=False),
    Column("BillingCurrency", Text, nullable=False),
    Column("ServiceCategory", Text, nullable=False),
    Column("ServiceName", Text, nullable=False),
    Column("Provider", Text, nullable=False),
    Column("ResourceType", Text, nullable=False),
    Column("PricingCategory", Text, nullable=False),
    Column("PricingQuantity", Text, nullable=False),
    Column("PricingUnit", Text, nullable=False),
    Column("ListUnitPrice", Integer),
    Column("ListCost", Integer),
    Column("EffectiveCost", Integer),
    Column("BilledCost", Integer),
    Column("Tags", Text, nullable=False),
    Column("x_UsefulSeconds", Float, nullable=False),
    Column("x_LostSeconds", Float, nullable=False),
    Column("x_Tokens", Integer, nullable=False),
    Column("x_Episodes", Integer, nullable=False),
    Column("x_PreferencePairs", Integer, nullable=False),
    Column("x_Records", Integer, nullable=False),
    Column("x_PriceSource", Text),
    Column("x_PriceAsOf", Text),
    Column("x_EstimateOrActual", Text, nullable=False),
)


def connect(path: Path) -> Engine:
    """An engine on the SQLite file at `path`, with the settings that survive a kill and a power cut.

    WAL with `synchronous=FULL`: a commit that returned is on disk. On network file systems, where WAL is not
    safe, the rollback journal is used instead. Writers use BEGIN IMMEDIATE and wait up to 10 s for a lock.
    """
    journal = "DELETE" if is_network_filesystem(path.parent) else "WAL"
    engine = create_engine(f"sqlite+pysqlite:///{path}")

    def configure(connection: sqlite3.Connection, _record: Any) -> None:
        connection.isolation_level = None
        connection.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MILLISECONDS}")
        connection.execute(f"PRAGMA journal_mode={journal}")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA foreign_keys=ON")

    def begin(connection: Connection) -> None:
        reading = connection.get_execution_options().get("charter_reading", False)
        connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")

    event.listen(engine, "connect", configure)
    event.listen(engine, "begin", begin)
    return engine
