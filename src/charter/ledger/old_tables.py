"""Tables as they were made by the schema of a version: text that never changes, for `migrations.py`."""

CHARGES_OF_2 = """
CREATE TABLE charges (
    "x_AttemptId" INTEGER NOT NULL,
    "x_StageId" TEXT NOT NULL,
    "ChargePeriodStart" TEXT NOT NULL,
    "ChargePeriodEnd" TEXT NOT NULL,
    "ChargeCategory" TEXT NOT NULL,
    "ChargeDescription" TEXT NOT NULL,
    "BillingCurrency" TEXT NOT NULL,
    "ServiceCategory" TEXT NOT NULL,
    "ServiceName" TEXT NOT NULL,
    "Provider" TEXT NOT NULL,
    "ResourceType" TEXT NOT NULL,
    "PricingCategory" TEXT NOT NULL,
    "PricingQuantity" TEXT NOT NULL,
    "PricingUnit" TEXT NOT NULL,
    "ListUnitPrice" INTEGER,
    "ListCost" INTEGER,
    "EffectiveCost" INTEGER,
    "BilledCost" INTEGER,
    "Tags" TEXT NOT NULL,
    "x_UsefulSeconds" FLOAT NOT NULL,
    "x_LostSeconds" FLOAT NOT NULL,
    "x_Tokens" INTEGER NOT NULL,
    "x_Episodes" INTEGER NOT NULL,
    "x_PreferencePairs" INTEGER NOT NULL,
    "x_Records" INTEGER NOT NULL,
    "x_PriceSource" TEXT,
    "x_PriceAsOf" TEXT,
    "x_EstimateOrActual" TEXT NOT NULL,
    PRIMARY KEY ("x_AttemptId"),
    FOREIGN KEY("x_AttemptId") REFERENCES attempts (attempt_id)
)
"""

TABLES_OF_3 = (
    """
CREATE TABLE call_scopes (
    scope_id INTEGER NOT NULL,
    run TEXT NOT NULL,
    stage TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    store_id TEXT NOT NULL,
    PRIMARY KEY (scope_id),
    UNIQUE (run, stage, fingerprint)
)
""",
    """
CREATE TABLE usage_charges (
    "x_Run" TEXT NOT NULL,
    "x_StageId" TEXT NOT NULL,
    "x_Fingerprint" TEXT NOT NULL,
    "x_StoreId" TEXT NOT NULL,
    "x_Endpoint" TEXT NOT NULL,
    "x_Model" TEXT NOT NULL,
    "ChargePeriodStart" TEXT NOT NULL,
    "ChargePeriodEnd" TEXT NOT NULL,
    "ChargeCategory" TEXT NOT NULL,
    "ChargeDescription" TEXT NOT NULL,
    "BillingCurrency" TEXT NOT NULL,
    "ServiceCategory" TEXT NOT NULL,
    "ServiceName" TEXT NOT NULL,
    "Provider" TEXT NOT NULL,
    "ResourceType" TEXT NOT NULL,
    "PricingCategory" TEXT NOT NULL,
    "PricingQuantity" TEXT NOT NULL,
    "PricingUnit" TEXT NOT NULL,
    "ListCost" INTEGER,
    "EffectiveCost" INTEGER,
    "BilledCost" INTEGER,
    "Tags" TEXT NOT NULL,
    "x_Requests" INTEGER NOT NULL,
    "x_Answered" INTEGER NOT NULL,
    "x_Refused" INTEGER NOT NULL,
    "x_Unknown" INTEGER NOT NULL,
    "x_Unpriced" INTEGER NOT NULL,
    "x_PromptTokens" INTEGER NOT NULL,
    "x_CachedTokens" INTEGER NOT NULL,
    "x_CompletionTokens" INTEGER NOT NULL,
    "x_SettledMicroUsd" INTEGER NOT NULL,
    "x_UnknownMicroUsd" INTEGER NOT NULL,
    "x_FirstAt" FLOAT NOT NULL,
    "x_LastAt" FLOAT NOT NULL,
    "x_EstimateOrActual" TEXT NOT NULL,
    row_check INTEGER NOT NULL,
    PRIMARY KEY ("x_Run", "x_StageId", "x_Fingerprint", "x_StoreId", "x_Endpoint", "x_Model")
)
""",
    """
CREATE TABLE call_answers (
    scope_id INTEGER NOT NULL,
    "key" TEXT NOT NULL,
    call_id TEXT NOT NULL,
    answer TEXT NOT NULL,
    sha256 TEXT NOT NULL,
    PRIMARY KEY (scope_id, "key"),
    FOREIGN KEY(scope_id) REFERENCES call_scopes (scope_id)
)
""",
    """
CREATE TABLE call_intents (
    scope_id INTEGER NOT NULL,
    call_id TEXT NOT NULL,
    "key" TEXT NOT NULL,
    model TEXT NOT NULL,
    endpoint TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    at FLOAT NOT NULL,
    most_micro_usd INTEGER,
    row_check INTEGER NOT NULL,
    PRIMARY KEY (scope_id, call_id),
    FOREIGN KEY(scope_id) REFERENCES call_scopes (scope_id)
)
""",
    """
CREATE TABLE call_settlements (
    scope_id INTEGER NOT NULL,
    call_id TEXT NOT NULL,
    revision INTEGER NOT NULL,
    outcome TEXT NOT NULL,
    at FLOAT NOT NULL,
    prompt_tokens INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL,
    completion_tokens INTEGER NOT NULL,
    micro_usd INTEGER,
    note TEXT NOT NULL,
    row_check INTEGER NOT NULL,
    PRIMARY KEY (scope_id, call_id, revision),
    CHECK (outcome IN ('answered', 'refused', 'unknown', 'billed', 'void')),
    FOREIGN KEY(scope_id) REFERENCES call_scopes (scope_id)
)
""",
)
"""What version 3 added, in the order of its references."""

