"""One stage of every kind that each engine takes, on a plain layout: what the mapping tables are made from."""

from collections.abc import Mapping
from dataclasses import replace
from math import ceil
from typing import Any

from charter.catalog import models
from charter.engines import handover_engine, handover_engines
from charter.engines.common.request import Handover, HandoverPaths, RlPlacement, RolesTogether
from charter.spec.architecture import Architecture
from charter.spec.layout import Layout, ZeroStage
from charter.spec.ppo_stage import PpoStage
from charter.spec.rewards import Reward
from charter.spec.stage import AnyStage, DpoStage, PreferenceModelStage, PretrainStage, SftStage, references
from charter.spec.stage_base import DATA, MODEL

NAME = "stage"
ROWS = 12_864
PER_NODE = 8
SHAPE = models.get("Llama-3.1-8B").architecture
COMMON: Mapping[str, Any] = {
    "schedule": "constant", "global_batch": 64, "steps": 100, "learning_rate": 2e-5, "seq_len": 2048,
}  # fmt: skip
GROUPS: Mapping[str, Any] = {"estimator": "grpo", "samples_per_prompt": 4, "whiten_advantages": False}
PPO = PpoStage(
    policy="base", reward="pm", prompts=("prompts",), episodes=4096, rollout_batch=64, minibatch=64,
    kl_coefficient=0.02, generator="vllm",
)  # fmt: skip
STAGES: Mapping[str, AnyStage] = {
    "pretrain": PretrainStage(init="base", data=("chat",), **COMMON),
    "sft": SftStage(init="base", data=("chat",), **COMMON),
    "preference_model": PreferenceModelStage(init="base", data=("pairs",), **COMMON),
    "dpo": DpoStage(init="base", data=("pairs",), **COMMON),
    "ppo": PPO,
}
OWN: Mapping[tuple[str, str], Mapping[str, Any]] = {
    ("trl", "ppo"): GROUPS,
    ("nemo_rl", "ppo"): GROUPS,
    ("openrlhf", "ppo"): {"min_new_tokens": 1},
    ("prime_rl", "ppo"): {
        **GROUPS,
        "reward": None,
        "rewards": (Reward(name="right", kind="function", call="charter:number"),),
        "scale_advantages": "none",
        "kl_coefficient": 0.0,
        "asynchrony": "in_flight",
        "max_age": 2,
    },
    ("skyrl", "ppo"): {
        **GROUPS,
        "reward": None,
        "rewards": (Reward(name="right", kind="function", call="charter:number"),),
        "kl_coefficient": 0.0,
        "min_new_tokens": 1,
    },
}
"""What an engine needs otherwise than in `STAGES`."""
LEFT: Mapping[tuple[str, str], int] = {("nemo_rl", "ppo"): PER_NODE}
"""Accelerators beside those of the layout: a node for the reward model."""
GENERATING: Mapping[tuple[str, str], int] = {("prime_rl", "ppo"): PER_NODE // 2}
"""Accelerators of a node that the generator has to itself."""
ACCELERATORS: Mapping[str, str] = {"maxtext": "TPU-v5e"}
"""Of engines that are not for GPUs."""
OPTIMIZER_ONLY = ("megatron",)
"""Engines that shard the optimizer alone (ZeRO-1); the others shard all (ZeRO-3)."""


def accepted_stage(engine: str, kind: str, **changes: Any) -> AnyStage:
    """A stage of a kind that the engine takes."""
    own = {**OWN.get((engine, kind), {}), **changes, "engine": engine}
    return replace(STAGES[kind], **own)


def pairs() -> list[tuple[str, str]]:
    """Every engine with every kind that it trains."""
    return [(engine.name, kind) for engine in handover_engines() for kind in engine.kinds]


def layout_of(stage: Any, *, data: int | None = None, micro: int = 2, **changes: Any) -> Layout:
    """Plain sharded data parallelism over one node, with the accumulation that the batch asks for."""
    data = data or PER_NODE - GENERATING.get((stage.engine, stage.kind), 0)
    batch = stage.minibatch if isinstance(stage, PpoStage) else stage.global_batch
    sequences = batch * stage.SEQUENCES_PER_ROW
    zero = ZeroStage.OPTIMIZER if stage.engine in OPTIMIZER_ONLY else ZeroStage.PARAMETERS
    layout = replace(Layout(data=data, zero=zero, micro_batch=micro), **changes)
    accumulation = changes.get("accumulation", max(1, sequences // (layout.data * layout.micro_batch)))
    return replace(layout, accumulation=accumulation)


def handover(
    stage: Any,
    layout: Layout | None = None,
    *,
    nodes: int = 1,
    per_node: int = PER_NODE,
    seed: int = 7,
    placement: RlPlacement | None = None,
    keep_last: int = 2,
    shape: Architecture = SHAPE,
) -> Handover:
    """The stage as `charter artifacts export` hands it over, with paths that follow the names in it."""
    engine = handover_engine(stage.engine)
    named = references(stage)
    roles = {role: names for role, names in named.items() if stage.REFERENCES[role] == MODEL}
    data = {role: names for role, names in named.items() if stage.REFERENCES[role] == DATA}
    holds_model = placement is None and not getattr(stage, "rewards", ())
    beside = LEFT.get((stage.engine, stage.kind), 0) if holds_model else 0
    return Handover(
        engine=stage.engine,
        run="run",
        name=NAME,
        stage=stage,
        seed=seed,
        layout=layout or layout_of(stage),
        num_nodes=nodes + beside // PER_NODE,
        per_node=per_node,
        accelerator=ACCELERATORS.get(stage.engine, "H100-SXM-80GB"),
        target_steps=target_of(stage),
        architectures=dict.fromkeys(roles, shape),
        paths=HandoverPaths(
            work=".",
            models={role: f"inputs/{'-'.join(names)}" for role, names in roles.items()},
            data={role: f"data/{'-'.join(names)}{engine.data_suffix}" for role, names in data.items()},
        ),
        rows=dict.fromkeys(data, ROWS),
        placement=(placement or placement_of(stage, layout or layout_of(stage)))
        if isinstance(stage, PpoStage)
        else None,
        keep_last=keep_last,
    )


def placement_of(stage: PpoStage, layout: Layout) -> RlPlacement:
    """All roles together, or the generator apart where the engine has it so."""
    generating = GENERATING.get((stage.engine, stage.kind))
    if generating is None:
        return RlPlacement()
    trainer = RolesTogether(roles=("policy",), num_accelerators=layout.num_accelerators, layout=layout)
    generator = RolesTogether(roles=("generate",), num_accelerators=generating, layout=Layout(data=generating))
    return RlPlacement(arrangement="async", groups=(trainer, generator))


def target_of(stage: Any) -> int:
    """Steps as the planner counts them."""
    if isinstance(stage, PpoStage):
        return ceil(stage.episodes / stage.rollout_batch)
    return int(stage.steps or max(1, ceil(int((stage.epochs or 1) * ROWS) / stage.global_batch)))
