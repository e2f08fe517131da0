"""Suites in which judges take part, through a real stage directory with tiny random models."""

import shutil

import pytest

torch = pytest.importorskip("torch")

from charter.artifacts.stage_dir import StageDir
from charter.evaluate.bench import Bench
from charter.spec.stage import EvalStage

from .conftest import SAMPLING, in_their_intervals, pair_rows, prompt_rows

pytestmark = pytest.mark.torch
THREE = {"policy": "policy", "against": "control", "control": "judge", "judge": "judge"}


def test_judge_win_rate_has_both_orders_lengths_and_control(measured):
    _, figures = measured(
        "wins", ("judge_win_rate",), data={"prompts": prompt_rows()}, models=THREE, min_new_tokens=0, max_new_tokens=30
    )
    assert in_their_intervals(figures)
    wanted = ("policy", "policy_preference", "policy_length_controlled", "policy_length_weight", "control")
    assert {f"judge_win_rate.{key}" for key in (*wanted, "difference", "orders_agree", "first_option")} <= set(figures)
    assert figures["judge_win_rate.policy"]["n"] == 10
    assert figures["judge_win_rate.orders_agree"]["n"] == 20


def test_a_model_against_itself_wins_half_by_any_judge(measured):
    models = {"policy": "policy", "against": "policy", "judge": "judge"}
    _, figures = measured("self", ("judge_win_rate",), data={"prompts": prompt_rows()}, models=models)
    assert figures["judge_win_rate.policy_preference"]["value"] == pytest.approx(0.5, abs=1e-6)
    assert figures["judge_win_rate.policy_length_controlled"]["value"] == pytest.approx(0.5, abs=1e-6)
    assert figures["judge_win_rate.policy_longer"]["value"] == 0


def test_judges_are_compared_with_humans_with_each_other_and_by_principle(measured):
    models = {"policy": "policy", "judge": "judge", "also_judges": ("control", "policy")}
    _, figures = measured("agree", ("judge_agreement",), data={"pairs": pair_rows(40)}, models=models)
    assert in_their_intervals(figures)
    for other in ("control", "policy"):
        assert f"judge_agreement.also.{other}" in figures
        assert -1 <= figures[f"judge_agreement.with.{other}.kappa"]["value"] <= 1
        assert 0 <= figures[f"judge_agreement.with.{other}.share"]["value"] <= 1
    by_principle = [figure for key, figure in figures.items() if key.startswith("judge_agreement.principle.")]
    assert sum(figure["n"] for figure in by_principle) == 40
    total = sum(figure["value"] * figure["n"] for figure in by_principle) / 40
    assert total == pytest.approx(figures["judge_agreement.judge"]["value"], abs=1e-5)


def test_a_judge_agrees_with_its_copy_beyond_chance(measured, models):
    shutil.copytree(models / "judge", models / "twin", dirs_exist_ok=True)
    named = {"policy": "policy", "judge": "judge", "also_judges": ("twin",)}
    _, figures = measured("itself", ("judge_agreement",), data={"pairs": pair_rows(20)}, models=named)
    assert figures["judge_agreement.with.twin.share"]["value"] == 1
    assert figures["judge_agreement.with.twin.kappa"]["value"] == 1


def probe_rows(workshop, models, **changes):
    """Pairs with the judge's own probabilities, as an earlier run would have stored them."""
    rows = pair_rows(40)
    spec = EvalStage(policy="p", **SAMPLING)
    stage = workshop.stage("before", spec, data={"pairs": workshop.data("before", rows)}, **models)
    bench = Bench(StageDir(stage.path))
    from charter.evaluate.preferences import contests_of

    judged = bench.judging.verdicts(contests_of(bench.pairs))
    bench.close()
    return [{**rows[item.place], "chosen_probability": item.verdict.probability_first, **changes} for item in judged]


def test_a_judge_that_answers_probes_as_before_has_not_drifted(measured, workshop):
    models = {"policy": "policy", "judge": "judge"}
    content, figures = measured("same", ("probes",), data={"probes": probe_rows(workshop, models)}, models=models)
    assert figures["probes.same_verdict"]["value"] == 1
    assert figures["probes.ks"]["low"] == 0
    assert figures["probes.moved"]["value"] == pytest.approx(0, abs=1e-5)
    assert not any("drifted" in claim for claim in content["claims"]["may_not"])


def test_another_judge_on_the_same_probes_sets_off_the_alarm(measured, workshop):
    rows = probe_rows(workshop, {"policy": "policy", "judge": "judge"})
    content, figures = measured(
        "other", ("probes",), data={"probes": rows}, models={"policy": "policy", "judge": "control"}
    )
    assert figures["probes.same_verdict"]["value"] < 1
    assert any("drifted" in claim for claim in content["claims"]["may_not"])


def test_refusals_are_read_by_words_and_by_the_judge(measured):
    data = {"refusal_prompts": prompt_rows()[:5], "benign_prompts": prompt_rows()[5:]}
    models = {"policy": "policy", "against": "control", "judge": "judge"}
    _, figures = measured("refuse", ("refusal",), data=data, models=models)
    assert in_their_intervals(figures)
    for role in ("policy", "against"):
        assert figures[f"refusal.{role}.refused"]["n"] == 5
        assert figures[f"refusal.{role}.over_refused_by_judge"]["n"] == 5


def test_a_judge_that_sees_one_answer_at_a_time_has_no_order_to_prefer(measured):
    models = {"policy": "policy", "against": "control", "judge": "judge"}
    _, figures = measured(
        "yes-no", ("judge_win_rate",), data={"prompts": prompt_rows()}, models=models, judge_format="yes_no"
    )
    assert in_their_intervals(figures)
    assert not {"judge_win_rate.orders_agree", "judge_win_rate.first_option"} & set(figures)
