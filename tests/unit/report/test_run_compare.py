import json
import shutil

import pytest

from charter.errors import UsageError
from charter.report.run_compare.comparison import (
    Measured,
    compare_runs,
    difference,
    flat,
    has_run,
    project_dir_of,
    read_sides,
)
from charter.report.run_compare.views import comparison_html, curves


def wilson(wins, count):
    z, share = 1.959964, wins / count
    middle, spread = share + z * z / (2 * count), z * (share * (1 - share) / count + z * z / (4 * count**2)) ** 0.5
    return Measured(
        value=share, low=(middle - spread) / (1 + z * z / count), high=(middle + spread) / (1 + z * z / count)
    )


# Newcombe 1998, Statistics in Medicine 17:873, table II, method 10: the difference of two independent shares.
NEWCOMBE = [
    ((56, 70), (48, 80), 0.0524, 0.3339),
    ((9, 10), (3, 10), 0.1705, 0.8090),
    ((6, 7), (2, 7), 0.0582, 0.8062),
    ((5, 56), (0, 29), -0.0381, 0.1926),
    ((0, 10), (0, 20), -0.1611, 0.2775),
    ((0, 10), (0, 10), -0.2775, 0.2775),
    ((10, 10), (0, 20), 0.6791, 1.0000),
    ((10, 10), (0, 10), 0.6075, 1.0000),
]


@pytest.mark.parametrize(("one", "other", "low", "high"), NEWCOMBE)
def test_differences_of_shares_are_those_of_newcombe(one, other, low, high):
    found = difference(wilson(*one), wilson(*other))
    assert (found.low, found.high) == pytest.approx((low, high), abs=6e-5)


def test_verdicts_follow_the_interval_of_the_difference():
    base = Measured(value=0.5, low=0.45, high=0.55)
    assert difference(Measured(value=0.7, low=0.66, high=0.74), base).verdict == "higher"
    assert difference(Measured(value=0.3, low=0.26, high=0.34), base).verdict == "lower"
    assert difference(Measured(value=0.54, low=0.5, high=0.58), base).verdict == "within noise"
    assert difference(Measured(value=0.7), base).verdict == "no interval"
    assert difference(base, base).verdict == "within noise"


def job(root, stage, spec, *, inputs=None, prints=None):
    """Adds to a stage of a written run what it was started with."""
    found = next((root / "run" / "stages").glob(f"{stage}-*"))
    listed = {role: [{"name": name} for name in names] for role, names in (inputs or {}).items()}
    identity = {"kind": stage, "spec": spec, "inputs": prints or {}}
    (found / "job.json").write_text(json.dumps({"stage": stage, "identity": identity, "inputs": listed}))


def results(root, figures):
    path = next((root / "run" / "stages").glob("eval-*")) / "outputs" / "results.json"
    path.write_text(json.dumps({"figures": figures}))


def figure(key, value, low, high, **more):
    return {"key": key, "label": key, "value": value, "low": low, "high": high, "n": 100, "unit": "share", **more}


@pytest.fixture
def two(finished, tmp_path):
    """Two runs: the second trained SFT for longer, has another reward model, and wins."""
    one, other = (shutil.copytree(finished, tmp_path / name) for name in ("rlaif", "direct"))
    for root, steps, reward in ((one, 20, "aa"), (other, 30, "bb")):
        job(root, "sft", {"steps": steps, "learning_rate": 1e-3}, inputs={"data": ["demos"]})
        prints = {"reward": [reward], "prompts": ["pp"], "against": ["cc"], "pairs": ["dd"]}
        job(root, "eval", {"num_prompts": 16}, inputs={"reward": ["pm"]}, prints=prints)
    results(one, [figure("perplexity.policy", 0.5, 0.45, 0.55), figure("win_rate.policy", 0.5, 0.45, 0.55)])
    later = [
        figure("perplexity.policy", 0.7, 0.66, 0.74),
        figure("win_rate.policy", 0.7, 0.66, 0.74),
        figure("hhh.x", 1, 1, 1),
    ]
    results(other, later)
    return one, other


def compared(*roots):
    return compare_runs(read_sides(roots, [root.name for root in roots]))


def test_what_differs_is_what_the_stages_were_started_with(two):
    rows = {row.path: row for row in compared(*two).spec}
    assert rows["pipeline.sft.steps"].values == ("20", "30")
    assert rows["pipeline.sft.steps"].is_computed
    assert "pipeline.sft.learning_rate" not in rows, "what is the same is no difference"
    assert not compared(two[0], two[0]).spec


def test_a_stage_that_only_one_run_has_is_one_row(fixture_run, two, tmp_path):
    third = fixture_run.write_run(tmp_path / "dpo", rename={"ppo": "dpo"})
    for directory in (third / "run" / "stages").glob("ppo-*"):
        directory.rename(directory.with_name(directory.name.replace("ppo", "dpo")))
    rows = {row.path: row.values for row in compared(two[0], third).spec}
    assert rows["pipeline.ppo"][1] is None
    assert rows["pipeline.dpo"][0] is None


