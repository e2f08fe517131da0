"""Stages as files of SkyRL: values, refusals, and the schema recorded from its own classes."""

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from charter.engines import handover_engine, render
from charter.engines.common.rendered import RenderedRun
from charter.engines.common.request import RlPlacement
from charter.engines.skyrl import capabilities
from charter.errors import SpecError
from charter.spec.layout import Adapter, Recompute, ZeroStage
from charter.spec.rewards import Mismatch, Reward
from charter.spec.stage_base import Guard, StageResources
from plain_stages import accepted_stage, handover, layout_of

FILE = Path(capabilities.__file__).with_name("schema.json")
SCHEMA = json.loads(FILE.read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
GSPO = {"ratio": "sequence", "loss_aggregation": "sequence", "clip_ratio": 3e-4, "clip_ratio_high": 4e-4}
RLOO = {"estimator": "rloo", "whiten_advantages": False}


def rendered(layout: dict[str, Any] | None = None, settings: dict[str, Any] | None = None, **stage: Any) -> RenderedRun:
    made = accepted_stage("skyrl", "ppo", **stage)
    return render(handover(made, layout_of(made, **(layout or {})), **(settings or {})))


def content(run: RenderedRun) -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load(run.files["skyrl.yaml"])
    return values


def at(run: RenderedRun, key: str) -> Any:
    value: Any = content(run)
    for name in key.split("."):
        value = value[name]
    return value


def errors(values: object) -> list[str]:
    return [error.message for error in VALIDATOR.iter_errors(values)]


ACCEPTED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"adapter": Adapter(rank=8, alpha=16)}, {}),
    ({"schedule": "cosine", "min_learning_rate_ratio": 0.0, "warmup_steps": 3}, {}),
    ({"surrogate": "cispo", "clip_ratio": 1.0, "scale_advantages": "none"}, {}),
    ({"dual_clip": 3.0, "clip_ratio_high": 0.28, "ppo_epochs": 2}, {}),
    (GSPO, {}),
    ({**RLOO, "kl_coefficient": 0.1, "kl_estimator": "k1"}, {}),
    ({"kl_coefficient": 0.1, "loss_aggregation": "sequence"}, {}),
    ({"loss_aggregation": "constant", "loss_horizon": 700}, {}),
    ({"mismatch": Mismatch(method="icepop", low=0.5, high=2.0)}, {}),
    ({"mismatch": Mismatch(method="sequence_mask", low=0.9, high=1.1)}, {}),
    ({"resources": StageResources(attention="sdpa")}, {}),
    ({}, {"data": 4, "context": 2, "recompute": Recompute.FULL}),
    ({}, {"offload_parameters": True, "offload_optimizer": True}),
]


@pytest.mark.parametrize(("stage", "layout"), ACCEPTED)
def test_skyrls_classes_take_every_key_and_value(stage: dict[str, Any], layout: dict[str, Any]) -> None:
    assert errors(content(rendered(layout, **stage))) == []


WRONG: list[tuple[str, object, str]] = [
    ("trainer.algorithm.clip_high", 0.2, "clip_high"),
    ("trainer.policy.optimizer_config.lr", "fast", "fast"),
    ("trainer.train_batch_size", 1.5, "1.5"),
    ("trainer.algorithm.policy_loss_type", "ppo", "ppo"),
    ("trainer.algorithm.advantage_estimator", "remax", "remax"),
]


@pytest.mark.parametrize(("key", "value", "said"), WRONG)
def test_a_wrong_key_type_or_name_is_noticed(key: str, value: object, said: str) -> None:
    values = copy.deepcopy(content(rendered()))
    *path, last = key.split(".")
    place = values
    for name in path:
        place = place[name]
    place[last] = value
    assert any(said in message for message in errors(values)), errors(values)


def test_the_schema_is_of_the_version_that_is_rendered() -> None:
    assert (SCHEMA["version"], SCHEMA["date"]) == (capabilities.VERSION, capabilities.DATE)
    assert handover_engine("skyrl").version == capabilities.VERSION
    assert "description" not in FILE.read_text()


