"""The FOCUS dataset: every rule of the specification kept, exact money, whole months, no formulas; and its checker."""

import csv
import io
import json
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from charter.ledger.account import account
from charter.ledger.attempt import Attempt
from charter.ledger.call import CallSums, RouteTotals
from charter.ledger.focus import Account, ApiUsage, rows_of_attempts, rows_of_other, rows_of_usage
from charter.ledger.focus_check import MOST, check_focus, to_csv, to_parquet
from charter.ledger.focus_columns import COLUMNS, VERSIONS
from charter.ledger.stored import OtherCharge

OURS = Account(identifier="demo")
NOVEMBER_30 = datetime(2025, 11, 30, 12, tzinfo=UTC).timestamp()


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


def usage(**changes: object) -> ApiUsage:
    values: dict[str, object] = dict(requests=3, prompt_tokens=700, completion_tokens=300, settled_micro_usd=1234)
    sums = CallSums(**(values | changes))  # type: ignore[arg-type]
    route = RouteTotals(endpoint="http://judge:8000/v1", model="m", first_at=1.7645e9, last_at=1.7646e9, sums=sums)
    return ApiUsage(run="demo", stage="label", fingerprint="f", store_id="1", route=route, owner="ann")


def disk(**changes: object) -> OtherCharge:
    values: dict[str, object] = dict(
        run="demo", category="Storage", service="Object storage", provider="aws", resource="s3://bucket",
        started_at=1.7645e9, ended_at=1.7646e9, quantity="1.5", unit="GB-Months", unit_price_micro_usd=23_000,
        micro_usd=34_500,
    )  # fmt: skip
    return OtherCharge(**(values | changes))  # type: ignore[arg-type]


def rows_of(*attempts: Attempt) -> list[dict[str, str]]:
    return read(to_csv(list(rows_of_attempts(account(attempts), OURS))))


