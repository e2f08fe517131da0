"""What is reported of a judge: agreement of orders, biases, what was invalid."""

import subprocess
import sys

import pytest

from charter.feedback.asking import BY_VOTES, Invalid, Judgement, verdict_of
from charter.feedback.comparing import Comparison
from charter.feedback.constitution import Principle
from charter.feedback.label import label_summary, label_totals

KIND, SHORT = (Principle(id=name, critique="", revision="", compare="") for name in ("kind", "short"))


def item(first, second, principle=KIND):
    return Comparison(id="x", turns=(), first=first, second=second, principles=(principle,))


def verdict(straight, swapped, **more):
    told = {"principle": "kind", **more}
    return verdict_of(
        [Judgement(log_odds=straight, **told), Judgement(log_odds=swapped, is_swapped=True, **told)], clamp=None
    )


def summary(items, verdicts, *, format="multiple_choice", both_orders=True):
    valid = sum(not isinstance(found, Invalid) for found in verdicts)
    totals = {"records": valid, "identical": 0, "empty": 0, **label_totals(items, verdicts)}
    return label_summary(totals, format=format, both_orders=both_orders)


def test_a_judge_that_always_takes_a_has_all_of_the_position_bias():
    found = summary([item("a", "b")] * 4, [verdict(3.0, -3.0)] * 4)
    assert found["position_bias"] == 0.5
    assert found["position_log_odds"] == pytest.approx(3.0)
    assert found["orders_agree"] == 0
    assert found["mean_chosen_probability"] == pytest.approx(0.5)


def test_a_judge_of_the_answers_has_none():
    found = summary([item("a", "b")] * 4, [verdict(2.0, 2.0), verdict(-2.0, -2.0)] * 2)
    assert (found["position_bias"], found["orders_agree"]) == (0.0, 1.0)


def test_a_taste_for_length_shows():
    items = [item("long answer", "short"), item("short", "long answer"), item("same", "size")]
    assert summary(items, [verdict(1, 1), verdict(-1, -1), verdict(1, 1)])["longer_chosen_share"] == pytest.approx(
        5 / 6
    )
    assert summary(items[:2], [verdict(-1, -1), verdict(1, 1)])["longer_chosen_share"] == 0


def test_principles_and_reasons_are_counted():
    items = [item("a", "b"), item("a", "b", SHORT), item("a", "b"), item("a", "b")]
    verdicts = [verdict(1, 1), verdict(1, 1, principle="short"), Invalid(reason="refused"), Invalid(reason="other")]
    found = summary(items, verdicts)
    assert (found["principle/kind"], found["principle/short"]) == (1, 1)
    assert (found["invalid/refused"], found["invalid/other"]) == (1, 1)
    assert (found["invalid_judgements"], found["invalid_share"]) == (2, 0.5)


def test_votes_bounds_and_retries_are_shares_of_the_questions():
    mixed = [verdict(1, 1, how=BY_VOTES), verdict(1, 1, is_bounded=True), verdict(1, 1, attempts=2), verdict(1, 1)]
    found = summary([item("a", "b")] * 4, mixed)
    assert [found[f"{name}_share"] for name in ("by_votes", "bounded", "asked_again")] == [0.25] * 3


def test_nothing_judged_is_no_division_by_zero():
    assert summary([], [])["invalid_share"] == 0
    assert summary([item("a", "b")], [Invalid(reason="refused")])["invalid_share"] == 1


def test_a_stage_whose_models_are_served_does_not_wait_for_torch():
    modules = "charter.feedback.critique, charter.feedback.label, charter.feedback.generate"
    check = f"import sys, {modules}; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
