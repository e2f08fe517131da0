"""Stages as files of verl: values, refusals, commands."""

from dataclasses import replace
from typing import Any

import pytest
import yaml
from engine_stages import SHAPE, handover, ppo, sft, sharded

from charter.engines import handover_engine
from charter.engines.common.mapping import fields_of
from charter.engines.common.rendered import RenderedRun
from charter.engines.common.request import RlPlacement, RolesTogether
from charter.engines.verl.mapping import render_verl
from charter.errors import SpecError
from charter.spec.architecture import Architecture
from charter.spec.layout import Adapter, Layout, Recompute, ZeroStage
from charter.spec.rewards import Reward
from charter.spec.stage_base import Guard, StageResources


def rendered_ppo(layout: Layout | None = None, settings: dict[str, Any] | None = None, **stage: Any) -> RenderedRun:
    spec = ppo(**stage)
    return render_verl(handover("verl", spec, layout or sharded(spec.minibatch), **(settings or {})))


def rendered_sft(layout: Layout | None = None, settings: dict[str, Any] | None = None, **stage: Any) -> RenderedRun:
    spec = sft(**stage)
    return render_verl(handover("verl", spec, layout or sharded(spec.global_batch), **(settings or {})))


def at(run: RenderedRun, key: str) -> Any:
    """The value of a dotted key of the run's one YAML file."""
    [file] = [name for name in run.files if name.endswith(".yaml")]
    value = yaml.safe_load(run.files[file])
    for name in key.split("."):
        value = value[name]
    return value


ACTOR, ROLLOUT, MODEL = (f"actor_rollout_ref.{name}" for name in ("actor", "rollout", "model"))
PPO_VALUES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"clip_ratio": 0.3}, {f"actor_rollout_ref.actor.clip_ratio{end}": 0.3 for end in ("", "_low", "_high")}),
    ({}, {f"{ACTOR}.clip_ratio_c": 1.0e8}),
    ({"value_clip": 0.4}, {"critic.cliprange_value": 0.4}),
    ({"entropy_weight": 0.01}, {f"{ACTOR}.entropy_coeff": 0.01}),
    ({"gae_lambda": 0.9, "discount": 0.99}, {"algorithm.lam": 0.9, "algorithm.gamma": 0.99}),
    ({"learning_rate": 3e-6}, {f"{ACTOR}.optim.lr": 3e-6, "critic.optim.lr": 1e-6}),
    ({"value_learning_rate": 5e-6}, {"critic.optim.lr": 5e-6, f"{ACTOR}.optim.lr": 1e-6}),
    ({"temperature": 0.7, "top_p": 0.9}, {f"{ROLLOUT}.temperature": 0.7, f"{ROLLOUT}.top_p": 0.9}),
    ({}, {f"{ACTOR}.shuffle": True, "critic.shuffle": True}),
    ({"ppo_epochs": 4}, {f"{ACTOR}.ppo_epochs": 4, "critic.ppo_epochs": 4}),
    ({"loss_aggregation": "token"}, {f"{ACTOR}.loss_agg_mode": "token-mean"}),
    ({"loss_aggregation": "sequence"}, {"critic.loss_agg_mode": "seq-mean-token-mean"}),
    ({"kl_estimator": "k3"}, {"algorithm.kl_penalty": "low_var_kl", "algorithm.use_kl_in_reward": True}),
    ({"kl_coefficient": 0.2}, {"algorithm.kl_ctrl": {"type": "fixed", "kl_coef": 0.2}, "algorithm.kl_penalty": "kl"}),
    ({"mismatch_clip": 2.5}, {"algorithm.rollout_correction": {"rollout_is": "token", "rollout_is_threshold": 2.5}}),
    ({"mismatch_clip": None}, {"algorithm.rollout_correction": {"rollout_is": None}}),
    ({"value_warmup_rollouts": 3}, {"trainer.critic_warmup": 4}),
    ({"value_warmup_rollouts": 0}, {"trainer.critic_warmup": 0}),
    ({"weight_decay": 0.1}, {f"{ACTOR}.optim.weight_decay": 0.1, "critic.optim.weight_decay": 0.1}),
    ({"beta1": 0.8, "beta2": 0.99}, {"critic.optim.betas": [0.8, 0.99], f"{ACTOR}.optim.betas": [0.8, 0.99]}),
    ({"schedule": "cosine"}, {f"{ACTOR}.optim.lr_scheduler_type": "cosine"}),
    ({"warmup_steps": 5}, {"critic.optim.lr_warmup_steps": 5}),
    ({"min_learning_rate_ratio": 0.2}, {"critic.optim.min_lr_ratio": 0.2}),
    ({"optimizer": "adamw_8bit"}, {"critic.optim.optimizer_impl": "bitsandbytes.optim"}),
    ({"optimizer": "adamw_8bit"}, {"critic.optim.optimizer": "AdamW8bit"}),
    ({"checkpoint_every": 5}, {"trainer.save_freq": 5, "trainer.max_actor_ckpt_to_keep": 3}),
    ({"max_prompt_tokens": 100}, {"data.max_prompt_length": 100, "reward.reward_model.rollout.prompt_length": 612}),
    ({"max_new_tokens": 100}, {"data.max_response_length": 100, "reward.reward_model.rollout.prompt_length": 612}),
    ({}, {"data.truncation": "left", "data.filter_overlong_prompts": False, "data.shuffle": False}),
    ({}, {"trainer.total_training_steps": 10, "trainer.total_epochs": 1, "trainer.logger": ["console", "file"]}),
    ({}, {f"{MODEL}.path": "/models/policy", "reward.reward_model.model_path": "/models/reward"}),
    ({}, {"critic.model.path": "/models/reward", "data.train_files": "/job/data/prompts.parquet"}),
    ({}, {"data.seed": 7, f"{ROLLOUT}.seed": 7, f"{ACTOR}.data_loader_seed": 7}),
    ({"adapter": Adapter(rank=8, alpha=16)}, {f"{MODEL}.lora_rank": 8, f"{MODEL}.lora_alpha": 16}),
    ({"adapter": Adapter(rank=8)}, {f"{ROLLOUT}.load_format": "safetensors"}),
]  # fmt: skip


