"""Stages and layouts that renderers of other engines are tested with."""

from typing import Any

from charter.engines.common.request import Handover, HandoverPaths, RlPlacement
from charter.spec.architecture import Architecture
from charter.spec.layout import Layout, ZeroStage
from charter.spec.ppo_stage import PpoStage
from charter.spec.stage import DpoStage, PreferenceModelStage, SftStage
from charter.spec.stage_base import Engine, Stage

SHAPE = Architecture(hidden_size=64, num_layers=2, num_heads=8, num_kv_heads=4, intermediate_size=64, vocab_size=100)
ROLES = ("init", "policy", "reward")


def ppo(**settings: Any) -> PpoStage:
    """64 answers per rollout in minibatches of 32."""
    return PpoStage(policy="sl", prompts=("red",), **{"reward": "pm", "episodes": 640, **settings})


def sft(**settings: Any) -> SftStage:
    """64 conversations per step."""
    return SftStage(init="base", data=("chat",), **{"steps": 10, **settings})


def preference_model(**settings: Any) -> PreferenceModelStage:
    """64 pairs per step."""
    return PreferenceModelStage(init="base", data=("pairs",), **{"steps": 10, **settings})


def dpo(**settings: Any) -> DpoStage:
    """64 pairs per step."""
    return DpoStage(init="sl", data=("pairs",), **{"steps": 10, **settings})


def sharded(batch: int, *, data: int = 8, micro_batch: int = 4, **settings: Any) -> Layout:
    """FSDP over `data` replicas of a batch of `batch` sequences."""
    steps = max(1, batch // (data * micro_batch))
    return Layout(
        **{"data": data, "zero": ZeroStage.PARAMETERS, "micro_batch": micro_batch, "accumulation": steps, **settings}
    )


def handover(engine: Engine, stage: Stage, layout: Layout, **settings: Any) -> Handover:
    """The stage on one node whose accelerators the layout uses, unless told otherwise."""
    suffix = "parquet" if engine == "verl" else "jsonl"
    places = {role: f"/models/{role}" for role in ROLES}
    data = {role: f"/job/data/{role}.{suffix}" for role in ("data", "prompts")}
    paths = HandoverPaths(work="/job", models=places, data=data, resume_from=settings.pop("resume_from", None))
    given = {
        "name": "stage",
        "run": "run",
        "seed": 7,
        "num_nodes": 1,
        "per_node": layout.num_accelerators // settings.get("num_nodes", 1),
        "accelerator": "H100",
        "target_steps": 10,
        "architectures": dict.fromkeys(ROLES, SHAPE),
        "paths": paths,
        "placement": RlPlacement() if isinstance(stage, PpoStage) else None,
        **settings,
    }
    return Handover(engine=engine, stage=stage, layout=layout, **given)
