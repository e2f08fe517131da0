"""A stage as OpenRLHF's command line: every field is seen, what cannot be said is refused by name."""

import json
import math
from dataclasses import fields, replace

import pytest
from handover_case import other_values
from openrlhf_case import (
    ACCEPTED,
    ASYNC,
    DPO,
    GRPO,
    LAYOUT,
    PATHS,
    POLICY_4,
    PPO,
    PREFERENCE_MODEL,
    REINFORCE,
    RING,
    RLOO,
    SFT,
    SPLIT,
    handover,
    together,
)

from charter.engines.common.request import RlPlacement, RolesTogether
from charter.engines.openrlhf.mapping import render_openrlhf
from charter.errors import SpecError
from charter.spec.layout import Adapter, Layout, Recompute, ZeroStage
from charter.spec.rewards import Environment, Mismatch, Reward
from charter.spec.stage_base import Guard, StageResources


def options(item):
    return {
        option: values[0] if len(values) == 1 else values
        for option, values in json.loads(render_openrlhf(item).files["openrlhf.json"])["options"].items()
    }


def refused(item):
    with pytest.raises(SpecError) as found:
        render_openrlhf(item)
    return {problem.path.removeprefix("pipeline.stage."): problem.message for problem in found.value.problems}


OTHER = {
    "rewards": ((Reward(name="right", kind="function", call="charter:exact"),),),
    "mixture": ("normalise_then_sum",),
    "ratio": ("sequence", "product"),
    "surrogate": ("cispo",),
    "scale_advantages": ("none", "batch"),
    "equal_groups": ("drop", "refill"),
    "kl_in": ("loss", "reward"),
    "mismatch": (Mismatch(),),
    "environment": (Environment(tools={"calc": "charter:calculator"}),),
    "schedule": ("constant", "linear", "cosine"),
    "dtype": ("fp16", "fp32"),
    "optimizer": ("adamw_8bit",),
    "guard": (Guard(),),
    "adapter": (Adapter(rank=4), Adapter(rank=4, base_bits=4)),
    "pooling": ("mean",),
    "context": ("last_turn",),
    "estimator": ("reinforce", "rloo", "grpo"),
    "reward_from": ("judge",),
    "kl_estimator": ("k3",),
    "loss": ("ipo", "kto", "simpo", "orpo"),
    "loss_aggregation": ("sequence",),
    "generator": ("vllm",),
    "ptx_data": (("more",),),
    "data": (("other",),),
    "prompts": (("other",),),
}
LENGTHS = ("steps", "epochs", "episodes")
"""Fields that decide how many steps are planned."""
PLACES = ("init", "policy", "reward", "data", "prompts")
"""Roles whose names in the file are replaced by paths before an engine sees them."""


@pytest.mark.parametrize("stage", [SFT, PREFERENCE_MODEL, DPO, PPO, RLOO, GRPO], ids=lambda item: item.kind)
def test_no_field_of_the_file_is_dropped(stage):
    before = render_openrlhf(handover(stage))
    for item in fields(stage):
        field = f"stage.{item.name}"
        row = next(row for row in before.mapping if row.field == field)
        if row.how == "charter" or item.name in PLACES:
            continue
        for value in other_values(item.name, getattr(stage, item.name), OTHER):
            target = 101 if item.name in LENGTHS else 100
            try:
                after = render_openrlhf(handover(replace(stage, **{item.name: value}), target_steps=target))
            except SpecError:
                continue
            assert after.command != before.command, (field, value)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"pipeline": 2}, "layout.pipeline"),
        ({"interleave": 2}, "layout.interleave"),
        ({"expert": 2}, "layout.expert"),
        ({"sequence_parallel": True}, "layout.sequence_parallel"),
        ({"replicas": 2}, "layout.replicas"),
        ({"offload_parameters": True}, "layout.offload_parameters"),
        ({"recompute": Recompute.SELECTIVE}, "layout.recompute"),
        ({"accumulation": 3}, "layout.accumulation"),
        ({"data": 4}, "layout.data"),
        ({"zero": ZeroStage.NONE, "offload_optimizer": True}, "layout.offload_optimizer"),
    ],
)
def test_layouts_that_it_does_not_execute_are_refused(changes, named):
    assert named in refused(handover(SFT, replace(LAYOUT, **changes)))