def test_ppo_fields_have_verls_names() -> None:
    runs = [(stage, wanted, rendered_ppo(**stage)) for stage, wanted in PPO_VALUES]
    written = [(stage, {key: at(run, key) for key in wanted}) for stage, wanted, run in runs]
    assert written == PPO_VALUES


def test_a_weight_of_the_value_loss_is_the_same_as_another_clip_and_epsilon_of_adam() -> None:
    run = rendered_ppo(value_loss_weight=0.5, gradient_clip=1.5)
    assert at(run, "critic.optim.clip_grad") == 3.0
    assert at(run, "critic.optim.override_optimizer_config") == {"eps": 2e-8}
    assert at(run, "actor_rollout_ref.actor.optim.clip_grad") == 1.5


def test_batches_are_counted_in_prompts() -> None:
    run = rendered_ppo(estimator="grpo", samples_per_prompt=4)
    assert at(run, "data.train_batch_size") == 16
    assert at(run, "actor_rollout_ref.actor.ppo_mini_batch_size") == 8
    assert at(run, "actor_rollout_ref.rollout.n") == 4
    assert at(run, "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu") == 4
    assert at(run, "actor_rollout_ref.rollout.agent.num_workers") == 8


def test_grpo_has_its_penalty_in_the_loss_and_no_value_model() -> None:
    run = rendered_ppo(estimator="grpo", samples_per_prompt=4, kl_coefficient=0.2)
    assert at(run, "algorithm.adv_estimator") == "grpo"
    assert at(run, "algorithm.use_kl_in_reward") is False
    actor = at(run, "actor_rollout_ref.actor")
    assert (actor["use_kl_loss"], actor["kl_loss_coef"], actor["kl_loss_type"]) == (True, 0.2, "low_var_kl")
    assert at(run, "critic.enable") is False
    assert at(run, "algorithm.norm_adv_by_std_in_grpo") is True


def test_rloo_has_its_penalty_in_the_reward() -> None:
    run = rendered_ppo(estimator="rloo", samples_per_prompt=2, whiten_advantages=False)
    assert at(run, "algorithm.adv_estimator") == "rloo"
    assert at(run, "algorithm.use_kl_in_reward") is True
    assert at(run, "actor_rollout_ref.actor.use_kl_loss") is False


def test_without_a_penalty_verl_holds_no_reference() -> None:
    for estimator in ("grpo", "rloo"):
        run = rendered_ppo(estimator=estimator, samples_per_prompt=2, whiten_advantages=False, kl_coefficient=0.0)
        assert at(run, "algorithm.use_kl_in_reward") is False
        assert at(run, "actor_rollout_ref.actor.use_kl_loss") is False