def read(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def whole() -> list:
    accounted = account(
        [
            attempt(owner="ann", tags='{"team": "a"}', idle_milliseconds=60_000, energy_joules=7_200_000),
            attempt(attempt_id=4, number=3, outcome="killed", price_micro_usd_per_hour=None),
            attempt(attempt_id=5, number=4, outcome="running", accelerator="cpu", count=1, market="owned"),
        ]
    )
    return [
        *rows_of_attempts(accounted, OURS),
        *rows_of_usage([usage(), usage(unpriced=1, settled_micro_usd=0)], OURS),
        *rows_of_other([disk(), disk(category="Other", service="Head node", micro_usd=None)], OURS),
    ]


def findings(text: str) -> list[str]:
    rows = csv.reader(io.StringIO(text))
    header = next(rows)
    return [str(item) for item in check_focus(header, [dict(zip(header, row, strict=True)) for row in rows])]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_whole_dataset_keeps_every_rule(version):
    assert findings(to_csv(whole(), version)) == []


def test_1_3_says_whose_machines_and_whose_service_it_is():
    rows = read(to_csv(whole(), "1.3"))
    assert {(row["HostProviderName"], row["ServiceProviderName"]) for row in rows} == {
        (row["ProviderName"], row["ProviderName"]) for row in rows
    }
    assert "ServiceProviderName" not in read(to_csv(whole()))[0]


def test_a_dataset_is_held_to_its_version():
    header, *rows = csv.reader(io.StringIO(to_csv(whole(), "1.3")))
    cells = [dict(zip(header, row, strict=True)) for row in rows]
    assert check_focus(header, cells) == ()
    assert any("no column that Charter knows of FOCUS 1.2" in str(item) for item in check_focus(header, cells, "1.2"))
    lacking = [name for name in header if name != "HostProviderName"]
    assert [str(item) for item in check_focus(lacking, cells)] == [
        "header: HostProviderName: is mandatory and not there"
    ]
    cells[0]["ContractApplied"] = '{"Elements": 3}'
    assert [item.column for item in check_focus(header, cells)] == ["ContractApplied"]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_mandatory_column_is_there_and_own_ones_stand_last(version):
    header = to_csv(whole(), version).splitlines()[0].split(",")
    assert set(header) >= {column.name for column in COLUMNS[version] if column.level == "Mandatory"}
    assert {"ProviderName", "PublisherName", "InvoiceIssuerName"} <= set(header)
    assert [name.startswith("x_") for name in header] == sorted(name.startswith("x_") for name in header)


def test_what_a_bill_says_is_divided_by_months_and_adds_up_to_it():
    long = attempt(started_at=NOVEMBER_30, duration_milliseconds=37 * 86_400_000)
    other = attempt(attempt_id=4, number=3)
    billed = {3: ("aws-2025-12", Decimal("100.01"))}
    rows = list(rows_of_attempts(account([long, other]), OURS, billed=billed))
    shares = [row["BilledCost"] for row in rows if row["x_AttemptId"] == 3]
    assert shares == [Decimal("1.351486"), Decimal("83.792162"), Decimal("14.866352")]
    assert sum(shares) == Decimal("100.01")
    assert {row["x_BillName"] for row in rows[:-1]} == {"aws-2025-12"}
    assert (rows[-1]["BilledCost"], rows[-1]["x_BillName"]) == (Decimal(10), None)


def test_costs_are_exact_decimal_dollars():
    (row,) = rows_of(attempt())
    assert (row["EffectiveCost"], row["ListUnitPrice"]) == ("10.000000", "2.500000")
    assert Decimal(row["PricingQuantity"]) == 4
    assert Decimal(row["ListCost"]) == 10
    assert (row["PricingCategory"], row["PricingUnit"]) == ("Dynamic", "Accelerator-Hours")
    assert json.loads(row["Tags"]) == {"run": "demo", "stage": "ppo", "attempt": "2"}
    assert (row["ChargePeriodStart"], row["ChargePeriodEnd"]) == ("2025-11-30T10:53:20Z", "2025-11-30T11:23:20Z")


def test_what_was_lost_idle_and_drawn_stands_in_own_columns():
    (row,) = rows_of(attempt(outcome="failed", last_step=10, idle_milliseconds=10**9, energy_joules=7_200_000))
    assert (row["x_LostCost"], row["x_IdleCost"], row["x_EnergyKilowattHours"]) == (
        "10.000000",
        "0.000000",
        "2.000000000",
    )
    (row,) = rows_of(attempt(idle_milliseconds=900_000, energy_source="nvml_counter"))
    assert (row["x_LostCost"], row["x_IdleCost"], row["x_IdleSeconds"]) == ("0.000000", "5.000000", "900.000")
    (row,) = rows_of(attempt())
    assert (row["x_IdleCost"], row["x_EnergyKilowattHours"]) == ("", "")


def test_an_unpriced_attempt_costs_nothing_and_says_so():
    (row,) = rows_of(attempt(price_micro_usd_per_hour=None))
    assert (row["EffectiveCost"], row["ListUnitPrice"], row["x_IsPriced"]) == ("0.000000", "0.000000", "false")


def test_an_attempt_over_the_end_of_a_year_is_divided_by_month():
    first, second = rows_of(attempt(started_at=1_767_225_600.0 - 3600, duration_milliseconds=4 * 3_600_000))
    assert (first["BillingPeriodStart"], first["BillingPeriodEnd"]) == ("2025-12-01T00:00:00Z", "2026-01-01T00:00:00Z")
    assert (second["BillingPeriodStart"], second["x_Part"]) == ("2026-01-01T00:00:00Z", "1")
    assert (first["EffectiveCost"], second["EffectiveCost"]) == ("20.000000", "60.000000")
    assert first["ChargePeriodEnd"] == second["ChargePeriodStart"] == "2026-01-01T00:00:00Z"


def test_a_running_attempt_is_an_estimate():
    assert rows_of(attempt(outcome="running"))[0]["x_EstimateOrActual"] == "estimate"


def test_a_stage_name_that_looks_like_a_formula_is_quoted():
    assert rows_of(attempt(stage="=HYPERLINK(1)"))[0]["x_StageId"].startswith("'=")


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 10**10), st.integers(0, 10**9), st.floats(0, 4e9), st.integers(1, 2048)),
        min_size=1,
        max_size=5,
    )
)
def test_rows_add_up_to_the_last_digit_and_keep_every_rule(parts):
    attempts = [
        attempt(
            attempt_id=i + 1, number=i + 1, duration_milliseconds=duration, price_micro_usd_per_hour=price,
            started_at=started, count=count, outcome=("done", "killed")[i % 2], energy_joules=duration,
        )
        for i, (duration, price, started, count) in enumerate(parts)
    ]  # fmt: skip
    text = to_csv(list(rows_of_attempts(account(attempts), OURS)))
    rows = read(text)
    assert findings(text) == []
    totals = account(attempts)
    for column, expected in (
        ("EffectiveCost", sum(item.cost_micro_usd or 0 for item in totals)),
        ("x_LostCost", sum(item.lost_micro_usd or 0 for item in totals)),
    ):
        assert sum(Decimal(row[column]) for row in rows) * 1_000_000 == expected
    assert sum(Decimal(row["x_BilledSeconds"]) for row in rows) * 1000 == sum(a.duration_milliseconds for a in attempts)
    for row in rows:
        assert (
            abs(Decimal(row["ListCost"]) - Decimal(row["EffectiveCost"])) < Decimal("0.000003") + Decimal("1e-6") * 600
        )


