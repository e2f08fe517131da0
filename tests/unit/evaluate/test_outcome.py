"""What an evaluation's figures say in a sentence, and where they say nothing."""

import pytest

from charter.evaluate.outcome import outcome_of, read_results


def figure(key, value, low, high, n=200):
    return {"key": key, "value": value, "low": low, "high": high, "n": n, "unit": "share"}


def outcome(*figures):
    return outcome_of("eval", {"figures": list(figures)})


@pytest.mark.parametrize(
    ("low", "high", "n", "answer"),
    [(0.1, 0.3, 30, "yes"), (0.0, 0.3, 30, "not shown"), (-0.3, -0.1, 30, "no"), (0.1, 0.3, 29, "not shown")],
)
def test_a_gain_counts_only_when_its_interval_is_clear(low, high, n, answer):
    before, control = outcome(figure("exact_match.gain", (low + high) / 2, low, high, n)).comparisons
    assert before.answer == answer
    assert control.answer == "not measured"
    assert str(before).startswith("Better than before? Not proven: ") is (answer == "not shown")


def test_a_win_rate_is_measured_against_one_half():
    assert outcome(figure("judge_win_rate.policy", 0.4, 0.3, 0.49)).answer == "no"
    assert outcome(figure("judge_win_rate.policy", 0.6, 0.51, 0.7)).answer == "yes"


def test_the_length_controlled_figure_goes_before_the_raw_one():
    raw, controlled = (
        figure("judge_win_rate.policy", 0.7, 0.6, 0.8),
        figure("judge_win_rate.policy_length_controlled", 0.5, 0.4, 0.6),
    )
    assert outcome(raw, controlled).answer == "not shown"


def test_its_own_reward_is_no_evidence():
    before = outcome(figure("win_rate.policy", 0.99, 0.97, 1.0)).comparisons[0]
    assert (before.answer, "its own reward" in before.why) == ("not measured", True)


def test_the_weaker_answer_is_the_answer_of_a_run():
    better, same = figure("exact_match.gain", 0.5, 0.4, 0.6), figure("exact_match.over_control", 0.0, -0.1, 0.1)
    assert outcome(better, same).answer == "not shown"
    assert outcome().answer == "not measured"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"figures": 3}', "null"])
def test_results_that_cannot_be_read_are_none(tmp_path, text):
    (tmp_path / "outputs").mkdir()
    (tmp_path / "outputs" / "results.json").write_text(text)
    assert read_results(tmp_path) is None
    assert read_results(tmp_path / "nowhere") is None


def test_figures_of_a_future_version_are_passed_over():
    odd = [{"key": "exact_match.gain", "value": "high", "low": None}, {"value": 1}, {}]
    assert outcome(*odd).answer == "not measured"