def test_answers_in_flight_are_refused() -> None:
    with pytest.raises(SpecError, match="stale share of a batch"):
        rendered_ppo(asynchrony="in_flight", max_age=2)


RIGHT = (Reward(name="right", kind="function", call="charter:number"),)


def one_step_off(trainers: int, generators: int, *, per_node: int = 8, nodes: int = 1, **stage: Any) -> RenderedRun:
    given = {"estimator": "grpo", "samples_per_prompt": 4, "reward": None, "rewards": RIGHT, **stage}
    made = ppo(asynchrony="one_step_off", rollout_batch=192, minibatch=96, kl_coefficient=0.0, **given)
    layout = sharded(96, data=trainers, micro_batch=1)
    apart = RolesTogether(
        roles=("generate",), num_accelerators=generators, layout=Layout(data=generators // 2, tensor=2)
    )
    together = RolesTogether(roles=("policy",), num_accelerators=trainers, layout=layout)
    placement = RlPlacement(arrangement="async", groups=(together, apart) if generators else (), generator_tensor=2)
    return render_verl(handover("verl", made, layout, placement=placement, per_node=per_node, num_nodes=nodes))


@pytest.mark.parametrize(
    ("trainers", "generators", "nodes", "trainer", "rollout"),
    [(4, 4, 1, (1, 4), (1, 4)), (6, 2, 1, (1, 6), (1, 2)), (16, 8, 3, (2, 8), (1, 8))],
)
def test_one_step_off_divides_the_accelerators(
    trainers: int, generators: int, nodes: int, trainer: tuple[int, int], rollout: tuple[int, int]
) -> None:
    run = one_step_off(trainers, generators, nodes=nodes)
    assert (at(run, "trainer.nnodes"), at(run, "trainer.n_gpus_per_node")) == trainer
    assert (at(run, "rollout.nnodes"), at(run, "rollout.n_gpus_per_node")) == rollout
    assert at(run, "actor_rollout_ref.hybrid_engine") is False
    assert at(run, "algorithm.rollout_correction") == {"rollout_is": None, "bypass_mode": True}
    assert "verl.experimental.one_step_off_policy.main_ppo" in run.command
    assert run.command[-1] == "hydra.searchpath=[pkg://verl.trainer.config]"
    assert run.resume.guarantee == "best_effort"


AHEAD_REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("surrogate", {"surrogate": "cispo", "clip_ratio": 1.0}),
    ("ratio", {"ratio": "sequence", "loss_aggregation": "sequence"}),
    ("mismatch_clip", {"mismatch_clip": 2.0}),
    ("adapter", {"adapter": Adapter(rank=8)}),
    ("reward", {"rewards": (), "reward": "pm"}),
    ("estimator", {"estimator": "gae", "samples_per_prompt": 1}),
]


@pytest.mark.parametrize(("field", "stage"), AHEAD_REFUSED)
def test_what_one_step_off_lacks_is_refused_by_name(field: str, stage: dict[str, Any]) -> None:
    with pytest.raises(SpecError) as caught:
        one_step_off(4, 4, **stage)
    assert f"pipeline.stage.{field}" in [problem.path for problem in caught.value.problems]


def test_one_step_off_needs_accelerators_for_its_generator() -> None:
    with pytest.raises(SpecError, match="accelerators of its own, here are none"):
        one_step_off(8, 0)


PPO_REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("estimator", {"estimator": "reinforce", "whiten_advantages": False}),
    ("kl_target", {"kl_target": 6.0}),
    ("whiten_advantages", {"whiten_advantages": False}),
    ("whiten_advantages", {"estimator": "rloo", "samples_per_prompt": 2}),
    ("reward_clip", {"reward_clip": 5.0}),
    ("missing_end_penalty", {"missing_end_penalty": 1.0}),
    ("bootstrap_truncated", {"bootstrap_truncated": True}),
    ("stop_update_kl", {"stop_update_kl": 0.1}),
    ("ptx_weight", {"ptx_weight": 1.0}),
    ("ptx_data", {"ptx_data": ("chat",)}),
    ("reward_from", {"reward_from": "judge"}),
    ("min_new_tokens", {"min_new_tokens": 1}),
    ("checkpoint_epochs", {"checkpoint_epochs": True}),
    ("schedule", {"schedule": "linear"}),
    ("dtype", {"dtype": "fp32"}),
    ("dtype", {"dtype": "fp16"}),
    ("guard", {"guard": Guard(on_divergence="skip")}),
    ("adapter", {"adapter": Adapter(rank=8, base_bits=4)}),
    ("value_loss_weight", {"value_loss_weight": 0.0}),
    ("rollout_batch", {"rollout_batch": 36, "minibatch": 32}),
    ("minibatch", {"estimator": "grpo", "samples_per_prompt": 64, "rollout_batch": 512}),
]


