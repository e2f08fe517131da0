"""A fee is in the ledger once, and wherever money is told."""

import json

import pytest
from counted_project import project
from typer.testing import CliRunner

from charter.cli.main import app
from charter.errors import UsageError
from charter.ledger import Ledger

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


def test_a_fee_of_a_renamed_project_counts_once(root):
    assert charter(*ADD).exit_code == 0
    path = root / "charter.yaml"
    path.write_text(path.read_text().replace("name: counted", "name: renamed"))
    assert "name: renamed" in path.read_text()
    assert isinstance(charter(*ADD).exception, UsageError)


@pytest.mark.parametrize(
    "wrong", [["--usd", "-5"], ["--usd", "1e30"], ["--usd", "nan"], ["--to", "2026-11-01"], ["--stage", "no"]]
)
def test_an_absurd_fee_is_refused(root, wrong):
    assert isinstance(charter(*ADD, *wrong).exception, UsageError | SystemExit)
    assert not (root / "run" / "ledger.sqlite").exists()