COLUMNS_OF_4 = (
    ("attempts", "job_id TEXT"),
    ("attempts", "nodes TEXT"),
    ("attempts", "owner TEXT"),
    ("attempts", "tags TEXT DEFAULT '{}' NOT NULL"),
    ("attempts", "shard :whole"),
    ("attempts", "energy_joules :whole"),
    ("attempts", "energy_source TEXT"),
    ("attempts", "idle_milliseconds :whole"),
    ("charges", '"x_Owner" TEXT'),
    ("charges", '"x_JobId" TEXT'),
    ("charges", '"x_Nodes" TEXT'),
    ("charges", '"x_Shard" :whole'),
    ("charges", '"x_Clock" TEXT'),
    ("charges", '"x_IdleSeconds" FLOAT'),
    ("charges", '"x_IdleCost" :whole'),
    ("charges", '"x_LostCost" :whole'),
    ("charges", '"x_EnergyJoules" :whole'),
    ("charges", '"x_EnergySource" TEXT'),
    ("usage_charges", '"x_Owner" TEXT'),
    ("usage_charges", '"x_OwnTags" TEXT'),
)
"""What version 4 added to tables; `:whole` is a whole number of 64 bits."""

_DIMENSIONS = ("run", "stage", "fingerprint", "owner", "tags", "accelerator", "infra", "market", "outcome", "day")
_SUMS = (
    "attempts", "milliseconds", "billed_unit_milliseconds", "useful_milliseconds", "lost_to_kills_milliseconds",
    "lost_to_failures_milliseconds", "micro_usd", "lost_to_kills_micro_usd", "lost_to_failures_micro_usd",
    "priced_milliseconds", "priced_attempts", "tokens", "pairs", "episodes", "records", "useful_tokens",
    "useful_pairs", "useful_episodes", "useful_records", "idle_milliseconds", "idle_micro_usd",
    "watched_milliseconds", "energy_joules", "metered_milliseconds", "calls_requests", "calls_answered",
    "calls_refused", "calls_unknown", "calls_unpriced", "calls_prompt_tokens", "calls_cached_tokens",
    "calls_completion_tokens", "calls_settled_micro_usd", "calls_unknown_micro_usd", "other_micro_usd", "sum_check",
)  # fmt: skip

