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
