"""`charter cost budget | advise | export | check | import` from the outside, on a project with a ledger."""

import csv
import json
import shutil

import pytest

pytest.importorskip("sqlalchemy")

from typer.testing import CliRunner

from charter.cli.main import app
from charter.engines.project import load_project
from charter.errors import UsageError
from charter.ledger import Ledger

START = 1_780_000_000.0


def run(*arguments, code=0):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.stdout


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A project whose ledger has three attempts, 10 USD each, one of them lost."""
    root = tmp_path_factory.mktemp("cost") / "project"
    run("init", "--template", "cai-smoke", root)
    with (root / "charter.yaml").open("a") as file:
        file.write("owner: ann\ntags: {team: alignment}\n")
    name = load_project(root).name
    with Ledger.open(root / "run" / "ledger.sqlite") as ledger:
        for index, (stage, outcome) in enumerate((("sl_cai", "killed"), ("sl_cai", "done"), ("pm", "done"))):
            attempt = ledger.begin(
                run=name, stage=stage, kind="sft", fingerprint="f", at=START + index * 7200, owner="ann",
                tags={"team": "alignment"}, accelerator="H100-SXM-80GB", count=4, infra="slurm", market="on_demand",
                price_micro_usd_per_hour=2_500_000, job_id=str(100 + index), nodes="n1",
            )  # fmt: skip
            ledger.end(
                attempt, at=START + index * 7200 + 3600, outcome=outcome, step=index and 10, energy_joules=3_600_000,
                energy_source="nvml_counter", idle_milliseconds=360_000,
            )  # fmt: skip
    return root


@pytest.fixture
def project(made, tmp_path):
    return shutil.copytree(made, tmp_path / "project")


def limited(project, text):
    with (project / "charter.yaml").open("a") as file:
        file.write(text)
    return project


def test_the_report_divides_the_cost_and_every_division_adds_up(project):
    found = json.loads(run("cost", "report", "-C", project, "--json"))
    assert {"stage", "owner", "accelerator", "market", "day", "tag:team"} == set(found["by"])
    for parts in found["by"].values():
        assert sum(part["micro_usd"] for part in parts) == found["actual"]["micro_usd"] == 30_000_000
    assert found["waste"]["lost_to_kills_usd"] == 10.0
    assert found["waste"]["idle_usd"] == 2.0  # of the two attempts that were kept
    assert found["energy"]["machines_kwh"] == pytest.approx(3.0)
    assert found["by"]["owner"][0]["owner"] == "ann"
    text = run("cost", "report", "-C", project)
    assert "Idle: machines were held and did nothing" in text
    assert "Energy: 3 kWh, measured for 100 % of the time" in text


def test_every_limit_is_shown_and_a_reached_one_is_exit_code_4(project):
    limits = "budget: {limit: 100, stages: {sl_cai: 25, pm: 11}, owners: {ann: 60, ben: 5}, tags: {team=alignment: 40}}"
    limited(project, f"{limits}\n")
    found = json.loads(run("cost", "budget", "-C", project, "--json"))["limits"]
    rows = {(row["scope"], row["name"]): (row["spent_usd"], row["state"], row["passed_share"]) for row in found}
    name = load_project(project).name
    assert rows == {
        ("project", name): (30.0, "ok", None),
        ("stage", "sl_cai"): (20.0, "warn", 0.8),
        ("stage", "pm"): (10.0, "warn", 0.9),
        ("owner", "ann"): (30.0, "warn", 0.5),
        ("owner", "ben"): (0.0, "ok", None),
        ("tag", "team=alignment"): (30.0, "warn", 0.5),
    }
    assert "80% of the budget is spent" in " ".join(run("cost", "budget", "-C", project).split())
    (project / "charter.yaml").write_text((project / "charter.yaml").read_text().replace("{limit: 100", "{limit: 30"))
    assert "stop: the budget is spent" in " ".join(run("cost", "budget", "-C", project, code=4).split())


def test_without_a_budget_there_is_nothing_to_show(project):
    with pytest.raises(UsageError, match="has no budget; add  budget"):
        run("cost", "budget", "-C", project)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("budget: {limit: 0}", "budget.limit: must be greater than 0"),
        ("budget: {limit: 1, stages: {pmm: 1}}", "no stage is called 'pmm'"),
        ("budget: {limit: 1, tags: {team: 1}}", "write it as in  team=alignment"),
        ("budget: {limit: 1, owners: {ann: -3}}", "is not an amount of money"),
        ("alerts: {webhook: 'https://hooks.example/SECRET'}", "env:NAME or file:PATH"),
    ],
)
def test_what_the_file_may_not_say(project, text, message):
    from charter.errors import SpecError

    with pytest.raises(SpecError) as raised:
        load_project(limited(project, f"{text}\n"))
    assert message in str(raised.value)


def test_advice_names_what_it_would_save(project):
    found = json.loads(run("cost", "advise", "-C", project, "--json"))["advice"]
    assert {(item["stage"], item["kind"]) for item in found} >= {("sl_cai", "idle"), ("sl_cai", "spot")}
    assert all(item["saving_usd"] is None or item["saving_usd"] > 0 for item in found)
    assert "Saves" in run("cost", "advise", "-C", project)


def test_the_export_keeps_the_rules_of_focus_and_is_a_bill_that_agrees(project, tmp_path):
    target = tmp_path / "focus.csv"
    assert "Wrote 3 charges" in run("cost", "export", "-C", project, "--focus", target)
    assert "FOCUS 1.2: 3 rows, no problems" in run("cost", "check", target)
    newer = tmp_path / "newer.csv"
    assert "as FOCUS 1.3" in run("cost", "export", "-C", project, "--focus", newer, "--focus-version", "1.3")
    assert "FOCUS 1.3: 3 rows, no problems" in run("cost", "check", newer)
    done = json.loads(run("cost", "import", target, "-C", project, "--json"))
    assert (done["agrees"], done["stored"], done["billed_usd"]) == (True, True, "30.000000")
    assert "already" in run("cost", "import", target, "-C", project)
    broken = target.read_text().replace("Usage-Based", "Sometimes")
    target.write_text(broken)
    assert "ChargeFrequency: 'Sometimes' is not one of" in run("cost", "check", target, code=8)


def test_the_export_as_parquet(project, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    run("cost", "export", "-C", project, "--focus", tmp_path / "focus.parquet")
    assert parquet.read_table(tmp_path / "focus.parquet").num_rows == 3
    with pytest.raises(UsageError, match=r"neither \.csv nor \.parquet"):
        run("cost", "export", "-C", project, "--focus", tmp_path / "focus.json")


def test_a_bill_is_kept_beside_the_ledger_and_its_amounts_are_exported_as_billed(project, tmp_path):
    bill = tmp_path / "november.csv"
    bill.write_text("job_id,seconds,cost_usd\n100,14400,10.00\n101,14400,12.00\n900,60,0.10\n")
    text = run("cost", "import", bill, "-C", project, "--dry-run")
    assert "Nothing was kept" in text
    assert "the same time at another price (+2.00 USD)" in text
    assert "line 3: stage sl_cai, attempt 2, job 101: 3.0000 USD per hour there, 2.5000 here" in text
    assert "in the ledger, not on the bill (-10.00 USD)" in text
    assert "on the bill, not in the ledger (+0.10 USD)" in text
    run("cost", "import", bill, "-C", project)
    run("cost", "export", "-C", project, "--focus", tmp_path / "focus.csv")
    rows = list(csv.DictReader((tmp_path / "focus.csv").open()))
    assert [(row["BilledCost"], row["EffectiveCost"], row["x_BillName"]) for row in rows] == [
        ("10.000000", "10.000000", "november.csv"),
        ("12.000000", "10.000000", "november.csv"),
        ("10.000000", "10.000000", ""),
    ]
    assert "3 rows, no problems" in run("cost", "check", tmp_path / "focus.csv")
    assert json.loads(run("cost", "report", "-C", project, "--json"))["bills"][0]["name"] == "november.csv"
