"""`charter plan` with objectives, alternatives, questions, dates and limits; in one process."""

import json

import pytest
from typer.testing import CliRunner

from charter.cli.main import app
from charter.errors import BudgetError, InfeasibleError, SpecError, UsageError

FILE = """
name: demo
models:
  base: {model: meta-llama/Llama-3.1-8B}
data:
  chat: {path: chat.jsonl, rows: 40_000, mean_tokens: 300}
pipeline:
  helpful: {kind: sft, init: base, data: [chat], global_batch: 128, seq_len: 2048}
resources: {clouds: [aws, lambda], accelerators: [H100:8], max_nodes: 2, use_spot: auto}
"""


@pytest.fixture
def plan(tmp_path):
    (tmp_path / "charter.yaml").write_text(FILE)

    def run(*arguments):
        done = CliRunner(env={"COLUMNS": "160"}).invoke(app, ["plan", str(tmp_path), *arguments])
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done

    return run


def test_objective_replaces_that_of_the_file(plan):
    fast, cheap = (json.loads(plan("--objective", name, "--json").stdout) for name in ("fastest", "cheapest"))
    assert (fast["objective"], cheap["objective"]) == ("fastest", "cheapest")
    assert fast["total"]["seconds"]["p50"] < cheap["total"]["seconds"]["p50"]
    with pytest.raises(UsageError, match="objective"):
        plan("--objective", "best")


def test_alternatives_in_json_and_as_a_table(plan):
    told = json.loads(plan("--alternatives", "2", "--json").stdout)["alternatives"]
    assert len(told) == 2
    assert all(item["differs"] for item in told)
    table = plan("--alternatives", "2").stdout
    assert "Alternatives for the objective 'cheapest'" in table
    for item in told:
        assert item["differs"]["helpful"] in table


def test_what_if_shows_both_side_by_side(plan):
    asked = ("--what-if", "market=on_demand", "--what-if", "accelerators=T4:1")
    told = json.loads(plan(*asked, "--json").stdout)
    market, none = told["what_if"]
    assert market["set"] == ["resources.use_spot=false"]
    assert market["ratio"]["usd"] == pytest.approx(
        market["plan"]["total"]["usd"]["p50"] / told["total"]["usd"]["p50"], abs=1e-5
    )
    assert none["plan"] is None
    assert "2 nodes x 1 T4" in none["reason"]
    table = plan(*asked).stdout
    assert f"({market['ratio']['usd']:.2f} x)" in table
    assert "What if accelerators=T4:1:" in table
    with pytest.raises(UsageError, match="write it like"):
        plan("--what-if", "more")


def test_all_hardware_looks_beyond_the_file(plan):
    here = json.loads(plan("--json").stdout)["stages"][0]["rejected"]
    everywhere = json.loads(plan("--all-hardware", "--json").stdout)["stages"][0]["rejected"]
    assert len(everywhere) > 2 * len(here)


def test_start_gives_dates(plan):
    told = json.loads(plan("--start", "2026-12-01T09:00:00", "--json").stdout)["timeline"]
    assert told["start"] == "2026-12-01T09:00"
    assert told["finish"]["p50"] > told["start"]
    assert (
        f"the run ends on {told['finish']['p50'].replace('T', ' ')} (p50)"
        in plan("--start", "2026-12-01T09:00:00").stdout
    )


def test_old_prices_are_warned_of_on_stderr_only(plan):
    done = plan("--json")
    json.loads(done.stdout)
    assert done.stderr.count("warning[prices]") == 1, "one cause, one line"
    assert "may be older than 60 days (H100-SXM-80GB:8 on" in done.stderr
    assert "`charter catalog prices refresh` shows how to load newer ones" in done.stderr


