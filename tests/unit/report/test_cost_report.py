"""The cost report: parts add up, forecasts follow the rule, nothing is priced without a price."""

import io
import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from charter.artifacts.sample_prompts import SAMPLE_TIMES, append_sample_time
from charter.cli.main import app
from charter.errors import DataError, UsageError
from charter.ledger import Ledger
from charter.ledger.stored import MILLISECONDS_PER_MONTH, RUN_DIRECTORY, StoredSample
from charter.report.cost import budget_state, cost_json, planned_usd, print_storage, storage_json, stored_places
from charter.report.cost_text import print_cost, time_ratio_text, unit_rows
from charter.report.html import report_html
from charter.report.overview import overview
from charter.report.plan_cells import NOTHING, Amount, planned
from charter.report.read import RunFiles, read_run
from charter.run.budget import read_plan
from charter.units import GIB, format_seconds

BUCKET = "s3://bucket/path"
MONTH_SECONDS = MILLISECONDS_PER_MONTH / 1000
PLAN = {"stages": [{"breakdown": {"usd": {"storage": 0.25, "transfer": 0.0}}}] * 2}


def sample(**changes):
    values = dict(run="demo", place=BUCKET, at_milliseconds=0, bytes=GIB, price_micro_usd_per_gb_month=23_000)
    return StoredSample(**values | changes)


@pytest.fixture
def places():
    return stored_places(
        [
            sample(sent_bytes=GIB),
            sample(at_milliseconds=MILLISECONDS_PER_MONTH, bytes=2 * GIB, sent_bytes=3 * GIB),
            sample(at_milliseconds=2 * MILLISECONDS_PER_MONTH, bytes=4 * GIB),
            sample(place=RUN_DIRECTORY, price_micro_usd_per_gb_month=None),
            sample(place=RUN_DIRECTORY, price_micro_usd_per_gb_month=None, at_milliseconds=MILLISECONDS_PER_MONTH),
        ],
        now=3 * MONTH_SECONDS,
    )


def test_bytes_over_time_are_told_by_place_with_their_price(places):
    told = storage_json(places, PLAN)
    directory, bucket = told["places"]
    assert (bucket["place"], bucket["gib_months"], bucket["bytes_now"], bucket["sent_bytes"]) == (
        BUCKET, 3.0, 4 * GIB, 4 * GIB,
    )  # fmt: skip
    assert bucket["micro_usd"] == pytest.approx(3 * 23_000 * GIB / 1e9, abs=31)
    assert bucket["usd_per_month"] == pytest.approx(4 * GIB / 1e9 * 0.023)
    assert bucket["since_gib_months"] == 4.0, "nobody has looked for a month: in no sum"
    assert (directory["gib_months"], directory["usd"], directory["micro_usd"]) == (1.0, None, None)
    assert told["metered_micro_usd"] == bucket["micro_usd"]
    assert (told["metered_gib_months"], told["sent_bytes"]) == (4.0, 4 * GIB)


def test_the_plan_stands_beside_it(places):
    told = storage_json(places, PLAN)
    assert (told["planned_usd"], told["planned_transfer_usd"]) == (0.5, 0.0)
    assert planned_usd(None, "storage") is None
    assert planned_usd({"stages": [*PLAN["stages"], {"breakdown": {"usd": None}}]}, "storage") is None


def test_without_samples_nothing_is_told_and_nothing_printed():
    told = storage_json((), None)
    assert (told["metered_usd"], told["planned_usd"], told["places"]) == (None, None, [])
    assert printed(()) == ""


