"""Charges in the column names of FOCUS 1.2 (FinOps Open Cost and Usage Specification), one row per attempt.

This is how the ledger keeps them: money in whole micro-USD, empty where it is not known. `focus_rows` makes the rows
of a dataset from them, in which every column has the form that the specification asks for.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime

from charter.ledger.account import MILLISECONDS_PER_HOUR, Accounted

PRICING_CATEGORIES = {"on_demand": "Standard", "spot": "Dynamic", "reserved": "Committed"}
Charge = dict[str, str | int | float | None]


def charge(item: Accounted, *, labels: Mapping[str, str] | None = None) -> Charge:
    """The charge of one attempt. An attempt without a price has empty costs and its full quantity.

    `BilledCost` stays empty until an invoice is matched. `ListCost` and `EffectiveCost` are both at the price
    that the attempt was started with.
    """
    attempt = item.attempt
    ended_at = attempt.started_at + attempt.duration_milliseconds / 1000
    own = {"run": attempt.run, "stage": attempt.stage, "attempt": str(attempt.number)}
    owner = {"owner": attempt.owner} if attempt.owner else {}
    tags = {**(labels or {}), **json.loads(attempt.tags), **owner, **own}
    unit = "Machine-Hours" if attempt.accelerator == "cpu" else "Accelerator-Hours"
    return {
        "x_AttemptId": attempt.attempt_id,
        "x_StageId": attempt.stage,
        "ChargePeriodStart": timestamp(attempt.started_at),
        "ChargePeriodEnd": timestamp(ended_at),
        "ChargeCategory": "Usage",
        "ChargeDescription": f"stage {attempt.stage}, attempt {attempt.number}: {attempt.outcome}",
        "BillingCurrency": "USD",
        "ServiceCategory": "Compute",
        "ServiceName": "Charter training",
        "Provider": attempt.infra,
        "ResourceType": attempt.accelerator,
        "PricingCategory": PRICING_CATEGORIES.get(attempt.market, "Other"),
        "PricingQuantity": hours_text(attempt.duration_milliseconds * attempt.count),
        "PricingUnit": unit,
        "ListUnitPrice": attempt.price_micro_usd_per_hour,
        "ListCost": item.cost_micro_usd,
        "EffectiveCost": item.cost_micro_usd,
        "BilledCost": None,
        "Tags": json.dumps(tags, sort_keys=True),
        "x_UsefulSeconds": item.useful_milliseconds / 1000,
        "x_LostSeconds": item.lost_milliseconds / 1000,
        "x_Tokens": attempt.tokens,
        "x_Episodes": attempt.episodes,
        "x_PreferencePairs": attempt.pairs,
        "x_Records": attempt.records,
        "x_PriceSource": attempt.price_source,
        "x_PriceAsOf": attempt.price_as_of,
        "x_EstimateOrActual": "estimate" if attempt.outcome == "running" else "actual",
        "x_Owner": attempt.owner,
        "x_JobId": attempt.job_id,
        "x_Nodes": attempt.nodes,
        "x_Shard": attempt.shard,
        "x_Clock": attempt.clock,
        "x_IdleSeconds": None if attempt.idle_milliseconds is None else item.idle_milliseconds / 1000,
        "x_IdleCost": item.idle_micro_usd,
        "x_LostCost": item.lost_micro_usd,
        "x_EnergyJoules": attempt.energy_joules,
        "x_EnergySource": attempt.energy_source,
    }


def hours_text(milliseconds: int) -> str:
    """Milliseconds as hours with nine decimals.

    >>> hours_text(1_800_000)
    '0.500000000'
    """
    return f"{milliseconds / MILLISECONDS_PER_HOUR:.9f}"


def timestamp(unix_seconds: float) -> str:
    """Unix seconds as FOCUS writes a moment.

    >>> timestamp(0.25)
    '1970-01-01T00:00:00.250Z'
    """
    return _iso(datetime.fromtimestamp(unix_seconds, tz=UTC))


def _iso(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
