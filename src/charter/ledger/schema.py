"""Tables of the ledger (SQLAlchemy Core), the same in a SQLite file and on a PostgreSQL server, and their version.

Imports SQLAlchemy: import it lazily.
"""

from pathlib import Path

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Connection,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from charter.errors import DataError
from charter.ledger.attempt import Outcome
from charter.ledger.call import OUTCOMES_OF_CALLS
from charter.ledger.database import Database, damaged
from charter.ledger.place import CALLS_FILE, NoLedgerError
from charter.ledger.sums import APPLICATION_ID, DIMENSIONS, QUICK_CHECK_BYTES, SCHEMA_VERSION, SUMMED

metadata = MetaData()

Whole = BigInteger().with_variant(Integer(), "sqlite")
"""64 bits on a server too: 2,148 USD in micro-USD do not fit into 32."""

attempts = Table(
    "attempts",
    metadata,
    Column("attempt_id", Integer, primary_key=True),
    Column("run", Text, nullable=False),
    Column("stage", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("number", Whole, nullable=False),
    Column("fingerprint", Text, nullable=False),
    Column("accelerator", Text, nullable=False),
    Column("count", Whole, nullable=False),
    Column("infra", Text, nullable=False),
    Column("market", Text, nullable=False),
    Column("started_at", Float, nullable=False),
    Column("started_monotonic", Float),
    Column("ended_at", Float),
    Column("duration_milliseconds", Whole, nullable=False),
    Column("clock", Text, nullable=False),
    Column("last_heartbeat", Float, nullable=False),
    Column("first_step", Whole, nullable=False),
    Column("last_step", Whole, nullable=False),
    Column("kept_step", Whole),
    Column("outcome", Text, nullable=False),
    Column("tokens", Whole, nullable=False),
    Column("pairs", Whole, nullable=False),
    Column("episodes", Whole, nullable=False),
    Column("records", Whole, nullable=False),
    Column("price_micro_usd_per_hour", Whole),
    Column("price_source", Text),
    Column("price_as_of", Text),
    Column("host", Text, nullable=False),
    Column("pid", Whole, nullable=False),
    Column("note", Text, nullable=False),
    Column("row_check", Whole),
    Column("job_id", Text),
    Column("nodes", Text),
    Column("owner", Text),
    Column("tags", Text, nullable=False, server_default=text("'{}'")),
    Column("shard", Whole),
    Column("energy_joules", Whole),
    Column("energy_source", Text),
    Column("idle_milliseconds", Whole),
    UniqueConstraint("run", "stage", "number"),
    CheckConstraint("duration_milliseconds >= 0"),
    CheckConstraint("count >= 1"),
    CheckConstraint("outcome IN ({})".format(", ".join(f"'{name}'" for name in Outcome))),
    sqlite_autoincrement=True,
)
IS_RUNNING = text("outcome = 'running'")
"""A text, not a bound value: only so can a database see that an index of running attempts serves it."""
Index("attempts_of_runs", attempts.c.run, attempts.c.attempt_id)
Index("attempts_of_shards", attempts.c.run, attempts.c.stage, attempts.c.shard)
Index("attempts_running", attempts.c.run, sqlite_where=IS_RUNNING, postgresql_where=IS_RUNNING)

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
    Column("ListUnitPrice", Whole),
    Column("ListCost", Whole),
    Column("EffectiveCost", Whole),
    Column("BilledCost", Whole),
    Column("Tags", Text, nullable=False),
    Column("x_UsefulSeconds", Float, nullable=False),
    Column("x_LostSeconds", Float, nullable=False),
    Column("x_Tokens", Whole, nullable=False),
    Column("x_Episodes", Whole, nullable=False),
    Column("x_PreferencePairs", Whole, nullable=False),
    Column("x_Records", Whole, nullable=False),
    Column("x_PriceSource", Text),
    Column("x_PriceAsOf", Text),
    Column("x_EstimateOrActual", Text, nullable=False),
    Column("x_Owner", Text),
    Column("x_JobId", Text),
    Column("x_Nodes", Text),
    Column("x_Shard", Whole),
    Column("x_Clock", Text),
    Column("x_IdleSeconds", Float),
    Column("x_IdleCost", Whole),
    Column("x_LostCost", Whole),
    Column("x_EnergyJoules", Whole),
    Column("x_EnergySource", Text),
)

