"""Charges in the column names of FOCUS 1.2 (FinOps Open Cost and Usage Specification), one row per attempt.

Columns that FOCUS does not know carry the prefix `x_`, as the specification asks. Inside, money is whole
micro-USD; the CSV export prints it in dollars with six decimals, which is exact.
"""

import csv
import io
import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from charter.ledger.account import MILLISECONDS_PER_HOUR, Accounted

PRICING_CATEGORIES = {"on_demand": "Standard", "spot": "Dynamic", "reserved": "Committed"}
MONEY_COLUMNS = (
    "ListUnitPrice",
    "ListCost",
    "EffectiveCost",
    "BilledCost",
    "ContractedCost",
    "ContractedUnitPrice",
)
Charge = dict[str, str | int | float | None]


def charge(item: Accounted, *, labels: Mapping[str, str] | None = None) -> Charge:
    """The charge of one attempt. An attempt without a price has empty costs and its full quantity.

    `BilledCost` stays empty until an invoice is matched. `ListCost` and `EffectiveCost` are both at the price
    that the attempt was started with.
    """
    attempt = item.attempt
    ended_at = attempt.started_at + attempt.duration_milliseconds / 1000
    tags = {**(labels or {}), "run": attempt.run, "stage": attempt.stage, "attempt": str(attempt.number)}
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
    }


def export_csv(charges: Iterable[Charge]) -> str:
    """Charges as a FOCUS CSV; mandatory columns that a run does not know are constants or empty."""
    rows = [_with_constants(row) for row in charges]
    text = io.StringIO()
    columns = list(dict.fromkeys(name for row in rows for name in row)) or list(_CONSTANTS)
    writer = csv.DictWriter(text, fieldnames=columns, restval="", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _cell(name, value) for name, value in row.items()})
    return text.getvalue()


_CONSTANTS: Charge = {
    "BillingAccountId": "charter",
    "BillingAccountName": "charter",
    "InvoiceIssuer": None,
    "Publisher": "charter",
    "ChargeClass": None,
}


def _with_constants(row: Charge) -> Charge:
    start = datetime.fromisoformat(str(row["ChargePeriodStart"]))
    month = start.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    following = month.replace(year=month.year + month.month // 12, month=month.month % 12 + 1)
    periods: Charge = {"BillingPeriodStart": _iso(month), "BillingPeriodEnd": _iso(following)}
    contracted: Charge = {
        "ContractedCost": row["EffectiveCost"],
        "ContractedUnitPrice": row.get("ListUnitPrice"),
    }
    return {**_CONSTANTS, **periods, **row, **contracted}


def _cell(name: str, value: str | int | float | None) -> str | int | float:
    if value is None:
        return ""
    if name in MONEY_COLUMNS and isinstance(value, int):
        return usd_text(value)
    # A leading = + - @ would be run as a formula by spreadsheet programs.
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@") else value


def usd_text(micro_usd: int) -> str:
    """Micro-USD as dollars with six decimals, exact.

    >>> usd_text(1234), usd_text(-2_500_000)
    ('0.001234', '-2.500000')
    """
    sign, size = ("-" if micro_usd < 0 else ""), abs(micro_usd)
    return f"{sign}{size // 1_000_000}.{size % 1_000_000:06d}"


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