@pytest.mark.parametrize(
    ("changes", "option", "value"),
    [
        ({"data": 4, "context": 2, "accumulation": 8}, "--ds.ring_attn_size", "2"),
        ({"data": 4, "tensor": 2, "accumulation": 8}, "--ds.tensor_parallel_size", "2"),
        ({"zero": ZeroStage.OPTIMIZER}, "--ds.zero_stage", "1"),
        ({"offload_optimizer": True}, "--ds.adam_offload", []),
        ({"micro_batch": 8, "accumulation": 2}, "--train.micro_batch_size", "8"),
        ({"recompute": Recompute.FULL}, "--model.gradient_checkpointing_enable", []),
    ],
)
def test_layouts_become_its_options(changes, option, value):
    assert options(handover(SFT, replace(LAYOUT, **changes)))[option] == value


def test_pairs_are_counted_where_the_plan_counts_sequences():
    assert options(handover(DPO))["--train.micro_batch_size"] == "2"
    assert "layout.micro_batch" in refused(handover(DPO, replace(LAYOUT, micro_batch=3)))


def test_attention_that_cannot_pack_has_no_packing_and_no_ring():
    sdpa = StageResources(attention="sdpa")
    assert "--ds.packing_samples" in options(handover(SFT))
    assert "--ds.packing_samples" not in options(handover(replace(SFT, resources=sdpa)))
    assert "layout.context" in refused(handover(replace(SFT, resources=sdpa), RING))
    assert "resources" in refused(handover(replace(SFT, resources=StageResources(compile=True))))


@pytest.mark.parametrize("warmup", [0, 1, 7, 33, 99])
@pytest.mark.parametrize("steps", [100, 101, 49_999])
def test_the_warm_up_is_the_number_of_steps_that_the_file_says(warmup, steps):
    ratio = float(options(handover(replace(SFT, warmup_steps=warmup), target_steps=steps))["--lr_warmup_ratio"])
    assert math.ceil(steps * ratio) == warmup, "utils/deepspeed/deepspeed.py: ceil(scheduler_steps * ratio)"