def test_figures_say_whether_they_differ_beyond_noise_and_with_what_they_were_measured(two):
    found = compared(*two)
    rows = {row.key: row for row in found.figures}
    assert rows["perplexity.policy"].differences[1].verdict == "higher"
    assert rows["perplexity.policy"].differences[1].value == pytest.approx(0.2)
    assert rows["perplexity.policy"].yardsticks == (), "measured on the same pairs"
    assert rows["win_rate.policy"].yardsticks == ("reward",)
    assert rows["hhh.x"].values[0] is None
    assert rows["hhh.x"].differences == (None, None)
    assert any("do not share reward" in note for note in found.notes)


def test_curves_of_both_runs_share_a_panel(two):
    panels = {(panel.title, panel.metric): panel for panel in compared(*two).curves}
    loss = panels["sft", "loss"]
    assert [line.side for line in loss.lines] == [0, 1]
    assert len(panels["ppo", "kl"].lines[0].points) <= 240


def test_stages_of_another_name_answer_each_other_when_they_are_the_only_ones_of_their_kind(fixture_run, tmp_path):
    one = fixture_run.write_run(tmp_path / "one")
    other = fixture_run.write_run(tmp_path / "other", rename={"critique": "revise"})
    plan = other / "run" / "plan.json"
    plan.write_text(plan.read_text().replace('"kind": "revise"', '"kind": "critique"'))
    names = [tuple(item and item.name for item in row) for row in compared(one, other).stages]
    assert ("critique", "revise") in names
    assert ("sft", "sft") in names
    assert ("sl_cai", "sl_cai") in names


def test_time_money_and_waste_are_those_of_the_ledger(two):
    found = compared(*two)
    first, second = found.totals
    assert first.seconds_ratio is None
    assert second.seconds_ratio == pytest.approx(1.0)
    assert first.attempts == 12, "nine stages, two kills, one failure"
    assert 0 < first.lost_seconds < first.seconds
    assert first.kept_share == pytest.approx(1 - first.lost_seconds / first.seconds)
    assert sum(row[0].seconds for row in found.stages) == pytest.approx(first.seconds)
    assert sum(row[0].usd for row in found.stages) == pytest.approx(first.usd)


def test_a_run_that_is_not_over_says_so(two, running):
    assert any("not done (running)" in note for note in compared(two[0], running).notes)


def test_json_holds_everything_and_is_json(two):
    found = json.loads(json.dumps(compared(*two).to_json(), allow_nan=False))
    assert found["schema"] == "charter.run-comparison/1"
    assert [run["label"] for run in found["runs"]] == ["rlaif", "direct"]
    assert found["figures"][0]["verdicts"] == [None, "higher"]


def test_the_page_is_whole_and_safe(two, parse, tmp_path):
    hostile = "<script>alert(1)</script>"
    results(two[1], [figure("win_rate.policy", 0.7, 0.66, 0.74) | {"label": hostile}])
    sides = read_sides(two, ["rlaif", hostile])
    page = parse(comparison_html(compare_runs(sides), now=1_795_000_000.0))
    assert hostile in page.text, "shown as text"
    assert not [tag for tag, attributes in page.elements if attributes.get("src") or attributes.get("href")]
    assert len(page.data["overlays"]) == len(compare_runs(sides).curves)
    assert sum(attributes.get("data-chart") == "side_by_side" for _, attributes in page.elements) == len(
        page.data["figures"]
    )


def test_a_path_may_be_the_project_its_file_or_its_run_directory(two):
    root = two[0]
    (root / "charter.yaml").write_text("name: x\n")
    assert project_dir_of(root) == project_dir_of(root / "charter.yaml") == project_dir_of(root / "run") == root
    assert has_run(root / "run")
    assert not has_run(root / "run" / "stages")


def test_a_path_without_a_run_is_refused(two, tmp_path):
    with pytest.raises(UsageError, match="give the directory of a project that has run"):
        compared(two[0], tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="there is no run in"):
        compared(two[0], tmp_path / "empty")


def test_values_are_flattened_by_dotted_paths():
    assert flat({"a": {"b": [1, 2.0, True]}, "c": [{"d": None}]}) == [("a.b", "1, 2, true"), ("c.0.d", "-")]


def test_curves_that_are_equal_are_folded(two):
    first, _ = two
    panels = compared(first, first).curves
    assert panels
    assert all(panel.is_equal for panel in panels)
    page = str(curves(compared(first, first)))
    assert f"{len(panels)} equal in every run" in page
    assert not any(panel.is_equal for panel in compared(*two).curves if len(panel.lines) == 1)
