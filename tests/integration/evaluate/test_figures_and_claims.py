from dataclasses import replace

import pytest

from charter.evaluate.figures import PAIRED, Figure, difference, mean, proportion
from charter.evaluate.run import DISTILLED, JUDGED, STANDING, UNREAD, claims_of


def figure(key, value, low, high, n=256):
    return Figure(key=key, label="", value=value, low=low, high=high, n=n, unit="share", method="")


DIFFERENCE = replace(figure("independent_check.difference", 0.2, 0.1, 0.3), method=f"{PAIRED}, 4000 resamples")


def test_a_tie_counts_one_half_and_the_standard_error_is_stated():
    found = proportion("k", "l", [1.0, 0.5, 0.0, 1.0], note="held out")
    assert found.value == 0.625
    assert found.note == "standard error 24.2 points; 1 tie counted as one half; held out"


def test_figures_are_rounded_to_six_decimals():
    found = mean("k", "l", [1 / 3, 2 / 3, 1 / 3], unit="nats")
    assert found.value == 0.444444
    assert str(difference("k", "l", [1.0, 0.0], [1.0, 0.0], seed=1).low) == "0.0"


def test_main_claim_is_allowed_when_interval_is_above_zero():
    claims = claims_of([DIFFERENCE], judge_learnt_from_humans=True)
    assert any("at equal length" in claim and "+20.0 points" in claim for claim in claims.may)
    assert not any("at equal length" in claim for claim in claims.may_not)


@pytest.mark.parametrize(
    ("low", "high", "n", "words"),
    [
        (-0.01, 0.3, 256, "includes"),
        (-0.3, -0.1, 256, "lies below"),
        (0.1, 0.3, 29, "too few rows"),
        (0.0, 0.3, 256, "includes"),
    ],
)
def test_the_main_claim_is_said_not_to_be_shown_otherwise(low, high, n, words):
    claims = claims_of([replace(DIFFERENCE, low=low, high=high, n=n)], judge_learnt_from_humans=True)
    assert not any("at equal length" in claim for claim in claims.may)
    assert any("at equal length" in claim and words in claim for claim in claims.may_not)
    assert not any("0.0 %" in claim for claim in claims.may_not), "a difference is in points"


def test_a_higher_reward_alone_is_never_a_claim():
    claims = claims_of([figure("win_rate.policy", 0.99, 0.97, 1.0)], judge_learnt_from_humans=False)
    assert claims.may == ()
    assert any("no control" in claim for claim in claims.may_not)


def test_what_no_run_may_claim_is_always_said():
    claims = claims_of([], judge_learnt_from_humans=True)
    assert set(STANDING) | {DISTILLED} <= set(claims.may_not)
    assert DISTILLED not in claims_of([], judge_learnt_from_humans=False).may_not


@pytest.mark.parametrize(("baseline", "words"), [("words", "a bag of words"), ("shorter", "the shorter-answer rule")])
def test_preference_model_at_baseline_level_is_reported_as_such(baseline, words):
    found = figure(f"pm_accuracy.reward_over_{baseline}", 0.01, -0.05, 0.07, n=208)
    claims = claims_of([found], judge_learnt_from_humans=True)
    assert any(f"better than {words}" in claim for claim in claims.may_not)
    claims = claims_of([replace(found, low=0.001)], judge_learnt_from_humans=True)
    assert any(f"better than {words}" in claim for claim in claims.may)


def test_judge_drift_is_flagged_by_verdicts_or_log_odds():
    steady = figure("probes.same_verdict", 1.0, 0.98, 1.0)
    flipped = figure("probes.same_verdict", 0.85, 0.8, 0.9)
    near, far = figure("probes.ks", 0.1, 0.0, 0.2), figure("probes.ks", 0.4, 0.3, 0.5)

    def alarm(*figures):
        return [claim for claim in claims_of(figures, judge_learnt_from_humans=False).may_not if "drifted" in claim]

    assert alarm(steady, near) == []
    assert len(alarm(flipped, near)) == 1
    assert "D = 0.40" in alarm(steady, far)[0]
    assert any("as it did" in claim for claim in claims_of([steady], judge_learnt_from_humans=False).may)


@pytest.mark.parametrize(
    ("reward", "quality", "words"),
    [
        ((0.2, 0.1, 0.3), (-0.1, -0.2, -0.05), "quality falls"),
        ((0.2, 0.1, 0.3), (0.0, -0.1, 0.1), "is not shown to rise"),
        ((0.2, 0.1, 0.3), (0.1, 0.05, 0.2), None),
        ((0.0, -0.1, 0.1), (-0.1, -0.2, -0.05), None),
    ],
)
def test_reward_that_rises_without_quality_forbids_a_claim(reward, quality, words):
    figures = [figure("goodhart.reward_slope", *reward), figure("goodhart.quality_slope", *quality)]
    claims = claims_of(figures, judge_learnt_from_humans=False)
    found = [claim for claim in claims.may_not if "over the checkpoints" in claim]
    assert len(found) == (words is not None)
    assert words is None or words in found[0]


def test_a_point_of_a_curve_says_where_it_lies():
    found = proportion("pm_calibration.reward.bin.80", "l", [1.0, 0.0], at=0.8456789)
    assert found.at == 0.845679
    assert mean("k", "l", [1.0, 2.0], unit="nats").at is None


def test_answers_that_a_judge_read_are_not_said_to_be_unread():
    judged = claims_of([figure("judge_win_rate.policy", 0.7, 0.6, 0.8)], judge_learnt_from_humans=False)
    assert JUDGED in judged.may_not
    assert UNREAD not in judged.may_not
    assert UNREAD in claims_of([DIFFERENCE], judge_learnt_from_humans=False).may_not
