"""GRPO and RLOO as TRL's trainers know them."""

import pytest
import yaml
from huggingface_case import handover, layout_of

from charter.engines import render
from charter.engines.common.request import RlPlacement, RolesTogether
from charter.errors import SpecError


def settings_of(kind, **changes):
    return yaml.safe_load(render(handover("trl", kind, **changes)).files[f"{kind}.yaml"])


def refused(kind, **changes):
    with pytest.raises(SpecError) as caught:
        render(handover("trl", kind, **changes))
    return {problem.path.removeprefix("pipeline.stage."): problem.message for problem in caught.value.problems}


def test_a_rollout_is_a_generation_and_its_updates():
    found = settings_of("grpo", rollout_batch=64, ppo_epochs=2, checkpoint_every=5, warmup_steps=3)
    assert (found["generation_batch_size"], found["num_generations"], found["num_iterations"]) == (64, 4, 2)
    updates = 2 * 64 // 32
    assert (found["max_steps"], found["save_steps"]) == (20 * updates, 5 * updates)
    assert found["warmup_steps"] == 3 * updates
    rows = found["per_device_train_batch_size"] * found["gradient_accumulation_steps"]
    assert rows == 32
    plain = settings_of("grpo")
    assert (plain["max_steps"], plain["num_iterations"]) == (20, 1)


def test_sampling_is_as_the_file_says():
    found = settings_of("grpo", temperature=0.7, top_p=0.9, max_new_tokens=99, min_new_tokens=4)
    assert (found["temperature"], found["top_p"], found["max_completion_length"]) == (0.7, 0.9, 99)
    assert found["generation_kwargs"] == {"min_new_tokens": 4}
    assert (found["top_k"], found["repetition_penalty"]) == (0, 1.0)
    assert (found["mask_truncated_completions"], found["disable_dropout"]) == (False, True)
    assert "generation_kwargs" not in settings_of("grpo")


def test_models_and_prompts():
    found = settings_of("rloo")
    assert found["model_name_or_path"] == "models/policy"
    assert found["reward_model_name_or_path"] == "models/reward"
    assert found["datasets"][0]["data_files"] == "data/prompts.jsonl"


def test_grpo_has_its_penalty_in_the_loss_and_its_scale_from_the_group():
    found = settings_of("grpo", kl_coefficient=0.02, clip_ratio=0.3, entropy_weight=0.01, kl_estimator="k3")
    assert (found["beta"], found["epsilon"], found["entropy_coef"]) == (0.02, 0.3, 0.01)
    assert found["use_bias_correction_kl"] is False, "k3 alone, not times the ratio"
    assert (found["scale_rewards"], found["importance_sampling_level"]) == ("group", "token")
    assert found["loss_type"] == "dapo"
    assert settings_of("grpo", loss_aggregation="sequence")["loss_type"] == "grpo"
    assert found["router_aux_loss_coef"] == 0.0


@pytest.mark.parametrize("aggregation", ["sequence", "constant"])
def test_entropy_is_a_mean_over_tokens_or_refused(aggregation):
    # grpo_trainer.py, _compute_loss: its bonus does not depend on how the loss of the policy is normalised.
    refusal = refused("grpo", entropy_weight=0.01, loss_aggregation=aggregation)
    assert "mean over tokens" in refusal["entropy_weight"]
    assert settings_of("grpo", loss_aggregation=aggregation)["entropy_coef"] == 0.0


def test_rloo_is_one_update_of_a_whole_rollout():
    found = settings_of("rloo", kl_coefficient=0.02, whiten_advantages=False, clip_ratio=0.3)
    assert (found["beta"], found["normalize_advantages"], found["epsilon"]) == (0.02, False, 0.3)
    assert settings_of("rloo")["normalize_advantages"] is True
    assert "updated in parts" in refused("rloo", rollout_batch=64)["minibatch"]
    assert "whole answer" in refused("rloo", ppo_epochs=2)["ppo_epochs"]
    assert "no entropy bonus" in refused("rloo", entropy_weight=0.1)["entropy_weight"]
    assert "k1" in refused("rloo", kl_estimator="k3")["kl_estimator"]
    assert "same direction" in refused("rloo", loss_aggregation="sequence")["loss_aggregation"]


def test_vllm_shares_the_accelerators():
    placement = RlPlacement(arrangement="offloaded", generator_tensor=4)
    how = {"generator": "vllm", "placement": placement, "layout": layout_of("grpo", data=4)}
    found = settings_of("grpo", max_prompt_tokens=100, max_new_tokens=50, min_new_tokens=2, **how)
    assert (found["use_vllm"], found["vllm_mode"], found["vllm_tensor_parallel_size"]) == (True, "colocate", 4)
    assert (found["vllm_enable_sleep_mode"], found["vllm_gpu_memory_utilization"]) == (True, 0.3)
    assert found["vllm_max_model_length"] == 150
    assert found["generation_kwargs"] == {"min_tokens": 2}
    colocated = settings_of("grpo", **{**how, "placement": RlPlacement()})
    assert (colocated["vllm_enable_sleep_mode"], colocated["vllm_tensor_parallel_size"]) == (False, 1)
    assert settings_of("grpo")["use_vllm"] is False


def test_the_generators_probabilities_are_weighed_by_grpo_with_vllm_alone():
    found = settings_of("grpo", generator="vllm", mismatch_clip=2.0)
    assert found["vllm_importance_sampling_correction"] is True
    assert found["vllm_importance_sampling_mode"] == "token_truncate"
    assert found["vllm_importance_sampling_clip_max"] == 2.0
    assert settings_of("grpo", generator="vllm")["vllm_importance_sampling_correction"] is False
    assert "weighs" in refused("grpo", mismatch_clip=2.0)["mismatch_clip"]
    assert "weighs" in refused("rloo", generator="vllm", mismatch_clip=2.0)["mismatch_clip"]


def test_roles_that_are_apart_are_refused():
    together = RolesTogether(roles=("policy",), num_accelerators=1, layout=layout_of("grpo"))
    for placement in (
        RlPlacement(arrangement="split"),
        RlPlacement(arrangement="async"),
        RlPlacement(groups=(together, together)),
    ):
        assert "same accelerators" in refused("grpo", placement=placement)["engine"]


def test_answers_of_older_policies_are_refused_with_the_reason():
    found = refused("grpo", asynchrony="in_flight", max_age=2)
    assert "no script runs it" in found["asynchrony"]
    assert "no script runs it" in found["max_age"]


def test_online_dpo_of_trl_learns_from_ties():
    assert "pairs of equal rewards" in refused("grpo", estimator="online_dpo", samples_per_prompt=2)["estimator"]


def test_estimators_with_a_value_model_are_refused():
    found = refused("gae", estimator="gae", samples_per_prompt=1)
    assert "no value model" in found["estimator"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kl_target", 6.0),
        ("reward_clip", 5.0),
        ("missing_end_penalty", 1.0),
        ("stop_update_kl", 0.1),
        ("ptx_weight", 0.5),
        ("ptx_data", ("chat",)),
        ("reward_from", "judge"),
        ("checkpoint_epochs", True),
        ("discount", 0.9),
        ("bootstrap_truncated", True),
        ("value_warmup_rollouts", 2),
    ],
)
def test_what_trl_cannot_do_is_refused(name, value):
    assert set(refused("grpo", **{name: value})) == {name}
    assert set(refused("rloo", **{name: value})) == {name}