TRAINER, ALGORITHM, POLICY = "trainer", "trainer.algorithm", "trainer.policy"
ENGINE, SAMPLES = "generator.inference_engine", "generator.sampling_params"
CORRECTION, OPTIMIZER = f"{ALGORITHM}.off_policy_correction", f"{POLICY}.optimizer_config"
VALUES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"trainer.max_training_steps": 64, "trainer.hf_save_interval": 64, "trainer.resume_mode": "latest"}),
    ({}, {f"{TRAINER}.train_batch_size": 16, "generator.n_samples_per_prompt": 4, f"{TRAINER}.seed": 7}),
    ({"minibatch": 32}, {f"{TRAINER}.policy_mini_batch_size": 8, f"{TRAINER}.micro_train_batch_size_per_gpu": 2}),
    ({}, {f"{TRAINER}.placement.policy_num_gpus_per_node": 8, f"{ENGINE}.num_engines": 8}),
    ({"kl_coefficient": 0.0}, {f"{ALGORITHM}.use_kl_loss": False, f"{ALGORITHM}.use_kl_in_reward": False}),
    ({"kl_coefficient": 0.1, "loss_aggregation": "sequence"}, {
        f"{ALGORITHM}.use_kl_loss": True,
        f"{ALGORITHM}.kl_loss_coef": 0.1,
        f"{ALGORITHM}.kl_estimator_type": "k3",
        f"{ALGORITHM}.loss_reduction": "sequence_mean",
    }),
    ({**RLOO, "kl_coefficient": 0.1, "kl_estimator": "k1"}, {
        f"{ALGORITHM}.advantage_estimator": "rloo",
        f"{ALGORITHM}.use_kl_in_reward": True,
        f"{ALGORITHM}.kl_estimator_type": "k1",
    }),
    ({"learning_rate": 2e-5, "gradient_clip": 0.5}, {f"{OPTIMIZER}.lr": 2e-5, f"{OPTIMIZER}.max_grad_norm": 0.5}),
    ({"beta1": 0.8, "beta2": 0.99}, {f"{OPTIMIZER}.adam_betas": [0.8, 0.99]}),
    ({"schedule": "linear", "min_learning_rate_ratio": 0.0, "warmup_steps": 3, "minibatch": 32, "ppo_epochs": 2}, {
        f"{OPTIMIZER}.scheduler": "linear",
        f"{OPTIMIZER}.num_warmup_steps": 12,
    }),
    ({"temperature": 0.7, "top_p": 0.9, "max_new_tokens": 100}, {
        f"{SAMPLES}.temperature": 0.7,
        f"{SAMPLES}.top_p": 0.9,
        f"{SAMPLES}.max_generate_length": 100,
        f"{ENGINE}.engine_init_kwargs": {"max_model_len": 612},
    }),
    ({"adapter": Adapter(rank=8, alpha=16)}, {
        f"{POLICY}.model.lora": {
            "rank": 8, "alpha": 16, "dropout": 0.0, "target_modules": "all-linear", "lora_sync_path": "./lora",
        },
    }),
    ({"entropy_weight": 0.01}, {f"{ALGORITHM}.use_entropy_loss": True, f"{ALGORITHM}.entropy_loss_coef": 0.01}),
    ({"mismatch": Mismatch(method="tis", high=3.0)}, {f"{CORRECTION}.token_tis_ratio_clip_high": 3.0}),
    ({"mismatch": Mismatch(method="icepop", high=3.0)}, {f"{CORRECTION}.token_mask_is_threshold_low": 0.0}),
    ({"resources": StageResources(attention="sdpa")}, {
        f"{TRAINER}.flash_attn": False,
        f"{TRAINER}.remove_microbatch_padding": False,
    }),
]  # fmt: skip


@pytest.mark.parametrize(("stage", "wanted"), VALUES)
def test_fields_have_skyrls_names(stage: dict[str, Any], wanted: dict[str, Any]) -> None:
    run = rendered(**stage)
    assert {key: at(run, key) for key in wanted} == wanted


def test_several_nodes_start_on_ray_and_divide_the_generators() -> None:
    placement = RlPlacement(arrangement="offloaded", generator_tensor=4)
    run = rendered({"data": 16}, {"nodes": 2, "placement": placement})
    assert at(run, f"{ENGINE}.num_engines") == 4
    assert at(run, f"{TRAINER}.placement.policy_num_nodes") == 2
    assert run.command == ("bash", "on_ray.sh", "python", "./run_skyrl.py", "./skyrl.yaml")
    assert "--num-gpus=8" in run.files["on_ray.sh"]