@pytest.mark.parametrize(("field", "stage"), PPO_REFUSED)
def test_what_verl_cannot_express_is_refused_by_name(field: str, stage: dict[str, Any]) -> None:
    with pytest.raises(SpecError) as caught:
        rendered_ppo(sharded(32), **stage)
    assert [problem.path for problem in caught.value.problems] == [f"pipeline.stage.{field}"]


LAYOUTS_REFUSED = [
    ("tensor", Layout(data=4, tensor=2, zero=ZeroStage.PARAMETERS, micro_batch=8)),
    ("pipeline", Layout(data=4, pipeline=2, zero=ZeroStage.PARAMETERS, micro_batch=8)),
    ("zero", sharded(32, zero=ZeroStage.OPTIMIZER)),
    ("zero", sharded(32, zero=ZeroStage.NONE)),
    ("recompute", sharded(32, recompute=Recompute.SELECTIVE)),
    ("offload_optimizer", sharded(32, offload_optimizer=True)),
    ("sequence_parallel", sharded(32, sequence_parallel=True)),
    ("expert", sharded(32, expert=2)),
    ("interleave", sharded(32, interleave=2)),
    ("accumulation", sharded(32, accumulation=3)),
]


@pytest.mark.parametrize(("field", "layout"), LAYOUTS_REFUSED)
def test_a_layout_that_verl_cannot_run_is_refused(field: str, layout: Layout) -> None:
    for run in (lambda: rendered_ppo(layout), lambda: rendered_sft(layout, global_batch=32)):
        with pytest.raises(SpecError) as caught:
            run()
        assert [problem.path for problem in caught.value.problems] == [f"layout.{field}"]


def test_micro_batches_that_do_not_fill_a_minibatch_are_refused() -> None:
    with pytest.raises(SpecError, match=r"layout.micro_batch: .*8 x 3"):
        rendered_ppo(sharded(32, micro_batch=3))
    with pytest.raises(SpecError, match=r"layout.micro_batch: .*8 x 3"):
        rendered_sft(sharded(64, micro_batch=3))


@pytest.mark.parametrize(("heads", "kv_heads", "works"), [(8, 4, True), (8, 2, True), (6, 6, False), (8, 3, False)])
def test_ulysses_divides_heads(heads: int, kv_heads: int, works: bool) -> None:
    shape: Architecture = replace(SHAPE, num_heads=heads, num_kv_heads=kv_heads, head_dim=8)
    layout = sharded(32, data=2, context=4)
    settings = {"architectures": {"policy": shape, "reward": shape}}
    if not works:
        with pytest.raises(SpecError, match=r"layout.context"):
            rendered_ppo(layout, settings)
        return
    run = rendered_ppo(layout, settings)
    sections = ("actor_rollout_ref.actor.fsdp_config", "actor_rollout_ref.ref.fsdp_config", "critic.fsdp")
    assert [at(run, section)["ulysses_sequence_parallel_size"] for section in sections] == [4, 4, 4]


def test_hybrid_sharding_gives_the_size_of_a_copy() -> None:
    run = rendered_ppo(sharded(64, data=16, replicas=2), {"num_nodes": 2}, minibatch=64)
    assert at(run, "actor_rollout_ref.actor.fsdp_config.fsdp_size") == 8
    assert at(rendered_ppo(), "actor_rollout_ref.actor.fsdp_config.fsdp_size") == -1


def test_attention_other_than_flash_gets_padded_rows() -> None:
    for name, removes in (("flash_attention_2", True), ("sdpa", False), ("eager", False)):
        run = rendered_ppo(resources=StageResources(attention=name))
        for model in ("actor_rollout_ref.model", "critic.model"):
            assert at(run, f"{model}.override_config") == {"attn_implementation": name}
            assert at(run, f"{model}.use_remove_padding") is removes
    assert "override_config" not in at(rendered_sft(), "model")


