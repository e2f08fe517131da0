"""Stages as files of NeMo RL: values, refusals, and the recorded schema of its classes."""

from dataclasses import replace
from typing import Any

import pytest
import yaml
from engine_stages import dpo, handover, ppo, preference_model, sft, sharded
from recorded_schema import RecordedSchema

from charter.engines import handover_engine
from charter.engines.common.mapping import fields_of
from charter.engines.common.rendered import RenderedRun
from charter.engines.common.request import RlPlacement
from charter.engines.nemo_rl.capabilities import COMMIT, VERSION
from charter.engines.nemo_rl.mapping import render_nemo_rl
from charter.errors import SpecError
from charter.spec.layout import Adapter, Layout, Recompute, ZeroStage
from charter.spec.stage_base import Guard, Stage, StageResources

SCHEMA = RecordedSchema()
REWARD_ACCELERATORS = 4
MAKERS = {"sft": sft, "rm": preference_model, "dpo": dpo, "grpo": ppo}
SEQUENCES = {"sft": 64, "rm": 128, "dpo": 128, "grpo": 32}


def rendered(
    root: str, layout: Layout | None = None, settings: dict[str, Any] | None = None, **stage: Any
) -> RenderedRun:
    given, beside = dict(settings or {}), 0
    if root == "grpo":
        stage = {"estimator": "grpo", "samples_per_prompt": 4, **stage}
        beside = REWARD_ACCELERATORS
    chosen = layout or sharded(SEQUENCES[root])
    given.setdefault("per_node", chosen.num_accelerators + beside)
    return render_nemo_rl(handover("nemo_rl", MAKERS[root](**stage), chosen, **given))


def content(run: RenderedRun) -> dict[str, Any]:
    [file] = [name for name in run.files if name.endswith(".yaml")]
    found: dict[str, Any] = yaml.safe_load(run.files[file])
    return found


def at(run: RenderedRun, key: str) -> Any:
    value: Any = content(run)
    for name in key.split("."):
        value = value[name]
    return value


CASES: list[tuple[str, dict[str, Any]]] = [
    *((root, {}) for root in MAKERS),
    *((root, {"adapter": Adapter(rank=8, alpha=16)}) for root in MAKERS),
    *((root, {"schedule": name, "warmup_steps": 3}) for root in MAKERS for name in ("constant", "linear", "cosine")),
    *((root, {"dtype": name}) for root in MAKERS for name in ("fp32", "fp16")),
    ("grpo", {"estimator": "rloo", "whiten_advantages": False, "kl_coefficient": 0.0}),
    ("grpo", {"mismatch_clip": 2.0, "loss_aggregation": "sequence"}),
]


@pytest.mark.parametrize(("root", "stage"), CASES)
def test_nemo_rls_classes_have_every_key_and_type(root: str, stage: dict[str, Any]) -> None:
    assert SCHEMA.errors(root, content(rendered(root, **stage))) == []


@pytest.mark.parametrize("root", MAKERS)
def test_a_wrong_key_a_wrong_type_and_a_missing_key_are_noticed(root: str) -> None:
    values = content(rendered(root))
    assert SCHEMA.errors(root, {**values, "clusters": {}}) == [".clusters: unknown"]
    policy = values["policy"]
    assert SCHEMA.errors(root, {**values, "policy": {**policy, "train_micro_batchsize": 1}}) == [
        ".policy.train_micro_batchsize: unknown"
    ]
    wrong = {**policy, "train_micro_batch_size": "four"}
    assert SCHEMA.errors(root, {**values, "policy": wrong}) == [".policy.train_micro_batch_size: 'four' is not int"]
    short = {key: value for key, value in policy.items() if key != "precision"}
    assert SCHEMA.errors(root, {**values, "policy": short}) == [".policy.precision: missing"]


def test_the_schema_is_of_the_version_that_is_rendered() -> None:
    assert SCHEMA.content["version"] == VERSION
    assert SCHEMA.content["commit"] == COMMIT
    assert handover_engine("nemo_rl").version == VERSION


