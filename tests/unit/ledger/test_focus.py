"""The FOCUS export: names of the specification, exact money, periods in order, no formulas."""

import csv
import io
import json
from decimal import Decimal

from hypothesis import given, settings
from hypothesis import strategies as st

from charter.ledger.account import account
from charter.ledger.attempt import Attempt
from charter.ledger.focus import charge, export_csv

MANDATORY = {
    "BilledCost", "EffectiveCost", "ListCost", "ContractedCost", "BillingAccountId", "BillingAccountName",
    "BillingCurrency", "BillingPeriodStart", "BillingPeriodEnd", "ChargePeriodStart", "ChargePeriodEnd",
    "ChargeCategory", "ChargeClass", "ChargeDescription", "InvoiceIssuer", "PricingQuantity", "PricingUnit",
    "Provider", "Publisher", "ServiceCategory", "ServiceName",
}  # fmt: skip


def attempt(**changes: object) -> Attempt:
    values: dict[str, object] = dict(
        attempt_id=3,
        run="demo",
        stage="ppo",
        kind="ppo",
        number=2,
        fingerprint="f",
        accelerator="H100-SXM-80GB",
        count=8,
        infra="aws",
        market="spot",
        started_at=1_764_500_000.0,
        duration_milliseconds=1_800_000,
        clock="monotonic",
        last_heartbeat=1_764_501_800.0,
        first_step=0,
        last_step=10,
        outcome="done",
        episodes=640,
        price_micro_usd_per_hour=2_500_000,
        price_source="catalog",
        price_as_of="2026-07-01",
    )
    return Attempt(**(values | changes))  # type: ignore[arg-type]


def rows_of(*attempts: Attempt) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(export_csv(charge(item) for item in account(attempts)))))


def test_every_mandatory_column_of_focus_is_there():
    assert set(rows_of(attempt())[0]) >= MANDATORY


def test_costs_are_exact_decimal_dollars():
    (row,) = rows_of(attempt())
    assert (row["EffectiveCost"], row["ListUnitPrice"]) == ("10.000000", "2.500000")
    assert Decimal(row["PricingQuantity"]) == 4
    assert (row["PricingCategory"], row["PricingUnit"]) == ("Dynamic", "Accelerator-Hours")
    assert json.loads(row["Tags"]) == {"run": "demo", "stage": "ppo", "attempt": "2"}


def test_an_unpriced_attempt_has_empty_costs():
    (row,) = rows_of(attempt(price_micro_usd_per_hour=None))
    assert (row["EffectiveCost"], row["ListUnitPrice"], row["BilledCost"]) == ("", "", "")


def test_a_december_charge_is_in_the_period_that_ends_in_january():
    (row,) = rows_of(attempt(started_at=1_765_000_000.0))
    assert (row["BillingPeriodStart"], row["BillingPeriodEnd"]) == (
        "2025-12-01T00:00:00.000Z",
        "2026-01-01T00:00:00.000Z",
    )


def test_a_running_attempt_is_an_estimate():
    assert charge(account([attempt(outcome="running")])[0])["x_EstimateOrActual"] == "estimate"


def test_a_stage_name_that_looks_like_a_formula_is_quoted():
    assert rows_of(attempt(stage="=HYPERLINK(1)"))[0]["x_StageId"].startswith("'=")


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10**8), st.integers(0, 10**9)), min_size=1, max_size=6))
def test_the_sum_of_the_exported_costs_is_the_total_to_the_last_digit(parts):
    attempts = [
        attempt(attempt_id=i + 1, number=i + 1, duration_milliseconds=duration, price_micro_usd_per_hour=price)
        for i, (duration, price) in enumerate(parts)
    ]
    exported = sum(Decimal(row["EffectiveCost"]) for row in rows_of(*attempts))
    assert exported * 1_000_000 == sum(item.cost_micro_usd or 0 for item in account(attempts))
