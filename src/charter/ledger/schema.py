"""Tables of the ledger (SQLAlchemy Core), the same in a SQLite file and on a PostgreSQL server.

Imports SQLAlchemy: import it lazily.
"""

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
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

from charter.ledger.attempt import OUTCOMES
from charter.ledger.call import OUTCOMES_OF_CALLS

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
    CheckConstraint("outcome IN ({})".format(", ".join(f"'{name}'" for name in OUTCOMES))),
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