DRAWS = "policy.generation"
VALUES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("sft", {"learning_rate": 2e-5}, {"policy.optimizer.kwargs.lr": 2e-5}),
    ("sft", {"weight_decay": 0.1}, {"policy.optimizer.kwargs.weight_decay": 0.1}),
    ("sft", {"beta1": 0.8, "beta2": 0.9}, {"policy.optimizer.kwargs.betas": [0.8, 0.9]}),
    ("sft", {"gradient_clip": 0.5}, {"policy.max_grad_norm": 0.5}),
    ("sft", {"seq_len": 256}, {"policy.max_total_sequence_length": 256, "data.max_input_seq_length": 256}),
    ("sft", {}, {"policy.train_global_batch_size": 64, "policy.train_micro_batch_size": 4}),
    ("sft", {}, {"sft.max_num_steps": 10, "sft.max_num_epochs": 1, "sft.seed": 7, "sft.val_period": 0}),
    ("sft", {"checkpoint_every": 5}, {"checkpointing.save_period": 5, "checkpointing.keep_top_k": 3}),
    ("sft", {}, {"data.shuffle": False, "data.train.dataset_name": "openai_format"}),
    ("sft", {}, {"data.train.data_path": "/job/data/data.jsonl"}),
    ("sft", {}, {"policy.model_name": "/models/init", "policy.tokenizer.name": "/models/init"}),
    ("sft", {"dtype": "fp16"}, {"policy.precision": "float16"}),
    ("rm", {}, {"policy.train_global_batch_size": 64, "policy.train_micro_batch_size": 2}),
    ("rm", {}, {"policy.reward_model_cfg": {"enabled": True, "reward_model_type": "bradley_terry"}}),
    ("dpo", {"beta": 0.3}, {"dpo.reference_policy_kl_penalty": 0.3, "dpo.sft_loss_weight": 0.0}),
    ("dpo", {}, {"data.train.dataset_name": "PreferenceDataset", "dpo.preference_average_log_probs": False}),
    ("grpo", {}, {"grpo.num_prompts_per_step": 16, "grpo.num_generations_per_prompt": 4}),
    ("grpo", {}, {"policy.train_global_batch_size": 32, "policy.logprob_batch_size": 4}),
    ("grpo", {"clip_ratio": 0.3}, {"loss_fn.ratio_clip_min": 0.3, "loss_fn.ratio_clip_max": 0.3}),
    ("grpo", {}, {"loss_fn.ratio_clip_c": None, "loss_fn.kl_output_clamp_value": None}),
    ("grpo", {"kl_coefficient": 0.2}, {"loss_fn.reference_policy_kl_penalty": 0.2}),
    ("grpo", {}, {"grpo.normalize_rewards": True, "grpo.use_leave_one_out_baseline": False}),
    ("grpo", {"kl_coefficient": 0.0}, {"grpo.skip_reference_policy_logprobs_calculation": True}),
    ("grpo", {"loss_aggregation": "sequence"}, {"loss_fn.token_level_loss": False}),
    ("grpo", {"mismatch_clip": 2.5}, {
        "loss_fn.use_importance_sampling_correction": True,
        "loss_fn.truncated_importance_sampling_type": "tis",
        "loss_fn.truncated_importance_sampling_ratio": 2.5,
    }),
    ("grpo", {"temperature": 0.7, "top_p": 0.9}, {f"{DRAWS}.temperature": 0.7, f"{DRAWS}.top_p": 0.9}),
    ("grpo", {"max_new_tokens": 100}, {f"{DRAWS}.max_new_tokens": 100, "policy.max_total_sequence_length": 612}),
    ("grpo", {"max_prompt_tokens": 100}, {"data.max_input_seq_length": 100, f"{DRAWS}.vllm_cfg.max_model_len": 612}),
    ("grpo", {}, {"env.reward_model.model_name": "/models/reward", "data.default.env_name": "reward_model"}),
    ("grpo", {}, {"data.shuffle": False, "data.validation": None, "data.use_multiple_dataloader": False}),
    ("grpo", {}, {"env.reward_model.resources": {"gpus_per_node": 4, "num_nodes": 1}}),
]  # fmt: skip


@pytest.mark.parametrize(("root", "stage", "wanted"), VALUES)
def test_fields_have_nemo_rls_names(root: str, stage: dict[str, Any], wanted: dict[str, Any]) -> None:
    run = rendered(root, **stage)
    assert {key: at(run, key) for key in wanted} == wanted


def test_rloo_leaves_one_out_and_does_not_scale() -> None:
    run = rendered("grpo", estimator="rloo", whiten_advantages=False, kl_coefficient=0.0)
    wanted = {"normalize_rewards": False, "use_leave_one_out_baseline": True}
    assert at(run, "grpo.adv_estimator") == {"name": "grpo", **wanted}