def test_the_warm_up_of_rollouts_is_counted_in_updates():
    item = handover(replace(PPO, warmup_steps=5, ppo_epochs=2))
    updates = 100 * (512 // 128) * 2
    for prefix in ("actor", "critic"):
        ratio = float(options(item)[f"--{prefix}.lr_warmup_ratio"])
        assert math.ceil(updates * ratio) == 5 * 8


def test_schedules_end_where_the_file_says_or_are_refused():
    assert options(handover(SFT))["--lr_scheduler"] == "cosine_with_min_lr"
    assert options(handover(SFT))["--min_lr_ratio"] == "0.1"
    assert options(handover(replace(SFT, schedule="constant")))["--lr_scheduler"] == "constant_with_warmup"
    assert "min_learning_rate_ratio" in refused(handover(replace(SFT, schedule="linear")))
    linear = options(handover(replace(SFT, schedule="linear", min_learning_rate_ratio=0.0)))
    assert linear["--lr_scheduler"] == "linear"
    assert "--min_lr_ratio" not in linear


def test_adapters_that_would_be_lost_are_refused():
    lora = Adapter(rank=8, alpha=16, base_bits=4)
    two = replace(LAYOUT, zero=ZeroStage.GRADIENTS)
    found = options(handover(replace(SFT, adapter=lora), two))
    assert (found["--ds.lora.rank"], found["--ds.lora.alpha"], found["--ds.load_in_4bit"]) == ("8", "16", [])
    assert "--ds.load_in_4bit" not in options(handover(replace(SFT, adapter=Adapter(rank=8)), two))
    assert "adapter" in refused(handover(replace(SFT, adapter=lora)))
    assert "adapter" in refused(handover(replace(PREFERENCE_MODEL, adapter=lora), two))
    assert "adapter" in refused(handover(replace(PPO, adapter=lora), two))


def test_one_pass_over_a_file_with_every_row_as_often_as_it_is_trained():
    found = options(handover(replace(SFT, steps=None, epochs=2.5), target_steps=10))
    assert (found["--data.max_samples"], found["--train.max_epochs"]) == ("1280", "1")
    found = options(handover(GRPO))
    assert found["--data.max_samples"] == str(51_200 // 8)
    assert found["--train.num_episodes"] == "1"
    assert found["--rollout.batch_size"] == str(512 // 8)


def test_checkpoints_are_kept_and_loaded_only_when_there_is_one():
    found = options(handover(SFT, keep_last=4))
    assert found["--ckpt.max_num"] == "5"
    assert "--ckpt.load_enable" not in found
    resumed = handover(SFT, paths=replace(PATHS, resume_from="/stage/checkpoints"))
    assert "--ckpt.load_enable" in options(resumed)


def test_estimators_are_told_by_its_names_and_their_kl_where_ours_is():
    assert options(handover(PPO))["--algo.advantage.lambd"] == "0.95"
    reinforce = options(handover(REINFORCE))
    assert (reinforce["--algo.advantage.estimator"], reinforce["--algo.advantage.lambd"]) == ("gae", "1.0")
    assert "--algo.kl.use_loss" not in options(handover(RLOO))
    grpo = options(handover(GRPO))
    assert grpo["--algo.advantage.estimator"] == "group_norm"
    assert (grpo["--algo.kl.use_loss"], grpo["--algo.kl.estimator"]) == ([], "k3")
    assert not [option for option in grpo if option.startswith("--critic.")]


@pytest.mark.parametrize(
    ("stage", "field"),
    [
        (replace(PPO, kl_target=6.0), "kl_target"),
        (replace(PPO, value_loss_weight=0.0), "value_loss_weight"),
        (replace(PPO, whiten_advantages=False), "whiten_advantages"),
        (replace(RLOO, whiten_advantages=True), "whiten_advantages"),
        (replace(GRPO, reward_clip=5.0), "reward_clip"),
        (replace(PPO, missing_end_penalty=1.0), "missing_end_penalty"),
        (replace(PPO, stop_update_kl=0.1), "stop_update_kl"),
        (replace(PPO, bootstrap_truncated=True), "bootstrap_truncated"),
        (replace(PPO, reward_from="judge"), "reward_from"),
        (replace(PPO, min_new_tokens=0), "min_new_tokens"),
        (replace(PPO, min_new_tokens=2), "min_new_tokens"),
        (replace(PPO, checkpoint_epochs=True), "checkpoint_epochs"),
        (replace(PPO, ptx_weight=1.0), "ptx_weight"),
        (replace(PPO, loss_aggregation="sequence"), "loss_aggregation"),
        (replace(GRPO, loss_aggregation="sequence"), "loss_aggregation"),
        (replace(RLOO, loss_aggregation="sequence", entropy_weight=0.1), "loss_aggregation"),
        (replace(PPO, value_warmup_rollouts=2, warmup_steps=1), "value_warmup_rollouts"),
        (replace(PPO, value_warmup_rollouts=2, schedule="cosine"), "value_warmup_rollouts"),
        (replace(RLOO, discount=0.9), "discount"),
        (replace(PPO, rollout_batch=500), "rollout_batch"),
    ],
)
def test_what_its_ppo_cannot_express_is_refused_by_name(stage, field):
    assert field in refused(handover(stage))


def test_the_policy_waits_for_the_value_model_in_as_many_rollouts():
    # trainer/ppo_trainer.py: the policy learns in rollout r, from 0, where r > freezing_steps.
    assert options(handover(PPO))["--critic.freezing_steps"] == "-1"
    assert options(handover(replace(PPO, value_warmup_rollouts=3)))["--critic.freezing_steps"] == "2"


@pytest.mark.parametrize("weight", [0.5, 1.0, 0.125])
def test_a_weighted_value_loss_makes_the_same_update(weight):
    # models/loss.py ValueLoss: 0.5 x the larger squared error, which is clipped_value_loss before its weight.
    found = options(handover(replace(PPO, value_loss_weight=weight, gradient_clip=1.5)))
    assert float(found["--critic.max_norm"]) == 1.5 / weight
    assert float(found["--critic.adam.eps"]) == 1e-8 / weight
    assert (found["--actor.max_norm"], found["--actor.adam.eps"]) == ("1.5", "1e-08")


def test_rewards_are_held_in_the_range_of_the_file_and_in_none_without_one():
    assert options(handover(replace(PPO, reward_clip=5.0)))["--reward.clip_range"] == ["-5.0", "5.0"]
    assert options(handover(PPO))["--reward.clip_range"] == ["-1000000000.0", "1000000000.0"]


def test_weights_between_generator_and_trainer_are_held_from_0():
    found = options(handover(replace(PPO, mismatch_clip=2.0)))
    assert found["--algo.advantage.is_correction_threshold"] == ["0.0", "2.0"]
    assert found["--algo.advantage.is_correction_mode"] == "clip"
    assert options(handover(PPO))["--algo.advantage.is_correction_level"] == "off"


def test_roles_get_the_accelerators_of_their_group():
    found = options(handover(PPO, POLICY_4, placement=SPLIT))
    sizes = {name: found[f"--{name}.num_gpus_per_node"] for name in ("actor", "ref", "critic", "reward")}
    assert sizes == {"actor": "4", "ref": "4", "critic": "2", "reward": "2"}
    assert {"--train.colocate_actor_ref", "--train.colocate_critic_reward"} <= set(found)
    assert "--train.colocate_all" not in found
    assert (found["--vllm.num_engines"], found["--vllm.tensor_parallel_size"]) == ("1", "2")
    assert found["--rollout.micro_batch_size"] == "4"


def test_a_generator_beside_one_group_of_trainers_has_its_own():
    # cli/train_ppo_ray.py: `colocate_all` of synchronous training means the generator's accelerators too.
    found = options(ACCEPTED["grpo, generator apart"])
    assert "--train.colocate_all" not in found
    assert (found["--actor.num_gpus_per_node"], found["--vllm.num_engines"]) == ("4", "4")


def test_groups_of_several_nodes_are_whole_nodes():
    wide = RlPlacement(
        arrangement="split",
        groups=(
            together("policy", "reference", size=16),
            together("value", "reward", size=8),
            RolesTogether(roles=("generate",), num_accelerators=8, layout=Layout()),
        ),
    )
    found = options(handover(PPO, replace(LAYOUT, data=16, accumulation=2), num_nodes=4, placement=wide))
    assert (found["--actor.num_nodes"], found["--actor.num_gpus_per_node"]) == ("2", "8")
    assert (found["--critic.num_nodes"], found["--vllm.num_engines"]) == ("1", "8")


def test_all_roles_together_share_with_a_generator_that_sleeps():
    found = options(handover(PPO))
    assert {"--train.colocate_all", "--vllm.enable_sleep"} <= set(found)
    assert "--ds.enable_sleep" not in found
    assert (found["--vllm.num_engines"], found["--vllm.gpu_memory_utilization"]) == ("8", "0.5")
    waiting = options(handover(PPO, placement=RlPlacement(arrangement="offloaded")))
    assert "--ds.enable_sleep" in waiting


def test_async_training_has_all_but_the_generator_together():
    found = options(handover(replace(PPO, asynchrony="one_step_off"), POLICY_4, placement=ASYNC))
    assert {"--train.colocate_all", "--train.async_enable"} <= set(found)
    assert "--vllm.enable_sleep" not in found
    assert found["--vllm.num_engines"] == "4"
    assert "one_step_off" in refused(handover(PPO, POLICY_4, placement=ASYNC))["engine"]


def test_the_age_of_answers_in_flight_is_the_size_of_the_queue():
    flying = replace(PPO, asynchrony="in_flight", max_age=3)
    found = options(handover(flying, POLICY_4, placement=ASYNC))
    assert found["--train.async_queue_size"] == "3"
    assert "--train.partial_rollout_enable" in found
    assert "--train.partial_rollout_enable" not in options(
        handover(replace(PPO, asynchrony="one_step_off"), POLICY_4, placement=ASYNC)
    )
    assert "accelerators of its own" in refused(handover(flying, POLICY_4))["asynchrony"]


def _beside(*groups, arrangement="split", tensor=1):
    generator = RolesTogether(roles=("generate",), num_accelerators=2, layout=Layout())
    return RlPlacement(arrangement=arrangement, groups=(*groups, generator), generator_tensor=tensor)


@pytest.mark.parametrize(
    ("placement", "said"),
    [
        (_beside(together("policy", "value", size=4), together("reference", "reward", size=2)), "same accelerators"),
        (_beside(together("policy", "value", "reference", "reward", size=4)), "same accelerators"),
        (_beside(together("policy", "reference", size=4), tensor=3), "divide 2 accelerators"),
        (
            _beside(
                together("policy", "reference", size=4),
                together("value", "reward", size=2, zero=ZeroStage.OPTIMIZER),
            ),
            "zero 1 beside 3",
        ),
        (_beside(together("policy", "reference", size=4), together("reward", size=2, context=2)), "context 2 beside 1"),
        (RlPlacement(arrangement="async"), "without accelerators for the generator"),
    ],
)
def test_placements_that_it_cannot_make_are_refused(placement, said):
    assert said in refused(handover(PPO, POLICY_4, placement=placement))["engine"]


def test_scored_models_are_sharded_only_with_the_trained_ones():
    plain = replace(POLICY_4, zero=ZeroStage.OPTIMIZER)
    made = RlPlacement(
        arrangement="split",
        groups=(
            together("policy", "reference", size=4, layout=plain),
            together("reward", size=2, zero=ZeroStage.PARAMETERS),
            RolesTogether(roles=("generate",), num_accelerators=2, layout=Layout()),
        ),
    )
    assert "ZeRO 1" in refused(handover(GRPO, plain, placement=made))["engine"]


def test_roles_that_are_trained_share_the_smallest_micro_batch():
    made = RlPlacement(
        arrangement="split",
        groups=(
            together("policy", "reference", size=4, layout=POLICY_4),
            together("value", "reward", size=2, micro_batch=2),
            RolesTogether(roles=("generate",), num_accelerators=2, layout=Layout()),
        ),
    )
    assert options(handover(PPO, POLICY_4, placement=made))["--train.micro_batch_size"] == "2"


def test_one_process_per_accelerator_or_one_that_drives_ray():
    assert render_openrlhf(ACCEPTED["sft"]).command[:7] == (
        *("python", "-m", "torch.distributed.run"),
        *("--nnodes", "1", "--nproc-per-node", "8"),
    )
    two = render_openrlhf(ACCEPTED["sft, two nodes"]).command
    assert two[two.index("--node-rank") + 1] == "${NODE_RANK}"
    assert render_openrlhf(ACCEPTED["ppo"]).command[:3] == ("python", "-m", "openrlhf.cli.train_ppo_ray")
    assert render_openrlhf(ACCEPTED["ppo, offloaded on two nodes"]).command[:3] == ("bash", "on_ray.sh", "python")


def test_what_holds_after_a_resume_is_said_per_kind():
    assert render_openrlhf(ACCEPTED["dpo"]).resume.guarantee == "same_data_order"
    assert render_openrlhf(ACCEPTED["grpo"]).resume.guarantee == "best_effort"


def test_a_prompt_and_its_answer_have_room_and_are_scored_evenly():
    found = options(handover(replace(PPO, max_prompt_tokens=300, max_new_tokens=200)))
    assert (found["--data.max_len"], found["--rollout.max_new_tokens"]) == ("500", "200")
    # 512 answers on 8 ranks are 64 of each: 48 do not divide them, 32 do.
    wide = replace(LAYOUT, micro_batch=48, accumulation=1)
    found = options(handover(replace(PPO, minibatch=384, rollout_batch=3072), wide))
    assert found["--rollout.micro_batch_size"] == "48"
    wide = replace(LAYOUT, micro_batch=16, accumulation=1)
    assert options(handover(replace(PPO, rollout_batch=640, minibatch=128), wide))["--rollout.micro_batch_size"] == "16"
    assert options(handover(replace(PPO, rollout_batch=384, minibatch=128), wide))["--rollout.micro_batch_size"] == "16"
    assert options(handover(replace(PPO, rollout_batch=192, minibatch=128), wide))["--rollout.micro_batch_size"] == "12"


def test_every_group_of_ranks_gets_as_many_answers():
    three = together("value", "reward", size=3, layout=replace(LAYOUT, data=3))
    made = RlPlacement(
        arrangement="split",
        groups=(
            together("policy", "reference", size=4, layout=POLICY_4),
            three,
            RolesTogether(roles=("generate",), num_accelerators=1, layout=Layout()),
        ),
    )
    assert "rollout_batch" in refused(handover(PPO, POLICY_4, placement=made))


def test_ipo_is_its_switch_and_takes_labels_for_certain():
    ipo = options(handover(replace(DPO, loss="ipo")))
    assert (ipo["--model.ipo_enable"], ipo["--model.beta"]) == ([], "0.1")
    assert "--model.label_smoothing" not in ipo
    assert "--model.ipo_enable" not in options(handover(DPO))
    assert "certain" in refused(handover(replace(DPO, loss="ipo", label_smoothing=0.1)))["label_smoothing"]


def test_what_no_field_says_is_said_all_the_same():
    sft, model, dpo = (options(handover(stage)) for stage in (SFT, PREFERENCE_MODEL, DPO))
    assert {"--data.multiturn", "--data.apply_chat_template"} <= set(sft), "every assistant turn counts"
    assert sft["--data.input_key"] == "messages"
    assert (model["--model.loss_type"], model["--model.compute_fp32_loss_enable"]) == ("sigmoid", [])
    assert model["--ds.value_head_prefix"] == "score"
    assert dpo["--ref.model_name_or_path"] == dpo["--model.model_name_or_path"] == "/models/init"
    for found in (model, dpo):
        assert found["--data.prompt_key"] == "prompt"