def test_a_place_of_a_renamed_project_is_there_once():
    months = [sample(run=run, at_milliseconds=at * MILLISECONDS_PER_MONTH, bytes=size * GIB, sent_bytes=GIB)
              for run, at, size in (("old", 0, 2), ("old", 1, 2), ("demo", 1, 3), ("demo", 2, 4))]  # fmt: skip
    (place,) = stored_places(months, now=2 * MONTH_SECONDS)
    assert (place.bytes_now, place.sent_bytes, place.samples) == (4 * GIB, 4 * GIB, 4)
    assert (place.gib_months, place.first_at, place.last_at) == (pytest.approx(5.0), 0.0, 2 * MONTH_SECONDS)
    apart = [stored_places([item for item in months if item.run == run], now=0) for run in ("old", "demo")]
    assert place.micro_usd == sum(one.micro_usd for (one,) in apart) > 0


def test_a_terminal_shows_places_money_and_the_plan(places):
    text = printed(places)
    for words in (BUCKET, RUN_DIRECTORY, "4.0 GiB", "$0.074", "unpriced", "planned $0.50", "a month as it is"):
        assert words in text


def test_the_table_in_the_guide_is_what_the_command_prints():
    """From samples of four days of a run: its directory on an own disk, a quarter of it copied to S3."""
    until = round(datetime(2026, 11, 22, 18, 4, tzinfo=UTC).timestamp() * 1000)
    since, disk = until - 4 * 86_400_000, dict(place=RUN_DIRECTORY, price_micro_usd_per_gb_month=0)
    places = stored_places(
        [
            sample(**disk, at_milliseconds=since, bytes=20 * GIB),
            sample(**disk, at_milliseconds=until, bytes=40 * GIB),
            sample(place="s3://lab/demo", at_milliseconds=since, bytes=5 * GIB, sent_bytes=5 * GIB),
            sample(place="s3://lab/demo", at_milliseconds=until, bytes=10 * GIB, sent_bytes=6 * GIB),
        ],
        now=until / 1000,
    )
    guide = Path(__file__).parents[3] / "docs/guides/cost.md"
    text = "\n".join(line.rstrip() for line in printed(places).strip().splitlines())
    assert text in guide.read_text(encoding="utf-8"), text


def printed(places):
    out = io.StringIO()
    print_storage(places, PLAN, Console(file=out, width=120))
    return out.getvalue()


EXACT = ("milliseconds", "micro_usd")


def cost_of(path):
    run = read_run(path)
    return cost_json(overview(run), run.accounted)


@pytest.mark.parametrize("which", ["finished", "running"])
def test_attempts_add_up_to_stages_and_stages_to_the_total(which, request):
    found = cost_of(request.getfixturevalue(which))
    for unit in EXACT:
        actual = found["actual"][unit]
        assert actual > 0
        assert sum(stage["actual"][unit] or 0 for stage in found["stages"]) == actual
        assert sum(attempt[unit] for attempt in found["attempts"]) == actual
        for part, suffix in (("planned", ""), ("planned", "_p10"), ("planned", "_p90"), ("forecast", "")):
            assert sum(stage[part][unit + suffix] or 0 for stage in found["stages"]) == found[part][unit + suffix]
        low, high = (
            sum(stage["forecast"][unit + suffix] or 0 for stage in found["stages"]) for suffix in ("_p10", "_p90")
        )
        total = found["forecast"]
        assert low <= total[f"{unit}_p10"] <= total[unit] <= total[f"{unit}_p90"] <= high
        lost = found["actual"]["lost_to_kills"][unit] + found["actual"]["lost_to_failures"][unit]
        assert lost == sum(attempt["lost"][unit] for attempt in found["attempts"]) > 0


def test_usd_and_seconds_are_the_whole_units_in_other_words(finished):
    for attempt in cost_of(finished)["attempts"]:
        assert attempt["usd"] * 1e6 == pytest.approx(attempt["micro_usd"], abs=1e-6)
        assert attempt["seconds"] * 1e3 == pytest.approx(attempt["milliseconds"], abs=1e-6)


def test_the_forecast_of_a_finished_run_is_what_it_cost(finished):
    found = cost_of(finished)
    assert found["state"] == "done"
    assert [found["forecast"][unit] for unit in EXACT] == [found["actual"][unit] for unit in EXACT]
    assert found["forecast"]["milliseconds_p90"] == found["actual"]["milliseconds"]