REFUSED: list[tuple[str, str, dict[str, Any]]] = [
    ("sft", "packing", {"packing": True}),
    ("sft", "dropout", {"dropout": 0.1}),
    ("sft", "optimizer", {"optimizer": "adamw_8bit"}),
    ("sft", "guard", {"guard": Guard()}),
    ("sft", "adapter", {"adapter": Adapter(rank=8, base_bits=4)}),
    ("rm", "pooling", {"pooling": "mean"}),
    ("rm", "head_learning_rate_ratio", {"head_learning_rate_ratio": 2.0}),
    ("rm", "label_smoothing", {"label_smoothing": 0.1}),
    ("rm", "use_margin", {"use_margin": True}),
    ("rm", "center_weight", {"center_weight": 0.1}),
    ("dpo", "label_smoothing", {"label_smoothing": 0.1}),
    ("dpo", "loss", {"loss": "ipo"}),
    ("dpo", "loss", {"loss": "kto"}),
    ("dpo", "loss", {"loss": "simpo"}),
    ("grpo", "estimator", {"estimator": "gae", "whiten_advantages": False}),
    ("grpo", "estimator", {"estimator": "reinforce", "whiten_advantages": False}),
    ("grpo", "kl_coefficient", {"estimator": "rloo", "whiten_advantages": False}),
    ("grpo", "whiten_advantages", {"estimator": "rloo", "kl_coefficient": 0.0}),
    ("grpo", "ppo_epochs", {"ppo_epochs": 2}),
    ("grpo", "entropy_weight", {"entropy_weight": 0.1}),
    ("grpo", "reward_clip", {"reward_clip": 1.0}),
    ("grpo", "missing_end_penalty", {"missing_end_penalty": 1.0}),
    ("grpo", "bootstrap_truncated", {"bootstrap_truncated": True}),
    ("grpo", "stop_update_kl", {"stop_update_kl": 1.0}),
    ("grpo", "ptx_weight", {"ptx_weight": 1.0}),
    ("grpo", "ptx_data", {"ptx_data": ("chat",)}),
    ("grpo", "kl_target", {"kl_target": 6.0}),
    ("grpo", "reward_from", {"reward_from": "judge"}),
    ("grpo", "value_warmup_rollouts", {"value_warmup_rollouts": 1}),
    ("grpo", "min_new_tokens", {"min_new_tokens": 1}),
    ("grpo", "checkpoint_epochs", {"checkpoint_epochs": True}),
    ("grpo", "rollout_batch", {"samples_per_prompt": 3}),
]


@pytest.mark.parametrize(("root", "field", "stage"), REFUSED)
def test_what_nemo_rl_cannot_express_is_refused_by_name(root: str, field: str, stage: dict[str, Any]) -> None:
    with pytest.raises(SpecError) as caught:
        rendered(root, **stage)
    assert [problem.path for problem in caught.value.problems] == [f"pipeline.stage.{field}"]


AHEAD: list[tuple[dict[str, Any], str]] = [
    ({"asynchrony": "one_step_off"}, "weighs each token by what they moved since"),
    ({"asynchrony": "in_flight", "max_age": 2}, "every version draws an equal share"),
]


