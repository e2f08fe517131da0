"""The text at the end of a run: figures with intervals, claims, plan against actual."""

import io

import pytest
from rich.console import Console

from charter.report.results import figure_text, figures_table, interval_text, print_claims, print_summary, value_text


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