def test_the_forecast_adds_what_the_plan_has_left_to_what_was_spent(running):
    stages = {stage["name"]: stage for stage in cost_of(running)["stages"]}
    ppo, evaluation = stages["ppo"], stages["eval"]
    assert (ppo["state"], ppo["step"], ppo["target_step"]) == ("running", 40, 99)
    per_step = 0.1  # ten steps per second, as its progress says of 39 steps: what came before them is not repeated
    of_plan = ppo["planned"]["seconds"] / 99
    left = ppo["forecast"]["seconds"] - ppo["actual"]["seconds"]
    assert 59 * (39 * per_step + 5 * of_plan) / 44 < left < 59 * (39 * per_step + 5 * 3 * of_plan) / 44, (
        "others were slow"
    )
    assert ppo["forecast"]["seconds_p90"] > ppo["forecast"]["seconds"]
    assert evaluation["state"] == "pending"
    assert evaluation["forecast"]["milliseconds"] > evaluation["planned"]["milliseconds"]  # the others were slower


def test_without_a_price_times_are_shown_and_costs_are_null(unpriced):
    found = cost_of(unpriced)
    assert found["actual"]["usd"] is None
    assert found["planned"]["usd"] is None
    assert found["actual"]["unpriced_seconds"] == pytest.approx(found["actual"]["seconds"])
    assert {attempt["usd"] for attempt in found["attempts"]} == {None}


def test_units_count_what_was_kept_and_carry_the_whole_cost(finished):
    ppo = next(stage for stage in cost_of(finished)["stages"] if stage["name"] == "ppo")
    assert ppo["units"]["episodes"]["usd_each"] == pytest.approx(
        ppo["actual"]["usd"] / ppo["units"]["episodes"]["count"]
    )


def test_a_ratio_is_given_only_when_the_stage_is_finished(running):
    ratios = {stage["name"]: stage["ratio"]["seconds"] for stage in cost_of(running)["stages"]}
    assert ratios["ppo"] is None
    assert ratios["eval"] is None
    assert ratios["sft"] == pytest.approx(8.1 / 9.0)


def test_a_stage_that_is_in_no_plan_is_still_accounted(finished):
    run = read_run(finished)
    bare = RunFiles(project="p", plan=None, stages=run.stages, accounted=run.accounted)
    found = cost_json(overview(bare), bare.accounted)
    assert found["actual"]["micro_usd"] == cost_of(finished)["actual"]["micro_usd"]
    assert {stage["planned"] for stage in found["stages"]} == {None}


@pytest.mark.parametrize(
    ("limit", "spent", "forecast", "state"),
    [
        (100, 10.0, 60.0, "ok"),
        (100, 80.0, 90.0, "warn"),
        (100, 10.0, 101.0, "warn"),
        (100, 100.5, 100.5, "exceeded"),
        (100, None, None, "unpriced"),
    ],
)
def test_a_budget_warns_before_it_is_exceeded(limit, spent, forecast, state):
    assert budget_state(limit, spent, forecast) == state


def test_amounts_without_a_price_do_not_hide_those_with_one():
    priced = Amount(milliseconds=1, micro_usd=5)
    assert (NOTHING + priced).micro_usd == 5
    assert (NOTHING + NOTHING).micro_usd is None


def test_a_plan_with_empty_prices_is_unpriced_not_free():
    stage = {"seconds": {"p10": 1, "p50": 2, "p90": 3}, "usd": {"p10": None, "p50": None, "p90": None}}
    assert planned(stage).p50 == Amount(milliseconds=2000, micro_usd=None)


def test_the_terminal_shows_plan_actual_waste_and_units(running):
    output = io.StringIO()
    print_cost(overview(read_run(running)), Console(file=output, width=120))
    text = output.getvalue()
    for words in ("Plan against actual", "forecast", "Lost to steps done again after a kill", "tokens", "episode"):
        assert words in text
    assert "unpriced" not in text


