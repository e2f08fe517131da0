"""A sweep's table: pairs, missing points, corrections, and intervals that cover what they say."""

import json
import random
from types import SimpleNamespace

import pytest

from charter.report.sweep import PointFigure, interval, measured_points, sweep_result, sweep_table, t_within, words_of
from charter.spec.sweep import Point, SweepMetric

METRIC = SweepMetric(stage="eval", figure="exact_match.policy")


def point(setting, seed):
    return Point(values={"pipeline.ppo.x": setting}, repetition=seed, overrides=())


def result(values, metric=METRIC):
    """`values`: setting -> value per seed, None for a point that failed."""
    measured = [
        PointFigure(point=point(setting, seed), value=value, why="" if value is not None else "eval is not finished")
        for setting, own in values.items()
        for seed, value in enumerate(own)
    ]
    return sweep_result("s", metric, measured)


def test_settings_are_compared_seed_by_seed():
    first, second = result({1: [0.10, 0.50, 0.90], 2: [0.20, 0.61, 0.99]}).settings
    assert second.difference == pytest.approx(0.1)
    assert second.difference_low > 0.05, "the seeds differ far more than the settings do within a seed"
    assert second.p_value < 0.01
    assert (first.difference, first.p_value, first.pairs) == (None, None, 0)


@pytest.mark.parametrize(
    ("unit", "is_difference", "least", "greatest"),
    [("share", False, 0.0, 1.0), ("share", True, -1.0, 1.0), ("nats", False, float("-inf"), float("inf"))],
)
def test_no_interval_holds_what_no_share_can_be(unit, is_difference, least, greatest):
    """Two seeds have an interval of 12.7 standard errors, which had gone from 72 % to 122 %."""
    values = {1: [0.95, 0.99], 2: [0.98, 0.03]}
    measured = [
        PointFigure(point=point(setting, seed), value=value, unit=unit, is_difference=is_difference)
        for setting, own in values.items()
        for seed, value in enumerate(own)
    ]
    shown = sweep_result("s", METRIC, measured)
    first, second = shown.settings
    assert first.low == pytest.approx(max(least, 0.97 - 12.706 * 0.02), abs=1e-4)
    assert first.high == pytest.approx(min(greatest, 0.97 + 12.706 * 0.02), abs=1e-4)
    span = greatest - least
    assert (second.difference_low >= -span, second.difference_high <= span) == (True, True)
    assert (second.difference_high < 5) == (unit == "share")
    assert first.mean == pytest.approx(0.97)


def test_a_point_that_failed_is_no_zero_and_breaks_its_pair_only():
    first, second = result({1: [0.1, 0.5, 0.9], 2: [0.2, None, 1.0]}).settings
    assert (second.values, second.pairs) == ((0.2, 1.0), 2)
    assert second.mean == pytest.approx(0.6)
    assert second.missing == ("eval is not finished",)
    assert first.missing == ()


def test_a_reason_is_told_once_for_all_its_points():
    table = sweep_table(result({1: [None, 0.5], 2: [None, None]}))
    assert table.missing == ("No value at a point of x 1 and of x 2: eval is not finished.",)
    assert sweep_table(result({1: [0.1, 0.5], 2: [0.2, None]})).missing == (
        "No value at a point of x 2: eval is not finished.",
    )


def test_a_wrong_figure_is_answered_with_those_of_its_suite(tmp_path):
    (tmp_path / "outputs").mkdir()
    keys = ("loss.policy", "exact_match.gain")
    results = {"figures": [{"key": key, "value": 0.5} for key in keys]}
    (tmp_path / "outputs" / "results.json").write_text(json.dumps(results))
    pipeline = SimpleNamespace(stages={"eval": SimpleNamespace(directory=tmp_path)})
    (measured,) = measured_points([(point(1, 0), pipeline)], METRIC)
    assert measured.why == "eval has no figure exact_match.policy; it has exact_match.gain"


def test_one_seed_has_no_interval_and_nothing_is_claimed():
    made = result({1: [0.1], 2: [0.9]})
    assert made.comparisons == 0
    assert made.settings[1].low is None
    assert "two seeds" in words_of(made)


def test_equal_differences_show_no_p_value_and_no_interval():
    """Seeds that reach nothing had been p = 0.000 and an interval of one point: shown to be better, by no evidence."""
    made = result({1: [0.1, 0.1, 0.1], 2: [0.3, 0.3, 0.3], 3: [0.2, 0.3, 0.25], 4: [0.1, 0.1, 0.1]})
    first, second, third, fourth = made.settings
    assert (first.low, second.difference_low, second.p_value, fourth.p_value) == (None, None, None, None)
    assert second.difference == pytest.approx(0.2)
    assert (made.comparisons, third.p_value is not None) == (1, True)
    words = words_of(made)
    assert words.startswith("Better than 'x 1': x 3. 1 comparison,")
    assert "No interval and no p for x 2, x 4: the difference is the same at every seed" in words
    rounded = result({1: [0.1, 0.2], 2: [0.4, 0.5]})
    assert (rounded.comparisons, rounded.settings[1].p_value) == (0, None), "equal but for rounding"
    assert words_of(rounded).startswith("No interval and no p for x 2")


def test_more_settings_widen_the_intervals_of_all():
    own = {1: [0.1, 0.5, 0.9], 2: [0.2, 0.61, 0.99]}
    alone, among = result(own), result({**own, **{number: [0.1, 0.5, 0.91] for number in range(3, 9)}})
    assert among.settings[1].difference_low < alone.settings[1].difference_low
    assert among.settings[1].p_value > alone.settings[1].p_value
    assert among.comparisons == 7


@pytest.mark.parametrize(("goal", "better"), [("maximise", "x 2"), ("minimise", "x 3")])
def test_better_follows_the_goal(goal, better):
    metric = SweepMetric(stage="eval", figure="loss", goal=goal)
    made = result({1: [1.0, 2.0, 3.0], 2: [2.0, 3.0, 4.01], 3: [0.0, 1.0, 2.01]}, metric)
    assert words_of(made).startswith(f"Better than 'x 1': {better}. 2 comparisons")


@pytest.mark.parametrize("number", [2, 3, 5, 10])
def test_intervals_cover_as_often_as_they_say(number):
    draws, covered = random.Random(number), 0
    for _ in range(2000):
        _, low, high = interval([draws.gauss(1.0, 2.0) for _ in range(number)], 0.95)
        covered += low <= 1.0 <= high
    assert covered / 2000 == pytest.approx(0.95, abs=0.015)


@pytest.mark.parametrize(("degrees", "t"), [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (30, 2.042), (120, 1.980)])
def test_students_t_is_that_of_the_tables(degrees, t):
    assert t_within(t, degrees) == pytest.approx(0.95, abs=5e-5)
    assert t_within(0.0, degrees) == 0.0
