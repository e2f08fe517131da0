"""The text at the end of a run: figures with intervals, claims, plan against actual."""

import io

import pytest
from rich.console import Console

from charter.report.html import report_html, result_panels
from charter.report.read import RunFiles, StageFiles
from charter.report.results import (
    figure_text,
    figures_table,
    interval_text,
    measured_curves,
    print_claims,
    print_summary,
    value_text,
)
from charter.tracking.base import MetricPoint


def point(key, at, value):
    return {
        "key": key, "label": f"<b>{key}</b>", "value": value, "low": value - 0.1, "high": value + 0.1, "n": 40,
        "unit": "share", "method": "Wilson score", "note": "", "headline": False, "at": at,
    }  # fmt: skip


FIGURES = [
    point("pm_calibration.reward.bin.90", 0.93, 0.8),
    point("pm_calibration.reward.bin.50", 0.52, 0.5),
    point("pm_calibration.also.pm2.bin.70", 0.71, 0.7),
    point("goodhart.step_4.quality", 3.0, 0.4),
    point("goodhart.step_2.quality", 1.0, 0.6),
    {**point("win_rate.policy", 0.0, 0.6), "at": None},
]
RUN = RunFiles(project="p", plan=None, stages={"e": StageFiles(name="e", results={"figures": FIGURES})})


def test_points_are_put_together_by_curve_in_the_order_of_their_places():
    found = {panel["title"]: panel for panel in measured_curves(RUN)}
    assert set(found) == {"Reliability: reward", "Reliability: also.pm2", "Quality over training: goodhart"}
    assert [item["x"] for item in found["Reliability: reward"]["points"]] == [0.52, 0.93]
    assert [item["y"] for item in found["Quality over training: goodhart"]["points"]] == [0.6, 0.4]
    assert found["Reliability: reward"]["diagonal"]
    assert not found["Quality over training: goodhart"]["diagonal"]


def test_points_are_no_rows_of_their_own():
    assert [row["label"] for panel in result_panels(RUN) for row in panel["rows"]] == ["<b>win_rate.policy</b>"]


def test_the_page_draws_every_curve_and_lets_no_label_through(parse):
    page = parse(report_html(RUN, now=1.8e9))
    places = [attrs for tag, attrs in page.elements if tag == "figure" and attrs["data-chart"] == "measured"]
    assert [int(attrs["data-index"]) for attrs in places] == [0, 1, 2]
    assert len(page.data["measured"]) == 3
    assert "    measured(" in page.scripts[-1][1]
    assert ("b", {}) not in page.elements


def rollout(step, gold, *, alarm=0.0, **more):
    values = {"reward_mean": 2.0 * step, "reward_right_mean": gold, "reward_right_deviation": 0.4} | more
    values |= {"reward_right_not_applicable": 0.0, "reward_right_failed": 0.02, "reward_right_seconds": 0.5}
    values |= {"reward_right_usd": 0.25, "overoptimised": alarm, "episodes": 64.0}
    return MetricPoint(step=step, time=None, values=values)


def trained(*points):
    spec = {"gold": "right", "rewards": [{"name": "right", "weight": 0.0}, {"name": "<i>", "weight": 1.0}]}
    stage = StageFiles(name="rl", job={"spec": spec}, metrics=points)
    return RunFiles(project="p", plan=None, stages={"rl": stage})


def test_reward_and_gold_are_curves_over_kl_or_rollouts():
    by_rollout = measured_curves(trained(rollout(1, 0.5), rollout(2, 0.4)))
    assert [(panel["title"], panel["x"]) for panel in by_rollout] == [
        ("rl: reward", "rollout"),
        ("rl: gold right", "rollout"),
    ]
    assert [(item["x"], item["y"]) for item in by_rollout[1]["points"]] == [(1, 0.5), (2, 0.4)]
    by_kl = measured_curves(trained(rollout(1, 0.5, kl=3.0), rollout(2, 0.4, kl=1.0)))
    assert [item["x"] for item in by_kl[0]["points"]] == [1.0, 3.0]


def test_page_has_every_reward_with_its_money_and_the_alarm(parse):
    run = trained(rollout(1, 0.5), rollout(7, 0.3, alarm=1.0))
    page = parse(report_html(run, now=1.8e9))
    words = " ".join(page.text.split())
    assert "the reward rises while the gold, right, falls (seen at rollout 7)" in words
    for cell in ("0.5", "0.3", "0.4", "2.0 %", "$0.25"):
        assert cell in words
    assert ("i", {}) not in page.elements
    assert "Rewards" not in " ".join(parse(report_html(RUN, now=1.8e9)).text.split())


def summary(path) -> str:
    output = io.StringIO()
    print_summary(path, Console(file=output, width=140))
    return output.getvalue()


def test_every_figure_is_printed_with_its_interval(finished, fixture_run):
    text = summary(finished)
    for figure in fixture_run.RESULTS["figures"]:
        assert figure["label"] in text
        assert interval_text(figure) in text


def test_long_notes_do_not_push_the_figures_out_of_the_terminal(fixture_run):
    figures = [{**figure, "note": "a very long note " * 20} for figure in fixture_run.RESULTS["figures"]]
    output = io.StringIO()
    Console(file=output, width=80).print(figures_table("eval", figures))
    for figure in figures:
        assert interval_text(figure) in output.getvalue()


def test_claims_and_non_claims_are_printed_beside_the_figures(finished, fixture_run):
    text = summary(finished)
    for sentence in (*fixture_run.RESULTS["claims"]["may"], *fixture_run.RESULTS["claims"]["may_not"]):
        assert sentence in text


def test_differences_of_shares_are_in_points():
    gain = {"value": 0.558, "low": 0.49, "high": -0.01, "unit": "share", "method": "paired bootstrap, 4000 resamples"}
    assert (value_text(gain), interval_text(gain)) == ("+55.8 points", "+49.0 to -1.0")
    assert value_text({**gain, "method": "Wilson score"}) == "55.8 %"


def test_a_reason_that_several_claims_share_is_given_once():
    claims = {"may_not": [f"Not shown, the interval includes 0: {claim}." for claim in ("one", "two")]}
    output = io.StringIO()
    print_claims(claims, Console(file=output, width=80))
    assert output.getvalue().count("Not shown") == 1
    assert "- one." in output.getvalue()
    assert "- two." in output.getvalue()


def test_plan_against_actual_is_printed_for_every_stage(finished, fixture_run):
    lines = summary(finished).splitlines()
    for name, *_ in fixture_run.STAGES:
        assert any(line.startswith(name) and "done" in line for line in lines), name


def test_a_run_without_an_evaluation_has_a_summary_all_the_same(running):
    assert "Plan against actual" in summary(running)
    assert "may claim" not in summary(running)


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (0.577, "share", "57.7 %"),
        (1.0, "share", "100.0 %"),
        (0.062, "points", "+6.2 points"),
        (2.8, "nats", "2.80 nats"),
        (-0.06, "reward", "-0.060 reward"),
        (12345.6, "", "12,346"),
        (None, "share", "not measured"),
    ],
)
def test_figures_read_as_people_write_them(value, unit, expected):
    assert figure_text(value, unit, with_unit=True) == expected


def test_a_figure_without_an_interval_has_none():
    assert interval_text({"value": 1.0, "low": None, "high": None, "unit": "nats"}) == ""
