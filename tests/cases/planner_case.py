"""Small projects for the tests of the planner."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from charter.catalog import models
from charter.catalog.accelerators import Accelerator
from charter.physics.columns import Array, Layouts, array
from charter.plan.knowledge import Knowledge, engine_knowledge
from charter.plan.machine import Machine
from charter.plan.make import make_plan
from charter.plan.phase import Workload
from charter.plan.plan import Plan
from charter.plan.stage_memory import LayoutDevices, fit_of
from charter.spec.architecture import Architecture
from charter.spec.layout import Layout
from charter.spec.ppo_stage import PpoStage
from charter.spec.project import DataSpec, ModelSpec, Project, Resources
from charter.spec.stage import (
    CritiqueStage,
    DpoStage,
    EvalStage,
    GenerateStage,
    JudgeStage,
    LabelStage,
    PreferenceModelStage,
    PrepareStage,
    PretrainStage,
    SftStage,
)
from charter.spec.stage_base import Stage

LLAMA_8B = models.get("Llama-3.1-8B").architecture
LLAMA_70B = models.get("Llama-3.1-70B").architecture
TINY = Architecture(
    hidden_size=192, num_layers=2, num_heads=6, intermediate_size=512, vocab_size=2048, tied_embeddings=True
)
MACHINE = Machine(name="test", cores=2, memory_bytes=24e9, flops_per_second=2e11, memory_bytes_per_second=4e10)
DATA = {
    "chat": DataSpec(path="chat.jsonl", rows=40_000, mean_tokens=300),
    "pairs": DataSpec(path="pairs.jsonl", rows=40_000, mean_tokens=300),
    "prompts": DataSpec(path="prompts.jsonl", rows=20_000, mean_tokens=60),
}
H100 = Resources(infra="aws", accelerators=("H100:8",), max_nodes=4)
ALL_KINDS = {
    "prepare": PrepareStage(data=("chat",)),
    "pretrain": PretrainStage(init="base", data=("chat",), steps=100),
    "sft": SftStage(init="pretrain", data=("prepare",)),
    "judge": JudgeStage(init="sft", pairs=("pairs",)),
    "generate": GenerateStage(policy="sft", prompts=("prompts",)),
    "critique": CritiqueStage(policy="sft", critic="sft", prompts=("prompts",), revisions=2),
    "sl_cai": SftStage(init="sft", data=("critique", "generate")),
    "label": LabelStage(judge="judge", policy="sl_cai", prompts=("prompts",), pairs=10_000),
    "pm": PreferenceModelStage(init="sft", data=("label", "pairs")),
    "dpo": DpoStage(init="sl_cai", data=("label",)),
    "ppo": PpoStage(policy="sl_cai", reward="pm", prompts=("prompts",), episodes=65_536, rollout_batch=512),
    "eval": EvalStage(
        policy="ppo", against="sl_cai", judge="judge", reward="pm", pairs=("pairs",), prompts=("prompts",),
        num_prompts=500,
    ),
}  # fmt: skip


def project(resources: Resources = H100, *, architecture: Architecture = LLAMA_8B, **changes: object) -> Project:
    """A pipeline of every kind of stage; `changes` replace fields of the project."""
    made = Project(
        name="test",
        models={"base": ModelSpec(architecture=architecture)},
        data=DATA,
        pipeline=ALL_KINDS,
        resources=resources,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def one(stage: Stage, resources: Resources = H100, *, architecture: Architecture = LLAMA_8B, **changes: object) -> Plan:
    """The plan of a project with one stage, which reads `base` and the data sets."""
    return planned(project(resources, architecture=architecture, pipeline={"stage": stage}, **changes))


def planned(made: Project, *, machine: Machine | None = MACHINE) -> Plan:
    """The plan of a project without data files."""
    architectures = {name: spec.architecture for name, spec in made.models.items() if spec.architecture is not None}
    return make_plan(made, architectures=architectures, data_facts={}, machine=machine)


def peak_bytes(
    work: Workload,
    layouts: Sequence[Layout],
    *,
    accelerator: Accelerator,
    dtype: str,
    knowledge: Knowledge,
    engine: str = "native",
) -> Array:
    """The fullest moment of every layout on one accelerator, by the columns that a search reads."""
    known = engine_knowledge(engine, knowledge)
    devices = LayoutDevices(
        accelerators=(accelerator,),
        of_row=np.zeros(len(layouts), dtype=np.intp),
        usable=array([known.usable_bytes(accelerator, knowledge)]),
    )
    return fit_of(work, Layouts.of(layouts), devices, dtype=dtype, known=known).peak