@pytest.mark.parametrize(
    ("resources", "layout"),
    [
        (StageResources(attention="flex_attention"), sharded(64)),
        (StageResources(attention="sdpa"), sharded(64, data=4, context=2)),
        (StageResources(compile=True), sharded(64)),
    ],
)
def test_attention_that_does_not_work_there_is_refused(resources: StageResources, layout: Layout) -> None:
    with pytest.raises(SpecError, match=r"pipeline.stage.resources"):
        rendered_sft(layout, resources=resources)


def test_one_accelerator_needs_no_sharding() -> None:
    run = rendered_sft(sharded(64, data=1, zero=ZeroStage.NONE))
    assert at(run, "engine.strategy") == "fsdp2"


@pytest.mark.parametrize("recompute", [Recompute.NONE, Recompute.FULL])
def test_recomputation_is_on_for_policy_and_value_model(recompute: Recompute) -> None:
    run = rendered_ppo(sharded(32, recompute=recompute))
    on = recompute is Recompute.FULL
    assert at(run, "actor_rollout_ref.model.enable_gradient_checkpointing") is on
    assert at(run, "critic.model.enable_gradient_checkpointing") is on


def test_offload_to_the_host_is_of_parameters_and_optimizer_together() -> None:
    run = rendered_ppo(sharded(32, offload_parameters=True, offload_optimizer=True))
    assert at(run, "critic.fsdp.offload_policy") is True
    assert at(rendered_ppo(), "critic.fsdp.offload_policy") is False


def test_roles_that_wait_on_the_host() -> None:
    run = rendered_ppo(settings={"placement": RlPlacement(arrangement="offloaded", generator_tensor=2)})
    for section in ("actor_rollout_ref.actor.fsdp_config", "critic.fsdp"):
        assert at(run, section)["param_offload"] is True
        assert at(run, section)["optimizer_offload"] is True
    assert at(run, "actor_rollout_ref.ref.fsdp_config.param_offload") is True
    assert at(run, "actor_rollout_ref.rollout.tensor_model_parallel_size") == 2
    assert at(run, "reward.reward_model.rollout.tensor_model_parallel_size") == 2
    assert at(rendered_ppo(), "critic.fsdp.param_offload") is False


TOGETHER = tuple(RolesTogether(roles=(name,), num_accelerators=4, layout=Layout()) for name in ("policy", "value"))


@pytest.mark.parametrize(
    "placement",
    [RlPlacement(arrangement="split"), RlPlacement(arrangement="async"), RlPlacement(groups=TOGETHER)],
)
def test_roles_apart_are_refused(placement: RlPlacement) -> None:
    with pytest.raises(SpecError, match=r"pipeline.stage.resources: .*all roles on all accelerators"):
        rendered_ppo(settings={"placement": placement})


def test_processors_and_idle_accelerators_are_refused() -> None:
    with pytest.raises(SpecError, match="needs accelerators"):
        rendered_sft(settings={"accelerator": "cpu"})
    with pytest.raises(SpecError, match="the machines 4"):
        rendered_sft(settings={"per_node": 4})


SFT_VALUES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"learning_rate": 2e-5}, {"optim.lr": 2e-5}),
    ({"gradient_clip": 0.5}, {"optim.clip_grad": 0.5}),
    ({"seq_len": 2048}, {"data.max_length": 2048, "data.truncation": "right"}),
    ({}, {"data.train_batch_size": 64, "data.micro_batch_size_per_gpu": 4, "data.use_dynamic_bsz": False}),
    ({}, {"model.path": "/models/init", "data.train_files": "/job/data/data.parquet", "data.val_files": None}),
    ({}, {"engine.dtype": "bfloat16", "engine.model_dtype": "fp32", "engine.seed": 7}),
    ({"checkpoint_every": 4}, {"trainer.save_freq": 4, "trainer.max_ckpt_to_keep": 3}),
    ({}, {"trainer.total_training_steps": 10, "trainer.total_epochs": 1, "trainer.test_freq": -1}),
]


@pytest.mark.parametrize(("stage", "wanted"), SFT_VALUES, ids=lambda item: " ".join(item) or "always")
def test_sft_fields_have_verls_names(stage: dict[str, Any], wanted: dict[str, Any]) -> None:
    run = rendered_sft(**stage)
    assert {key: at(run, key) for key in wanted} == wanted


@pytest.mark.parametrize(("keep_last", "kept"), [(1, 3), (2, 3), (5, 6)])
def test_two_checkpoints_are_whole_while_a_next_one_is_written(keep_last: int, kept: int) -> None:
    assert at(rendered_sft(settings={"keep_last": keep_last}), "trainer.max_ckpt_to_keep") == kept