def test_parquet_holds_the_same(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    (tmp_path / "charges.parquet").write_bytes(to_parquet(whole()))
    table = parquet.read_table(tmp_path / "charges.parquet")
    assert str(table.schema.field("BilledCost").type) == "decimal128(38, 15)"
    assert str(table.schema.field("ChargePeriodStart").type) == "timestamp[ms, tz=UTC]"
    from_csv = read(to_csv(whole()))
    assert [Decimal(row["EffectiveCost"]) for row in from_csv] == table.column("EffectiveCost").to_pylist()
    assert table.column_names == list(from_csv[0])


BROKEN = {
    "BilledCost": ("1,000", "no number"),
    "EffectiveCost": ("", "must not be null"),
    "ListCost": ("11", "is not ListUnitPrice x PricingQuantity"),
    "ListUnitPrice": ("-1", "is below 0"),
    "BillingCurrency": ("usd", "ISO 4217"),
    "ChargePeriodStart": ("2025-11-30 10:00:00", "not a UTC moment"),
    "ChargePeriodEnd": ("2025-11-29T00:00:00Z", "is before ChargePeriodStart"),
    "BillingPeriodStart": ("2025-12-01T00:00:00Z", "lies outside"),
    "ChargeCategory": ("usage", "is not one of Usage"),
    "ServiceCategory": ("AI", "is not one of AI and Machine Learning"),
    "ServiceSubcategory": ("Generative AI", "not a part of 'Compute'"),
    "PricingUnit": ("hours", "no unit"),
    "PricingQuantity": ("", "must not be null for usage"),
    "SkuPriceId": ("", "must not be null for usage"),
    "ResourceType": ("", "null exactly when ResourceId is"),
    "Tags": ("team=a", "no JSON object"),
    "ProviderName": (" aws", "has spaces around it"),
    "ChargeClass": ("Wrong", "is not one of Correction"),
}


@pytest.mark.parametrize("column", BROKEN)
def test_the_checker_finds_a_broken_cell(column):
    rows = rows_of(attempt())
    assert check_focus(list(rows[0]), rows) == ()
    value, message = BROKEN[column]
    rows[0][column] = value
    assert any(message in str(item) for item in check_focus(list(rows[0]), rows)), check_focus(list(rows[0]), rows)


def test_the_checker_finds_a_broken_header_and_stops_in_time():
    rows = rows_of(attempt())
    names = [name for name in rows[0] if name != "BilledCost"]
    messages = [str(item) for item in check_focus([*names, "Provider"], rows)]
    assert "header: BilledCost: is mandatory and not there" in messages
    assert any("Provider: is no column" in message for message in messages)
    assert len(check_focus(list(rows[0]), [{}] * 1000)) == MOST


def test_columns_are_named_once():
    assert all(len({column.name for column in columns}) == len(columns) for columns in COLUMNS.values())