RIGHT = Reward(name="right", kind="function", call="charter:number")
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("estimator", {"estimator": "gae"}, "without a value model"),
    ("scale_advantages", {"scale_advantages": "batch"}, "deviation of a group or by nothing"),
    ("scale_advantages", {"scale_advantages": "mean"}, "by the mean and 1e-6"),
    ("whiten_advantages", {"estimator": "rloo", "whiten_advantages": True}, "mean of padded places"),
    ("kl_coefficient", {"kl_coefficient": 0.01}, "mean over answers of each answer's mean"),
    ("kl_target", {"kl_target": 6.0}, "nats per token"),
    ("minibatch", {"minibatch": 24}, "must divide rollout_batch (64)"),
    ("rollout_batch", {"samples_per_prompt": 3}, "samples_per_prompt (3)"),
    ("mismatch", {"mismatch": Mismatch(method="tis", low=0.5, high=2.0)}, "no lower bound"),
    ("equal_groups", {"equal_groups": "drop"}, "filter of equal groups does not act"),
    ("equal_groups", {"equal_groups": "refill"}, "takes the prompts of later rollouts"),
    ("entropy_weight", {"entropy_weight": 0.1, "loss_aggregation": "sequence"}, "mean over tokens"),
    ("min_new_tokens", {"min_new_tokens": 0}, "fixed to 1"),
    ("min_learning_rate_ratio", {"schedule": "cosine"}, "ends at 0"),
    ("dtype", {"dtype": "fp32"}, "bfloat16"),
    ("dtype", {"dtype": "fp8"}, "bfloat16"),
    ("optimizer", {"optimizer": "adamw_8bit"}, "8 bits"),
    ("guard", {"guard": Guard()}, "no other guard"),
    ("adapter", {"adapter": Adapter(rank=8, base_bits=4)}, "4 bits"),
    ("resources", {"resources": StageResources(attention="eager")}, "not eager"),
    ("resources", {"resources": StageResources(compile=True)}, "not of the model"),
    ("reward", {"rewards": (), "reward": "pm"}, "serves no reward model"),
    (
        "rewards",
        {"rewards": (RIGHT, Reward(name="good", kind="judge", model="big"))},
        "beside the engine, and an export has none",
    ),
    ("asynchrony", {"asynchrony": "one_step_off"}, "by the weights that learn"),
]


@pytest.mark.parametrize(("field", "stage", "reason"), REFUSED)
def test_what_it_cannot_express_is_refused_by_name(field: str, stage: dict[str, Any], reason: str) -> None:
    with pytest.raises(SpecError) as caught:
        rendered(**stage)
    said = {problem.path.removeprefix("pipeline.stage."): problem.message for problem in caught.value.problems}
    assert reason in said[field]


LAYOUTS: list[tuple[str, dict[str, Any]]] = [
    ("layout.zero", {"zero": ZeroStage.GRADIENTS}),
    ("layout.recompute", {"recompute": Recompute.SELECTIVE}),
    ("layout.offload_optimizer", {"offload_optimizer": True}),
    ("layout.tensor", {"data": 4, "tensor": 2}),
    ("layout.sequence_parallel", {"sequence_parallel": True}),
    ("layout.context", {"data": 1, "context": 3}),
    ("layout.micro_batch", {"micro": 3}),
]


@pytest.mark.parametrize(("path", "layout"), LAYOUTS)
def test_a_layout_that_it_cannot_run_is_refused(path: str, layout: dict[str, Any]) -> None:
    with pytest.raises(SpecError) as caught:
        rendered(layout)
    assert path in [problem.path for problem in caught.value.problems]


MACHINES: list[tuple[dict[str, Any], str]] = [
    ({"placement": RlPlacement(arrangement="split")}, "the plan's arrangement is split"),
    ({"nodes": 2}, "the layout has 8, the machines 16"),
    ({"placement": RlPlacement(arrangement="offloaded", generator_tensor=3)}, "generators of 3"),
]


@pytest.mark.parametrize(("settings", "reason"), MACHINES)
def test_a_machine_that_it_does_not_fill_is_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(SpecError, match=reason) as caught:
        rendered({}, settings)
    assert [problem.path for problem in caught.value.problems] == ["pipeline.stage.resources"]
