"""Direct RLAIF and REINFORCE in `charter.yaml`: what goes together, and what is refused."""

from dataclasses import replace

import pytest

from charter.engines.project import load_project
from charter.errors import SpecError
from charter.spec.ppo_stage import PpoStage
from charter.spec.rewards import Environment
from charter.spec.stage_checks import check_ppo

SPEC = PpoStage(
    policy="p", reward="r", prompts=("q",), episodes=128, rollout_batch=64, minibatch=64, estimator="reinforce"
)


def problems(**changes):
    return {problem.path: problem.message for problem in check_ppo(replace(SPEC, **changes), "ppo")}


def test_reinforce_is_one_step_of_a_whole_rollout():
    assert problems() == {}
    assert problems(value_warmup_rollouts=1, discount=0.99, samples_per_prompt=4) == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ppo_epochs", 2),
        ("minibatch", 32),
        ("gae_lambda", 0.9),
        ("clip_ratio", 0.1),
        ("bootstrap_truncated", True),
        ("stop_update_kl", 0.1),
        ("asynchrony", "one_step_off"),
    ],
)
def test_what_belongs_to_several_steps_is_refused(name, value):
    found = problems(**{name: value})
    assert list(found) == [f"ppo.{name}"]
    assert "reinforce" in found[f"ppo.{name}"]
    assert problems(estimator="gae", **{name: value}) == {}


IN_FLIGHT = {"asynchrony": "in_flight", "max_age": 2, "estimator": "gae"}


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({}, []),
        ({"max_age": None}, ["max_age"]),
        ({"max_age": 0}, ["max_age"]),
        ({"max_age": 512, "max_new_tokens": 512}, ["max_age"]),
        ({"asynchrony": "one_step_off"}, ["max_age"]),
        ({"equal_groups": "refill", "samples_per_prompt": 4}, ["equal_groups"]),
        ({"equal_groups": "drop", "samples_per_prompt": 4}, []),
        ({"environment": Environment(tools={"calc": "charter:calculator"})}, ["environment"]),
    ],
)
def test_answers_in_flight_have_a_bound_and_one_turn(changes, wrong):
    assert list(problems(**{**IN_FLIGHT, **changes})) == [f"ppo.{name}" for name in wrong]


PAIRS = {"estimator": "online_dpo", "samples_per_prompt": 2, "kl_coefficient": 0.1}


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({}, []),
        ({"equal_groups": "refill", "reward_clip": 5.0, "stop_update_kl": 0.1, "ppo_epochs": 2}, []),
        ({"samples_per_prompt": 1}, ["samples_per_prompt"]),
        ({"samples_per_prompt": 4}, ["samples_per_prompt"]),
        ({"minibatch": 1}, ["minibatch"]),
        ({"kl_coefficient": 0.0}, ["kl_coefficient"]),
        ({"clip_ratio": 0.1, "entropy_weight": 0.01, "kl_target": 6.0}, ["kl_target", "clip_ratio", "entropy_weight"]),
    ],
)
def test_online_dpo_has_a_loss_of_pairs(changes, wrong):
    assert list(problems(**{**PAIRS, **changes})) == [f"ppo.{name}" for name in wrong]


PROJECT = """
name: direct
models: {base: {model: meta-llama/Llama-3.1-8B}, judge: {model: meta-llama/Llama-3.1-70B-Instruct}}
data: {prompts: prompts.jsonl, pairs: pairs.jsonl}
pipeline:
  pm: {kind: preference_model, init: base, data: pairs}
  ppo: {kind: ppo, policy: base, reward: REWARD, reward_from: FROM, prompts: prompts, episodes: 64, mean_new_tokens: 64}
"""


@pytest.fixture
def loaded(tmp_path):
    """(name of the reward, where it is from) -> the project."""

    def load(reward, source):
        path = tmp_path / "charter.yaml"
        path.write_text(PROJECT.replace("REWARD", reward).replace("FROM", source))
        return load_project(path)

    return load


def test_a_judge_is_a_language_model_and_a_reward_model_is_not(loaded):
    assert loaded("judge", "judge").pipeline["ppo"].reward == "judge"
    assert loaded("pm", "preference_model").pipeline["ppo"].reward == "pm"
    with pytest.raises(SpecError, match="a language model"):
        loaded("pm", "judge")
    with pytest.raises(SpecError, match="preference_model stage"):
        loaded("judge", "preference_model")


TAUGHT = {"estimator": "distill", "teacher": "t", "reward": None}


def test_a_teacher_needs_no_reward():
    assert problems(**TAUGHT) == {}
    assert "learns from a teacher" in problems(estimator="distill")["ppo.teacher"]
    assert "not from a teacher" in problems(teacher="t")["ppo.teacher"]


@pytest.mark.parametrize(
    ("name", "value"),
    [("kl_target", 6.0), ("reward_clip", 1.0), ("missing_end_penalty", 1.0), ("equal_groups", "drop")],
)
def test_a_teacher_leaves_no_use_for_options_of_rewards(name, value):
    assert f"ppo.{name}" in problems(**TAUGHT, samples_per_prompt=4, **{name: value})


def test_a_divergence_has_no_ratio_to_clip():
    assert problems(**TAUGHT, divergence="jsd", teacher_share=0.25, loss_aggregation="sequence") == {}
    assert "compares no distributions" in problems(divergence="reverse")["ppo.divergence"]
    for name, value in (("clip_ratio", 0.1), ("entropy_weight", 0.01), ("surrogate", "cispo"), ("mismatch_clip", 2.0)):
        assert "has no ratio" in problems(**TAUGHT, divergence="reverse", **{name: value})[f"ppo.{name}"]
    assert "above 0 and below 1" in problems(**TAUGHT, divergence="jsd", teacher_share=1.0)["ppo.teacher_share"]
    assert "1 or more" in problems(**TAUGHT, divergence="jsd", divergence_words=0)["ppo.divergence_words"]
