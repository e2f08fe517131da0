"""A fee is in the ledger once, and wherever money is told."""

import csv
import json
from datetime import UTC, datetime

import pytest
from counted_project import project
from typer.testing import CliRunner

from charter.cli.main import app
from charter.engines.project import load_project
from charter.errors import UsageError
from charter.ledger import Ledger
from charter.ledger.sums import Sums
from charter.run.budget import read_spending

ADD = ["cost", "add", "reserved capacity", "--usd", "$1.2k", "--from", "2026-11-01", "--to", "2026-12-01"]


@pytest.fixture
def root(tmp_path, monkeypatch):
    root = project(tmp_path / "counted", limit="$2000")
    monkeypatch.chdir(root)
    return root


def charter(*words):
    return CliRunner().invoke(app, list(words))


def told(*words):
    done = charter(*words, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_a_fee_counts_in_budget_groups_and_report_once(root):
    assert charter(*ADD, "--provider", "aws", "--stage", "sft").exit_code == 0
    twice = charter(*ADD, "--provider", "aws", "--stage", "sft").exception
    assert isinstance(twice, UsageError), twice
    (root / "run" / "plan.json").write_text('{"stages": []}')
    report = told("cost", "report")
    assert [(fee["what"], fee["micro_usd"], fee["stage"]) for fee in report["fees"]] == [
        ("reserved capacity", 1_200_000_000, "sft")
    ]
    assert [(part["market"], part["usd"]) for part in report["by"]["market"]] == [("other", 1200.0)]
    (limit, *_) = told("cost", "budget")["limits"]
    assert limit["spent_usd"] == 1200.0
    assert "Fee: reserved capacity, aws, 2026-11-01 to 2026-12-01: $1,200" in charter("cost", "report").stdout
    with Ledger.open(root / "run" / "ledger.sqlite", create=False) as ledger:
        ledger.check_sums()


def test_a_credit_lowers_the_cost_and_says_why(root):
    assert charter(*ADD, "--provider", "aws").exit_code == 0
    credit = [*ADD, "--provider", "aws", "--usd", "-$200"]
    assert "-$200 for reserved capacity is in the ledger" in charter(*credit).stdout
    assert "the credit for reserved capacity" in str(charter(*credit).exception), "not twice"
    (root / "run" / "plan.json").write_text('{"stages": []}')
    (limit, *_) = told("cost", "budget")["limits"]
    assert limit["spent_usd"] == 1000.0
    assert by_month(root) == {"2026-11": 1000.0}
    assert [(fee["service"], fee["usd"]) for fee in told("cost", "report")["fees"]] == [("Fee", 1200), ("Credit", -200)]
    assert "Credit: reserved capacity, aws, 2026-11-01 to 2026-12-01: -$200\n" in charter("cost").stdout
    assert [json.loads(line)["event"] for line in (root / "run" / "events.jsonl").open()] == [
        "fee_added", "credit_added",
    ]  # fmt: skip
    assert charter("report", "-o", "report.html").exit_code == 0
    assert "<td>Credit</td><td>reserved capacity</td>" in (root / "report.html").read_text()


def test_a_credit_is_one_in_focus(root):
    assert charter(*ADD, "--provider", "aws").exit_code == 0
    assert (
        charter("cost", "add", "outage", "--usd", "-$200", "--from", "2026-11-03", "--to", "2026-11-04").exit_code == 0
    )
    (root / "run" / "plan.json").write_text('{"stages": []}')
    for version in ("1.2", "1.3"):
        assert charter("cost", "export", "--focus", "bill.csv", "--focus-version", version).exit_code == 0
        assert "no problems" in charter("cost", "check", "bill.csv").stdout
    fee, credit = csv.DictReader((root / "bill.csv").open())
    assert (fee["ChargeCategory"], fee["EffectiveCost"]) == ("Usage", "1200.000000")
    assert (credit["ChargeCategory"], credit["ChargeFrequency"]) == ("Credit", "One-Time")
    assert {credit[name] for name in ("BilledCost", "EffectiveCost", "ListCost", "ContractedCost")} == {"-200.000000"}
    assert {credit[name] for name in ("PricingQuantity", "ListUnitPrice", "ConsumedQuantity", "SkuId")} == {""}
    assert credit["ChargeDescription"] == "Credit: outage"


def by_month(root):
    with Ledger.open(root / "run" / "ledger.sqlite", create=False) as ledger:
        ledger.check_sums()
    return {part["month"]: part["usd"] for part in told("cost", "showback")["months"]}


def test_a_fee_counts_in_the_months_that_it_is_for(root):
    assert charter(*ADD).exit_code == 0
    assert by_month(root) == {"2026-11": 1200.0}, "its last day is before --to"
    term = ["cost", "add", "reserved term", "--usd", "$61", "--from", "2026-11-15", "--to", "2027-01-15"]
    assert charter(*term).exit_code == 0
    assert by_month(root) == pytest.approx({"2026-11": 1216.0, "2026-12": 31.0, "2027-01": 14.0})


def test_a_budget_by_month_has_this_months_part_of_a_fee(root):
    path = root / "charter.yaml"
    month, owner = "budget: {limit: $2000, period: month, owners: {ann: $100}}", "owner: ann\n"
    path.write_text(owner + path.read_text().replace("budget: {limit: $2000}", month))
    assert charter("cost", "add", "term", "--usd", "$1200", "--from", "2026-11-01", "--to", "2027-11-01").exit_code == 0
    project = load_project(root)
    with Ledger.open(root / "run" / "ledger.sqlite", create=False) as ledger:
        for day, days in ((datetime(2026, 10, 31), 0), (datetime(2026, 12, 31, 23), 31), (datetime(2027, 2, 1), 28)):
            of_ann = read_spending(ledger, project, now=day.replace(tzinfo=UTC).timestamp()).by_owner.get("ann", Sums())
            assert of_ann.usd == pytest.approx(1200 * days / 365, abs=1e-4)


def test_a_fee_of_a_renamed_project_counts_once(root):
    assert charter(*ADD).exit_code == 0
    path = root / "charter.yaml"
    path.write_text(path.read_text().replace("name: counted", "name: renamed"))
    assert "name: renamed" in path.read_text()
    assert isinstance(charter(*ADD).exception, UsageError)


@pytest.mark.parametrize(
    "wrong",
    [
        ["--usd", "0"],
        ["--usd", "-0"],
        ["--usd", "--5"],
        ["--usd", "-1e30"],
        ["--usd", "1e30"],
        ["--usd", "nan"],
        ["--to", "2026-11-01"],
        ["--to", "2036-11-02"],
        ["--stage", "no"],
    ],
)
def test_an_absurd_fee_is_refused(root, wrong):
    assert isinstance(charter(*ADD, *wrong).exception, UsageError | SystemExit)
    assert not (root / "run" / "ledger.sqlite").exists()
