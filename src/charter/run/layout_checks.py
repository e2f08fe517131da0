"""Checks that the native engine can run a stage in the layout that the file asks for, on this machine."""

import math
from collections.abc import Iterator

from charter.engines import capabilities
from charter.engines.common.capabilities import one_of, refused_kernels, unsupported
from charter.errors import Problem
from charter.launch.machine import (
    CPU,
    NodeFacts,
    asked_accelerators,
    asked_layout,
    gpus_here,
    stage_device,
    stage_nodes,
)
from charter.spec.execution import shared_rows
from charter.spec.graph import inputs_of
from charter.spec.project import Project
from charter.spec.stage import NATIVE, TRAINS, PpoStage, Stage

INSTEAD = {
    "pipeline": "remove it; zero: 3 or tensor spread a model that is too large for one accelerator",
    "interleave": "remove it; it cuts the stages of a pipeline",
    "context": "remove it; tensor spreads a long sequence's layers; recompute: full needs less memory for it",
    "expert": "remove it; zero: 3 spreads the experts with everything else",
    "sequence_parallel": "remove it; `tensor` works without",
    "zero": "zero: 2 shards the optimizer and the gradients",
    "offload": "offload: all with zero: 3, or none",
}
"""What the native engine has instead of what it cannot do (its `Capabilities`)."""


def check_layout(project: Project, name: str, stage: Stage, *, facts: NodeFacts | None = None) -> Iterator[Problem]:
    """Problems of one stage's layout; a kind that does not train has one process and no layout.

    `facts` are those of an engine's node, which decides itself whether it has what is asked for.
    """
    if stage.kind not in TRAINS:
        return
    where = f"pipeline.{name}.resources"
    gpus = gpus_here() if facts is None else facts.gpus
    if stage.resources is not None:
        on_accelerator = stage_device(project, stage, gpus=gpus) != CPU
        for field, reason in unsupported(stage.resources, capabilities(NATIVE), on_accelerator=on_accelerator):
            yield Problem(path=f"{where}.{field}", message=reason, hint=INSTEAD[field])
    yield from _attention(project, stage, where, gpus)
    yield from check_accelerators(project, stage, where) if facts is None else ()
    layout = asked_layout(project, stage, gpus=gpus)
    world, tensor = int(layout["world_size"]), int(layout.get("tensor", 1))
    if world % tensor:
        hint = f"tensor must divide {world}: {one_of(_divisors(world))}"
        yield Problem(path=f"{where}.tensor", message=f"{tensor} does not divide the {world} processes", hint=hint)
        return
    serving = project.serving
    if (
        isinstance(stage, PpoStage)
        and world > 1
        and (here := [it for it in stage.judges if it not in serving or not serving[it].is_used])
    ):
        message = f"the judge {here[0]!r}, whose weights are loaded, runs in one process; found {world}"
        hint = "serve it (`serving`), give the stage one accelerator, or a preference model as its reward"
        yield Problem(
            path=f"pipeline.{name}.{'rewards' if stage.rewards else 'reward_from'}", message=message, hint=hint
        )
    yield from _heads(project, name, tensor, where)
    data, replicas = world // tensor, int(layout.get("replicas", 1))
    if data % replicas:
        hint = f"replicas must divide {data}: {one_of(_divisors(data))}"
        yield Problem(path=f"{where}.replicas", message=f"{replicas} does not divide {data} data ranks", hint=hint)
    yield from _batches(name, stage, data)


def _attention(project: Project, stage: Stage, where: str, gpus: int) -> Iterator[Problem]:
    kernel = stage.resources.attention if stage.resources else None
    compiled = bool(stage.resources and stage.resources.compile)
    for field, reason in refused_kernels(stage, attention=kernel, compiled=compiled):
        yield Problem(path=f"{where}.{field}", message=reason, hint="see docs/concepts/training.md")
    if kernel == "flash_attention_2" and stage_device(project, stage, gpus=gpus) == "cpu":
        message = "flash_attention_2 runs on CUDA devices only; this stage runs on processors"
        yield Problem(path=f"{where}.attention", message=message, hint="attention: sdpa or eager")


def _heads(project: Project, name: str, tensor: int, where: str) -> Iterator[Problem]:
    """Attention heads that tensor parallelism cannot share, of the models a stage builds on, where the file says."""
    for model in _models_under(project, name):
        if (sizes := project.models[model].architecture) is None:
            continue
        heads, kv_heads = sizes.num_heads, sizes.num_kv_heads or sizes.num_heads
        if heads % tensor or kv_heads % tensor:
            both = math.gcd(heads, kv_heads)
            message = f"{heads} attention heads ({kv_heads} of keys) of {model} cannot be split over {tensor} processes"
            yield Problem(path=f"{where}.tensor", message=message, hint=f"tensor: {one_of(_divisors(both))}")


def _models_under(project: Project, name: str) -> set[str]:
    """The models that a stage is made from, through any number of stages."""
    names: set[str] = set()
    for source in (source for sources in inputs_of(project, name).values() for source in sources):
        names |= {source} if source in project.models else set()
        names |= _models_under(project, source) if source in project.pipeline else set()
    return names


def check_accelerators(project: Project, stage: Stage, where: str) -> Iterator[Problem]:
    """Accelerators that this machine does not have."""
    kind, per_node = asked_accelerators(project, stage)
    count, here = per_node * stage_nodes(project, stage), gpus_here()
    if kind in ("", CPU) or count <= here:
        return
    instead = f"accelerators: {kind}:{here}, or " if here else "accelerators: "
    yield Problem(
        path=f"{where}.accelerators",
        message=f"{kind}:{count} asks for {count} accelerators, this machine has {here}",
        hint=f"{instead}cpu:{count} for processes on its processors; `charter plan` needs none of them",
    )


def _batches(name: str, stage: Stage, data: int) -> Iterator[Problem]:
    """Every data rank takes the same number of rows of a batch; the answers to one prompt stay together."""
    for field, together in shared_rows(stage).items():
        rows, unit = int(getattr(stage, field)), data * together
        if rows % unit:
            below, above = rows // unit * unit, -(-rows // unit) * unit
            works = one_of([number for number in (below, above) if number])
            groups = f", {together} answers to a prompt together" if together > 1 else ""
            fewer = f"{rows // together} ({field} / samples_per_prompt)" if together > 1 else rows
            yield Problem(
                path=f"pipeline.{name}.{field}",
                message=f"{rows} rows cannot be shared evenly by {data} processes{groups}",
                hint=f"{field}: {works}; or a number of processes that divides {fewer}",
            )


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]