TABLES_OF_4 = (
    "CREATE INDEX attempts_of_runs ON attempts (run, attempt_id)",
    "CREATE INDEX attempts_of_shards ON attempts (run, stage, shard)",
    "CREATE INDEX attempts_running ON attempts (run) WHERE outcome = 'running'",
    "CREATE TABLE spend_sums ("
    + ", ".join(
        [
            *(f"{name} TEXT NOT NULL" for name in _DIMENSIONS),
            *(f"{name} :whole NOT NULL" for name in _SUMS),
            f"PRIMARY KEY ({', '.join(_DIMENSIONS)})",
        ]
    )
    + ")",
    """
CREATE TABLE other_charges (
    charge_id :serial,
    run TEXT NOT NULL,
    stage TEXT NOT NULL,
    category TEXT NOT NULL,
    service TEXT NOT NULL,
    provider TEXT NOT NULL,
    resource TEXT NOT NULL,
    started_at FLOAT NOT NULL,
    ended_at FLOAT NOT NULL,
    quantity TEXT NOT NULL,
    unit TEXT NOT NULL,
    unit_price_micro_usd :whole,
    micro_usd :whole,
    price_source TEXT,
    price_as_of TEXT,
    owner TEXT,
    tags TEXT NOT NULL,
    row_check :whole NOT NULL
)
""",
    "CREATE INDEX other_charges_of_runs ON other_charges (run)",
    """
CREATE TABLE bills (
    bill_id :serial,
    sha256 TEXT NOT NULL,
    name TEXT NOT NULL,
    format TEXT NOT NULL,
    imported_at FLOAT NOT NULL,
    lines :whole NOT NULL,
    currency TEXT NOT NULL,
    billed_usd TEXT NOT NULL,
    row_check :whole NOT NULL,
    UNIQUE (sha256)
)
""",
    """
CREATE TABLE bill_lines (
    bill_id INTEGER NOT NULL,
    line INTEGER NOT NULL,
    content TEXT NOT NULL,
    row_check :whole NOT NULL,
    PRIMARY KEY (bill_id, line),
    FOREIGN KEY(bill_id) REFERENCES bills (bill_id)
)
""",
    """
CREATE TABLE bill_findings (
    bill_id INTEGER NOT NULL,
    number INTEGER NOT NULL,
    run TEXT NOT NULL,
    kind TEXT NOT NULL,
    content TEXT NOT NULL,
    row_check :whole NOT NULL,
    PRIMARY KEY (bill_id, number),
    FOREIGN KEY(bill_id) REFERENCES bills (bill_id)
)
""",
)
"""What version 4 added; `:serial` is a primary key that the database counts up and never uses twice."""


def statements_of_4(dialect: str) -> tuple[str, ...]:
    """The step to version 4 in the words of a database."""
    words = (
        {":whole": "INTEGER", ":serial": "INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT"}
        if dialect == "sqlite"
        else {":whole": "BIGINT", ":serial": "SERIAL NOT NULL PRIMARY KEY"}
    )
    added = (f"ALTER TABLE {table} ADD COLUMN {column}" for table, column in COLUMNS_OF_4)
    found = []
    for statement in (*added, *TABLES_OF_4):
        for word, meaning in words.items():
            statement = statement.replace(word, meaning)
        found.append(statement)
    return tuple(found)


TABLES_OF_5 = (
    """
CREATE TABLE stored_samples (
    sample_id TEXT NOT NULL PRIMARY KEY,
    run TEXT NOT NULL,
    place TEXT NOT NULL,
    at_milliseconds :whole NOT NULL,
    bytes :whole NOT NULL,
    sent_bytes :whole NOT NULL,
    why TEXT NOT NULL,
    host TEXT NOT NULL,
    provider TEXT NOT NULL,
    price_micro_usd_per_gb_month :whole,
    price_source TEXT NOT NULL,
    price_as_of TEXT NOT NULL,
    owner TEXT NOT NULL,
    tags TEXT NOT NULL
)
""",
    "CREATE INDEX stored_samples_of_places ON stored_samples (run, place, at_milliseconds)",
)
"""What version 5 added."""


def statements_of_5(dialect: str) -> tuple[str, ...]:
    """The step to version 5 in the words of a database."""
    return tuple(
        statement.replace(":whole", "INTEGER" if dialect == "sqlite" else "BIGINT") for statement in TABLES_OF_5
    )