def test_the_terminal_says_unpriced(unpriced):
    output = io.StringIO()
    print_cost(overview(read_run(unpriced)), Console(file=output, width=120))
    assert "resources.price" in output.getvalue()


def test_a_directory_without_a_run_is_said(tmp_path):
    with pytest.raises(UsageError, match="charter run"):
        read_run(tmp_path)


def test_a_broken_plan_is_named(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "plan.json").write_text('{"stages": [')
    with pytest.raises(DataError, match=r"plan\.json is not JSON"):
        read_run(tmp_path)


def test_the_directory_of_the_last_attempts_fingerprint_counts(fixture_run, tmp_path):
    run = fixture_run.write_run(tmp_path)
    other = run / "run" / "stages" / "ppo-ffffffff"
    other.mkdir()
    (other / "progress.json").write_text('{"step": 1, "target_step": 2}')
    assert read_run(run).stages["ppo"].record is not None


def test_stages_side_by_side_count_once_on_the_wall_clock(tmp_path, fixture_run):
    root = fixture_run.write_run(tmp_path)
    alone = cost_json(overview(read_run(root)), ())
    with Ledger.open(root / "run" / "ledger.sqlite") as ledger:
        first = ledger.attempts()[0]
        number = ledger.begin(run=first.run, stage="sft", kind="sft", fingerprint="x", at=first.started_at)
        ledger.end(number, at=first.started_at + first.seconds, outcome="done")
    both = cost_json(overview(read_run(root)), ())
    assert both["wall_seconds"] == alone["wall_seconds"] == pytest.approx(alone["actual"]["seconds"])
    assert both["actual"]["seconds"] == pytest.approx(alone["actual"]["seconds"] + first.seconds)


def test_answers_to_read_are_a_part_of_what_was_spent(finished):
    directory = next(path.parent for path in (finished / "run" / "stages").rglob("record.json") if "ppo" in str(path))
    append_sample_time(directory, 10, 1.5)
    append_sample_time(directory, 20, 0.5)
    with (directory / SAMPLE_TIMES).open("a") as file:
        file.write('{"step": 30, "sec')  # torn by a kill
    view = overview(read_run(finished))
    stage = next(stage for stage in view.stages if stage.samples.milliseconds)
    assert stage.samples.milliseconds == 2000
    share = 2000 / stage.totals.milliseconds
    assert stage.samples.micro_usd == round(share * stage.totals.micro_usd)
    console = Console(file=io.StringIO(), width=160)
    print_cost(view, console)
    assert f"Samples to read, of {stage.name}: 2.0 s, " in console.file.getvalue()


def test_units_have_one_price_on_page_and_terminal(finished, parse):
    run = read_run(finished)
    view = overview(run)
    page, text = parse(report_html(run, now=1.8e9)).text, io.StringIO()
    print_cost(view, Console(file=text, width=200))
    prices = [cells[-1] for stage in view.stages for cells in unit_rows(stage)]
    assert any(price.endswith(" per M") for price in prices)
    assert all(price in page and price in text.getvalue() for price in prices)


def test_the_clock_and_the_machines_have_a_plan_each(finished, parse):
    run = read_run(finished)
    clock = {"p10": 10.0, "p50": 20.0, "p90": 30.0}
    run = replace(run, plan={**run.plan, "total": {**run.plan["total"], "seconds": clock}})
    view, text = overview(run), io.StringIO()
    print_cost(view, Console(file=text, width=200))
    assert ", planned 20.0 s - 30.0 s; machine time" in text.getvalue()
    page = " ".join(parse(report_html(run, now=1.8e9)).text.split())
    assert f"Wall clock {format_seconds(view.wall_seconds)} planned 20.0 s, p90 30.0 s Machine time" in page