@pytest.mark.parametrize(("stage", "reason"), AHEAD)
def test_its_async_grpo_has_another_loss_and_other_ages(stage: dict[str, Any], reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        rendered("grpo", **stage)


def test_kto_and_online_dpo_are_refused_with_their_reasons() -> None:
    with pytest.raises(SpecError, match="no loss of each answer by itself"):
        rendered("dpo", loss="kto")
    with pytest.raises(SpecError, match="none compares two answers that were just drawn"):
        rendered("grpo", estimator="online_dpo", samples_per_prompt=2)


LAYOUTS: list[tuple[str, dict[str, Any]]] = [
    ("zero", {"zero": ZeroStage.GRADIENTS}),
    ("pipeline", {"pipeline": 2, "data": 4}),
    ("expert", {"expert": 2}),
    ("interleave", {"interleave": 2}),
    ("recompute", {"recompute": Recompute.SELECTIVE}),
    ("offload_optimizer", {"offload_optimizer": True}),
    ("accumulation", {"accumulation": 7}),
]


@pytest.mark.parametrize(("field", "settings"), LAYOUTS)
def test_a_layout_that_nemo_rl_cannot_run_is_refused(field: str, settings: dict[str, Any]) -> None:
    with pytest.raises(SpecError) as caught:
        rendered("sft", sharded(64, **settings))
    assert [problem.path for problem in caught.value.problems] == [f"layout.{field}"]


def test_pairs_need_an_even_micro_batch() -> None:
    with pytest.raises(SpecError, match=r"layout.micro_batch"):
        rendered("dpo", sharded(128, micro_batch=1, accumulation=8))


def test_attention_is_told_and_compilation_refused() -> None:
    run = rendered("sft", resources=StageResources(attention="sdpa"))
    assert at(run, "policy.dtensor_cfg.automodel_kwargs") == {"attn_implementation": "sdpa"}
    assert SCHEMA.errors("sft", content(run)) == []
    with pytest.raises(SpecError, match=r"pipeline.stage.resources"):
        rendered("sft", resources=StageResources(compile=True))


def test_parallel_degrees() -> None:
    layout = sharded(64, data=2, tensor=2, context=2, sequence_parallel=True, recompute=Recompute.FULL)
    run = rendered("sft", layout)
    found = at(run, "policy.dtensor_cfg")
    assert (found["tensor_parallel_size"], found["context_parallel_size"], found["sequence_parallel"]) == (2, 2, True)
    assert found["activation_checkpointing"] is True
    assert at(run, "policy.make_sequence_length_divisible_by") == 2
    host = rendered("sft", sharded(64, offload_parameters=True, offload_optimizer=True))
    assert at(host, "policy.dtensor_cfg.cpu_offload") is True
    copies = render_nemo_rl(handover("nemo_rl", sft(), sharded(64, data=16, replicas=2), num_nodes=2))
    assert at(copies, "policy.dtensor_cfg.dp_replicate_size") == 2


def test_the_reward_model_needs_accelerators_of_its_own() -> None:
    with pytest.raises(SpecError, match="accelerators of its own"):
        rendered("grpo", settings={"per_node": 8})
    several = rendered("grpo", sharded(32), {"num_nodes": 3, "per_node": 4})
    assert at(several, "env.reward_model.resources") == {"gpus_per_node": 4, "num_nodes": 1}
    with pytest.raises(SpecError, match="accelerators of its own"):
        rendered("grpo", sharded(32, data=4, micro_batch=8), {"num_nodes": 2, "per_node": 3})
    with pytest.raises(SpecError, match="async"):
        rendered("grpo", settings={"placement": RlPlacement(arrangement="async")})


def test_processors_and_idle_accelerators_are_refused() -> None:
    with pytest.raises(SpecError, match="needs accelerators"):
        rendered("sft", settings={"accelerator": "cpu"})
    with pytest.raises(SpecError, match="uses 8 accelerators"):
        rendered("sft", settings={"per_node": 16})


@pytest.mark.parametrize("root", MAKERS)
def test_every_field_is_told_of_and_every_key_that_is_named_exists(root: str) -> None:
    run = rendered(root)
    stage: Stage = MAKERS[root]()
    assert [row.field for row in run.mapping] == list(fields_of(stage))
    for target in (target for row in run.mapping for target in row.to if ": " in target):
        at(run, target.split(": ")[1])


def test_commands() -> None:
    assert rendered("rm").command == ("python", "${NEMO_RL_DIR}/examples/run_rm.py", "--config", "/job/rm.yaml")
    several = render_nemo_rl(handover("nemo_rl", sft(), sharded(64, data=16), num_nodes=2))
    assert several.command[:3] == ("bash", "on_ray.sh", "python")
    assert '.get("GPU", 0)) < 16:' in several.files["on_ray.sh"]
    driver = render_nemo_rl(handover("nemo_rl", sft(), sharded(64, data=16), num_nodes=2, on_ray=True))
    assert driver.command[0] == "python"
    assert "on_ray.sh" not in driver.files


def test_where_it_writes_is_below_the_work_directory() -> None:
    run = rendered("sft")
    assert at(run, "checkpointing.checkpoint_dir") == "/job/checkpoints"
    assert at(run, "logger.log_dir") == "/job/logs"
    assert at(run, "logger.wandb_enabled") is False
    assert run.resume.guarantee == "same_data_order"
    assert at(run, "checkpointing.save_consolidated") is True
    assert at(run, "checkpointing.metric_name") is None
    moved = replace(handover("nemo_rl", sft(), sharded(64)), keep_last=5)
    assert at(render_nemo_rl(moved), "checkpointing.keep_top_k") == 6
