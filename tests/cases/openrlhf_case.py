"""Stages for OpenRLHF: on 8 accelerators unless told otherwise, every option within what it can do."""

from dataclasses import replace

from charter.engines.common.request import Handover, HandoverPaths, RlPlacement, RolesTogether
from charter.spec.layout import Adapter, Layout, Recompute, ZeroStage
from charter.spec.ppo_stage import PpoStage
from charter.spec.rewards import Reward
from charter.spec.stage import DpoStage, PreferenceModelStage, SftStage
from charter.spec.stage_base import StageResources

LAYOUT = Layout(data=8, zero=ZeroStage.PARAMETERS, micro_batch=4, accumulation=4, recompute=Recompute.FULL)
PATHS = HandoverPaths(
    work="/stage",
    models={"init": "/models/init", "policy": "/models/policy", "reward": "/models/reward"},
    data={"data": "/data/data.jsonl", "prompts": "/data/prompts.jsonl"},
)
SFT = SftStage(init="base", data=("chat",), global_batch=128, steps=100, learning_rate=2e-5)
PREFERENCE_MODEL = PreferenceModelStage(init="base", data=("pairs",), global_batch=64, epochs=1)
DPO = DpoStage(init="base", data=("pairs",), global_batch=64, epochs=1.5)
PPO = PpoStage(
    policy="sft", reward="pm", prompts=("p",), episodes=51_200, rollout_batch=512, minibatch=128, min_new_tokens=1
)
GRPO = replace(PPO, estimator="grpo", samples_per_prompt=8)
RLOO = replace(PPO, estimator="rloo", samples_per_prompt=4, whiten_advantages=False)
REINFORCE = replace(PPO, estimator="reinforce", rollout_batch=128)


def handover(stage, layout=LAYOUT, **changes):
    """The stage on one node of 8, under the layout."""
    given = {
        "engine": "openrlhf",
        "run": "run",
        "name": "stage",
        "stage": stage,
        "seed": 7,
        "layout": layout,
        "num_nodes": 1,
        "per_node": 8,
        "accelerator": "H100",
        "target_steps": 100,
        "architectures": {},
        "paths": PATHS,
    }
    return Handover(**(given | changes))


def together(*roles, size, layout=None, **changes):
    """Roles on accelerators of their own."""
    data = size // (changes.get("context", 1) * changes.get("tensor", 1))
    made = layout or replace(LAYOUT, data=data, accumulation=max(1, 32 // data), **changes)
    return RolesTogether(roles=roles, num_accelerators=size, layout=made)


POLICY_4 = replace(LAYOUT, data=4, accumulation=8)
SPLIT = RlPlacement(
    arrangement="split",
    groups=(
        together("policy", "reference", size=4),
        together("value", "reward", size=2),
        RolesTogether(roles=("generate",), num_accelerators=2, layout=Layout(data=1, tensor=2)),
    ),
    generator_tensor=2,
)
GENERATOR_APART = RlPlacement(
    arrangement="split",
    groups=(
        together("policy", size=4),
        RolesTogether(roles=("generate",), num_accelerators=4, layout=Layout(data=4)),
    ),
)
ASYNC = RlPlacement(
    arrangement="async",
    groups=(
        together("policy", "value", "reward", "reference", size=4),
        RolesTogether(roles=("generate",), num_accelerators=4, layout=Layout(data=4)),
    ),
)
RING = Layout(data=4, context=2, zero=ZeroStage.GRADIENTS, micro_batch=4, accumulation=8, offload_optimizer=True)
SDPA = StageResources(attention="sdpa")

RIGHT = Reward(name="right", kind="function", call="charter:number")
SHORT = Reward(name="short", kind="function", call="charter:overlong", arguments={"longest": 512, "cache": 128})
ACCEPTED = {
    "sft": handover(SFT),
    "sft, two nodes": handover(SFT, replace(LAYOUT, data=16, accumulation=2), num_nodes=2),
    "sft, ring and offload": handover(SFT, RING),
    "sft, tensor": handover(SFT, replace(LAYOUT, data=4, tensor=2, accumulation=8, zero=ZeroStage.OPTIMIZER)),
    "sft, sdpa": handover(replace(SFT, resources=SDPA, schedule="linear", min_learning_rate_ratio=0.0)),
    "sft, lora": handover(replace(SFT, adapter=Adapter(rank=8)), replace(LAYOUT, zero=ZeroStage.GRADIENTS)),
    "sft, qlora": handover(
        replace(SFT, adapter=Adapter(rank=8, base_bits=4)),
        replace(LAYOUT, zero=ZeroStage.NONE, recompute=Recompute.NONE),
    ),
    "sft, resumed": handover(SFT, paths=replace(PATHS, resume_from="/stage/checkpoints")),
    "sft, fp16 and warm-up": handover(replace(SFT, dtype="fp16", warmup_steps=7, schedule="constant")),
    "preference model": handover(PREFERENCE_MODEL),
    "preference model, margin": handover(replace(PREFERENCE_MODEL, use_margin=True, shuffle_labels=True)),
    "dpo": handover(DPO),
    "dpo, ipo": handover(replace(DPO, loss="ipo")),
    "dpo, smoothed": handover(replace(DPO, label_smoothing=0.1, beta=0.3)),
    "ppo": handover(PPO),
    "grpo, rewards": handover(
        replace(GRPO, reward=None, rewards=(RIGHT, SHORT), clip_ratio_high=0.28, dual_clip=3.0, scale_advantages="none")
    ),
    "ppo, everything": handover(
        replace(
            PPO,
            reward_clip=5.0,
            mismatch_clip=2.0,
            entropy_weight=0.01,
            value_warmup_rollouts=3,
            ppo_epochs=2,
            kl_estimator="k3",
            seq_len=9,
        )
    ),
    "ppo, split": handover(PPO, POLICY_4, placement=SPLIT),
    "ppo, async": handover(replace(PPO, asynchrony="one_step_off"), POLICY_4, placement=ASYNC),
    "ppo, in flight": handover(replace(PPO, asynchrony="in_flight", max_age=3), POLICY_4, placement=ASYNC),
    "ppo, offloaded on two nodes": handover(
        PPO,
        replace(LAYOUT, data=16, accumulation=2),
        num_nodes=2,
        placement=RlPlacement(arrangement="offloaded", generator_tensor=4),
    ),
    "reinforce": handover(REINFORCE),
    "rloo": handover(RLOO),
    "rloo, by sequences": handover(replace(RLOO, loss_aggregation="sequence")),
    "grpo": handover(GRPO),
    "grpo, generator apart": handover(
        replace(GRPO, reward=None, rewards=(RIGHT,), kl_coefficient=0.0), POLICY_4, placement=GENERATOR_APART
    ),
}
"""Name -> what OpenRLHF must accept."""