def test_exit_codes_of_limits(plan):
    assert plan("--set", "deadline=1min").exit_code == 0
    with pytest.raises(InfeasibleError, match="feasible from deadline"):
        plan("--set", "deadline=1min", "--fail-over-deadline")
    with pytest.raises(BudgetError, match="cheapest possible is"):
        plan("--set", "budget={limit: 1}", "--objective", "fastest")


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (("--objective", "cheep"), "give cheapest, fastest, balanced"),
        (("--start", "tomorrow"), "write it like 2026-12-01"),
        (("--explain", "helpfull"), "this project has helpful"),
        (("--explain", "helpful", "--json"), "give one of them"),
        (("--explain", "helpful", "--what-if", "nodes=2"), "give one of them"),
        (("--expand", "--json"), "give one of them"),
        (("--what-if", "gpus=0"), "whole number of 1 or more"),
        (("--fail-over-budget", "--allow-over-budget"), "ask for opposites"),
    ],
)
def test_what_is_asked_wrongly_is_told_before_anything_is_planned(plan, asked, told, monkeypatch):
    monkeypatch.setattr("charter.plan.project_plan.plan_project", lambda *_, **__: pytest.fail("planned"))
    with pytest.raises(UsageError, match=told):
        plan(*asked)


def test_a_key_that_is_not_there_is_told_before_planning(plan, monkeypatch):
    monkeypatch.setattr("charter.plan.project_plan.plan_project", lambda *_, **__: pytest.fail("planned"))
    with pytest.raises(SpecError, match="unknown key 'tokens'"):
        plan("--what-if", "tokens=3M")


def test_files_and_limits_count_beside_a_question_too(plan, tmp_path):
    page, saved = tmp_path / "plan.html", tmp_path / "plan.json"
    asked = ("--what-if", "nodes=2", "--html", str(page), "--output", str(saved))
    with pytest.raises(BudgetError):
        plan(*asked, "--set", "budget.limit=1")
    assert page.read_text().startswith("<!doctype html>")
    assert json.loads(saved.read_text())["name"] == "demo"


def test_budget_exceeded_at_p90_alone_fails_only_when_asked(plan):
    usd = json.loads(plan("--json").stdout)["total"]["usd"]
    between = ("--set", f"budget.limit={(usd['p50'] + usd['p90']) / 2}")
    plan(*between)
    with pytest.raises(BudgetError, match="--allow-over-budget"):
        plan(*between, "--fail-over-budget")
    plan("--set", "budget.limit=1", "--allow-over-budget")


@pytest.mark.parametrize("option", ["--html", "--output"])
@pytest.mark.parametrize("place", [".", "missing/plan.out"])
def test_a_file_that_cannot_be_written_is_told(plan, tmp_path, option, place):
    with pytest.raises(UsageError, match="a directory that exists"):
        plan(option, str(tmp_path / place))


def test_a_start_with_an_offset_is_told_in_utc(plan):
    assert "started on 2026-12-01 07:00 UTC" in plan("--start", "2026-12-01T09:00+02:00").stdout


def test_a_project_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"there is no file or directory .*nothere\.yaml"):
        raise CliRunner().invoke(app, ["plan", str(tmp_path / "nothere.yaml")]).exception


def test_the_version():
    assert CliRunner().invoke(app, ["--version"]).stdout.startswith("charter 0.")


@pytest.mark.parametrize(
    ("words", "again", "then"),
    [
        (
            "-t cai-smoke --set resources.price=0.1 --alternatives 1",
            "--template cai-smoke --set resources.price=0.1",
            "charter init --template cai-smoke",
        ),
        ("sft Llama-3.1-8B --tokens 10M --on A100:8", "sft Llama-3.1-8B --tokens 10M --on A100:8", "--save"),
    ],
)
def test_the_last_line_asks_about_this_plan(words, again, then):
    done = CliRunner().invoke(app, ["plan", *words.split()])
    explain, *others = " ".join(done.stdout.split()).partition("Next: ")[2].split(" \N{MIDDLE DOT} ")
    assert explain.startswith(f"charter plan {again} --explain ")
    assert any(step.startswith(then) for step in others)
    explained = CliRunner().invoke(app, explain.split()[1:])
    assert explained.exit_code == 0, explained.output


def test_the_last_line_names_the_project(plan, tmp_path):
    text = " ".join(plan("--objective", "fastest").stdout.split())
    assert f"Next: charter plan {tmp_path} --objective fastest --explain helpful \N{MIDDLE DOT}" in text
    assert text.endswith(f"\N{MIDDLE DOT} charter run {tmp_path}"), "nothing stands below the next step"