call_scopes = Table(
    "call_scopes",
    metadata,
    Column("scope_id", Integer, primary_key=True),
    Column("run", Text, nullable=False),
    Column("stage", Text, nullable=False),
    Column("fingerprint", Text, nullable=False),
    Column("store_id", Text, nullable=False),
    UniqueConstraint("run", "stage", "fingerprint"),
)
"""Whose calls they are: one row per stage of a run and what it computes."""

call_intents = Table(
    "call_intents",
    metadata,
    Column("scope_id", Integer, ForeignKey("call_scopes.scope_id"), primary_key=True),
    Column("call_id", Text, primary_key=True),
    Column("key", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("endpoint", Text, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("at", Float, nullable=False),
    Column("most_micro_usd", Whole),
    Column("row_check", Whole, nullable=False),
)
"""Every call before it is sent. Rows are added, never changed."""

call_settlements = Table(
    "call_settlements",
    metadata,
    Column("scope_id", Integer, ForeignKey("call_scopes.scope_id"), primary_key=True),
    Column("call_id", Text, primary_key=True),
    Column("revision", Integer, primary_key=True),
    Column("outcome", Text, nullable=False),
    Column("at", Float, nullable=False),
    Column("prompt_tokens", Whole, nullable=False),
    Column("cached_tokens", Whole, nullable=False),
    Column("completion_tokens", Whole, nullable=False),
    Column("micro_usd", Whole),
    Column("note", Text, nullable=False),
    Column("row_check", Whole, nullable=False),
    CheckConstraint("outcome IN ({})".format(", ".join(f"'{name}'" for name in OUTCOMES_OF_CALLS))),
)
"""How a call went: revision 0 by the caller, later ones by reconciling; the last counts. Rows are never changed."""

call_answers = Table(
    "call_answers",
    metadata,
    Column("scope_id", Integer, ForeignKey("call_scopes.scope_id"), primary_key=True),
    Column("key", Text, primary_key=True),
    Column("call_id", Text, nullable=False),
    Column("answer", Text, nullable=False),
    Column("sha256", Text, nullable=False),
)
"""The first answer to each question; its hash is checked whenever it is read."""

usage_charges = Table(
    "usage_charges",
    metadata,
    Column("x_Run", Text, primary_key=True),
    Column("x_StageId", Text, primary_key=True),
    Column("x_Fingerprint", Text, primary_key=True),
    Column("x_StoreId", Text, primary_key=True),
    Column("x_Endpoint", Text, primary_key=True),
    Column("x_Model", Text, primary_key=True),
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
    Column("ListCost", Whole),
    Column("EffectiveCost", Whole),
    Column("BilledCost", Whole),
    Column("Tags", Text, nullable=False),
    Column("x_Requests", Whole, nullable=False),
    Column("x_Answered", Whole, nullable=False),
    Column("x_Refused", Whole, nullable=False),
    Column("x_Unknown", Whole, nullable=False),
    Column("x_Unpriced", Whole, nullable=False),
    Column("x_PromptTokens", Whole, nullable=False),
    Column("x_CachedTokens", Whole, nullable=False),
    Column("x_CompletionTokens", Whole, nullable=False),
    Column("x_SettledMicroUsd", Whole, nullable=False),
    Column("x_UnknownMicroUsd", Whole, nullable=False),
    Column("x_FirstAt", Float, nullable=False),
    Column("x_LastAt", Float, nullable=False),
    Column("x_EstimateOrActual", Text, nullable=False),
    Column("row_check", Whole, nullable=False),
    Column("x_Owner", Text),
    Column("x_OwnTags", Text),
)
"""What a stage's calls cost so far, by server and model, in FOCUS columns; replaced as a whole by newer totals."""

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

spending_claims = Table(
    "spending_claims",
    metadata,
    Column("run", Text, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("tags", Text, nullable=False),
    Column("micro_usd", Whole, nullable=False),
    Column("at", Float, nullable=False),
    info={"only": "postgresql"},
)
"""What the calls of runs that are under way may still cost: side by side they exceed no limit together."""

version_table = Table(
    "charter_schema",
    metadata,
    Column("application_id", Integer, primary_key=True, autoincrement=False),
    Column("version", Integer, nullable=False),
    info={"only": "postgresql"},
)
"""The schema's version on a server; a SQLite file says it in `PRAGMA user_version`."""


def tables_of(dialect: str) -> list[Table]:
    """The tables that a database of this dialect holds."""
    return [table for table in metadata.sorted_tables if table.info.get("only", dialect) == dialect]


def prepare(connection: Connection, database: Database, *, check_whole: bool = False, create: bool = True) -> None:
    """Check what the database is, its pages and its version; make its tables where it is empty and `create` allows."""
    if database.is_file:
        _prepare_file(connection, database, check_whole=check_whole, create=create)
    else:
        _prepare_server(connection, database, create=create)


def _prepare_file(connection: Connection, database: Database, *, check_whole: bool, create: bool) -> None:
    has_tables = bool(connection.exec_driver_sql("SELECT count(*) FROM sqlite_master").scalar_one())
    if has_tables and _pragma(connection, "application_id") != APPLICATION_ID:
        raise DataError(f"{database.name} is a SQLite file but not a Charter ledger; move it away and run again")
    if has_tables:
        _refuse_other_schema(database, _pragma(connection, "user_version"))
    if check_whole or _pragma(connection, "page_count") * _pragma(connection, "page_size") <= QUICK_CHECK_BYTES:
        _check_pages(connection, database)
    if not has_tables:
        if not create:
            raise _no_ledger(database)
        metadata.create_all(connection, tables=tables_of("sqlite"))
        connection.exec_driver_sql(f"PRAGMA application_id={APPLICATION_ID}")
        connection.exec_driver_sql(f"PRAGMA user_version={SCHEMA_VERSION}")


def _prepare_server(connection: Connection, database: Database, *, create: bool) -> None:
    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({APPLICATION_ID})")
    if connection.exec_driver_sql("SELECT to_regclass('charter_schema')").scalar_one() is None:
        if not create:
            raise _no_ledger(database)
        metadata.create_all(connection, tables=tables_of("postgresql"))
        connection.execute(version_table.insert().values(application_id=APPLICATION_ID, version=SCHEMA_VERSION))
    version = connection.scalar(version_table.select().with_only_columns(version_table.c.version))
    _refuse_other_schema(database, int(version or 0))


def _no_ledger(database: Database) -> NoLedgerError:
    return NoLedgerError(f"there is no ledger at {database.name}; `charter run` writes it")


def _refuse_other_schema(database: Database, version: int) -> None:
    if version == SCHEMA_VERSION:
        return
    otherwise = ", or move it away and run again: what is done stays done"
    if not database.is_file:
        otherwise = ", or name another database in storage.ledger"
    elif Path(database.name).name == CALLS_FILE:
        otherwise = " and leave it where it is: it holds answers that are paid, and without it they are bought again"
    raise DataError(
        f"{database.name} has ledger schema {version}; this Charter reads and writes schema {SCHEMA_VERSION} alone. "
        f"Open it with the Charter that wrote it{otherwise}. Nothing was changed"
    )


def _check_pages(connection: Connection, database: Database) -> None:
    """Read the whole file and compare every page, row and index entry with its neighbours (`integrity_check`)."""
    check = str(connection.exec_driver_sql("PRAGMA integrity_check(1)").scalar_one())
    if check != "ok":
        raise damaged(database.name, check.replace("\n", " "))


def _pragma(connection: Connection, name: str) -> int:
    return int(connection.exec_driver_sql(f"PRAGMA {name}").scalar_one())