@pytest.mark.parametrize(("field", "stage"), [("dropout", {"dropout": 0.1}), ("packing", {"packing": True})])
def test_what_verls_sft_cannot_express_is_refused(field: str, stage: dict[str, Any]) -> None:
    with pytest.raises(SpecError) as caught:
        rendered_sft(**stage)
    assert [problem.path for problem in caught.value.problems] == [f"pipeline.stage.{field}"]


def test_everything_that_is_wrong_is_told_at_once() -> None:
    with pytest.raises(SpecError) as caught:
        rendered_ppo(sharded(32, zero=ZeroStage.OPTIMIZER), kl_target=6.0, dtype="fp32")
    assert {problem.path for problem in caught.value.problems} == {
        "layout.zero",
        "pipeline.stage.kl_target",
        "pipeline.stage.dtype",
    }


@pytest.mark.parametrize("run", [rendered_ppo(), rendered_sft()], ids=["ppo", "sft"])
def test_every_field_is_told_of_and_every_key_that_is_named_exists(run: RenderedRun) -> None:
    stage = ppo() if "ppo.yaml" in run.files else sft()
    assert [row.field for row in run.mapping] == list(fields_of(stage))
    for row in run.mapping:
        for target in row.to:
            if ": " in target:
                at(run, target.split(": ")[1])


def test_a_resume_names_the_checkpoint_and_writes_its_own_log() -> None:
    run = rendered_ppo(settings={"resume_from": "/job/checkpoints/global_step_40"})
    assert at(run, "trainer.resume_mode") == "resume_path"
    assert at(run, "trainer.resume_from_path") == "/job/checkpoints/global_step_40"
    assert run.environment["VERL_FILE_LOGGER_PATH"] == "/job/metrics/from_40.jsonl"
    fresh = rendered_ppo()
    assert at(fresh, "trainer.resume_mode") == "auto"
    assert fresh.environment["VERL_FILE_LOGGER_PATH"] == "/job/metrics/from_0.jsonl"
    assert "metrics/.keep" in fresh.files


def test_one_node_starts_verls_own_command() -> None:
    assert rendered_ppo().command[:7] == (
        "python", "-m", "verl.trainer.main_ppo", "--config-dir", ".", "--config-name", "ppo",
    )  # fmt: skip
    command = rendered_sft().command
    assert command[:6] == ("python", "-m", "torch.distributed.run", "--nproc-per-node", "8", "--standalone")
    assert command[6:8] == ("-m", "verl.trainer.sft_trainer")


def test_several_nodes_join_one_ray_cluster_or_one_process_group() -> None:
    run = rendered_ppo(sharded(64, data=16), {"num_nodes": 2}, minibatch=64)
    assert run.command[:4] == ("bash", "on_ray.sh", "python", "-m")
    script = run.files["on_ray.sh"]
    assert '.get("GPU", 0)) < 16:' in script
    assert "--num-gpus=8" in script
    assert at(run, "trainer.nnodes") == 2
    assert at(run, "trainer.n_gpus_per_node") == 8
    command = rendered_sft(sharded(64, data=16), {"num_nodes": 2}).command
    assert command[5:9] == ("--nnodes", "2", "--node-rank", "${NODE_RANK}")


def test_in_a_cluster_that_is_there_one_driver_names_its_python() -> None:
    run = rendered_ppo(sharded(64, data=16), {"num_nodes": 2, "on_ray": True}, minibatch=64)
    assert run.command[:3] == ("python", "-m", "verl.trainer.main_ppo")
    assert run.command[-1] == "ray_kwargs.ray_init.runtime_env.py_executable='${ENGINE_PYTHON}'"
    assert "on_ray.sh" not in run.files
    assert at(run, "trainer.nnodes") == 2


def test_the_reward_model_has_room_for_its_template_within_its_context() -> None:
    tight = {"policy": SHAPE, "reward": replace(SHAPE, max_position_embeddings=1040)}
    assert at(rendered_ppo(settings={"architectures": tight}), "reward.reward_model.rollout.response_length") == 16
    assert at(rendered_ppo(), "reward.reward_model.rollout.response_length") == 128


def test_the_engine_is_registered() -> None:
    engine = handover_engine("verl")
    assert engine.version == "0.9.1"
    assert engine.kinds == ("sft", "ppo")
    assert engine.data_suffix == ".parquet"