def test_more_than_p90_is_marked_and_the_total_has_a_ratio(finished):
    run = read_run(finished)
    slow = [{**stage, "seconds": {"p10": 0.1, "p50": 0.2, "p90": 0.3}} for stage in run.plan["stages"][:1]]
    view = overview(replace(run, plan={**run.plan, "stages": [*slow, *run.plan["stages"][1:]]}))
    assert time_ratio_text(view.stages[0]).endswith(" !")
    assert not time_ratio_text(view.stages[1]).endswith("!")
    assert view.time_ratio == pytest.approx(view.actual.seconds / view.plan.p50.seconds, rel=1e-3)
    text = io.StringIO()
    print_cost(view, Console(file=text, width=200))
    assert "!: more than the plan's p90" in text.getvalue()


def test_a_run_that_goes_on_has_no_ratio_of_the_whole(running):
    view = overview(read_run(running))
    assert (view.time_ratio, view.cost_ratio) == (None, None)


def test_a_plan_of_another_schema_is_said_and_not_read(tmp_path, fixture_run):
    root = fixture_run.write_run(tmp_path)
    path = root / "run" / "plan.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": "charter.plan/9"}))
    files = read_run(root)
    assert files.plan is None
    assert any("is of schema charter.plan/9, which this Charter does not read" in note for note in files.notes)
    assert read_plan(root) is None


@pytest.fixture
def shared(tmp_path):
    """A ledger of three runs of two teams, over the end of a month."""
    path = tmp_path / "demo" / "run" / "ledger.sqlite"
    path.parent.mkdir(parents=True)
    (tmp_path / "demo" / "charter.yaml").write_text(
        "name: demo\nmodels: {base: meta-llama/Llama-3.1-8B}\n"
        "data: {d: {path: d.jsonl, rows: 1k, mean_tokens: 10}}\npipeline: {sft: {kind: sft, init: base, data: d}}\n"
    )
    with Ledger.open(path) as ledger:
        for run, team, at, hours in (
            ("demo", "red", "2026-10-31T20:00", 8), ("demo", "red", "2026-11-02T00:00", 2),
            ("other", "blue", "2026-11-03T00:00", 5), ("third", "red", "2026-11-04T00:00", 1),
        ):  # fmt: skip
            began = datetime.fromisoformat(f"{at}+00:00").timestamp()
            attempt = ledger.begin(
                run=run, stage="sft", kind="sft", fingerprint="f", at=began, monotonic=0.0, owner="ann",
                tags={"team": team}, price_micro_usd_per_hour=1_000_000,
            )  # fmt: skip
            ledger.end(attempt, at=began + 3600 * hours, monotonic=3600.0 * hours, outcome="done", step=1)
    return tmp_path / "demo"


def showback(root, *words):
    return CliRunner().invoke(app, ["cost", "showback", "-C", str(root), *words], prog_name="charter")


def test_showback_is_by_team_and_month_over_all_runs(shared):
    told = json.loads(showback(shared, "--by", "tag:team", "--json").output)
    rows = [(row["month"], row["tag:team"], row["usd"]) for row in told["months"]]
    assert rows == [("2026-10", "red", 4.0), ("2026-11", "red", 7.0), ("2026-11", "blue", 5.0)]
    assert told["total"]["usd"] == 16.0
    later = json.loads(showback(shared, "--by", "run", "--from", "2026-11", "--to", "2026-11", "--json").output)
    assert {row["run"]: row["usd"] for row in later["months"]} == {"demo": 6.0, "other": 5.0, "third": 1.0}
    table = showback(shared, "--by", "tag:team").output
    assert ("$16.00" in table, "blue" in table, "2026-10" in table) == (True, True, True)


def test_showback_names_what_it_cannot_read(shared):
    assert "is no month; write it like 2026-10" in str(showback(shared, "--from", "2026-13").exception)
    assert "keeps no sums by 'team'" in str(showback(shared, "--by", "team").exception)
