"""From a stage's job to what a renderer is asked: the stage as it is about to be started on this machine."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import get_args

from charter.artifacts.job import Job, JobInput
from charter.catalog.huggingface import architecture_from_config
from charter.engines.common.request import CPU, Arrangement, Handover, HandoverPaths, RlPlacement, RolesTogether
from charter.engines.installed import HOSTED_DEGREES
from charter.models.engine_layout import engine_layout
from charter.spec.architecture import Architecture
from charter.spec.execution import ExecutableLayout, Execution, planned_layout
from charter.spec.layout import Layout
from charter.spec.ppo_stage import PpoStage
from charter.spec.rewards import REWARD_SOURCES
from charter.spec.stage_base import MODEL, Optimization

COLOCATED: Arrangement = "colocated"
"""All roles of a stage of reinforcement learning on the same accelerators, as a plan calls it."""
NO_ROWS: Mapping[str, int] = MappingProxyType({})
JUDGE = "judge"
"""Role of the judges of a list of rewards."""
GPU = "cuda"
"""An accelerator of this machine of which the file says no name."""


def handover_of(
    job: Job,
    *,
    paths: HandoverPaths,
    architectures: Mapping[str, Architecture],
    target_steps: int,
    rows: Mapping[str, int] = NO_ROWS,
    num_nodes: int = 1,
    on_ray: bool = False,
    placement: RlPlacement | None = None,
) -> Handover:
    """Return the handover of a stage, as a renderer takes it; on several nodes its processes are shared out evenly."""
    layout = layout_of(job)
    per_node = layout.num_accelerators // num_nodes
    for group in placement.groups if placement is not None else ():
        layout = group.layout if "policy" in group.roles else layout
    resources = job.spec.resources
    named = resources.accelerators.partition(":")[0] if resources and resources.accelerators else GPU
    return Handover(
        engine=job.spec.engine,
        run=job.run,
        name=job.stage,
        stage=job.spec,
        seed=job.seed,
        layout=layout,
        num_nodes=num_nodes,
        on_ray=on_ray,
        is_run=True,
        placement=placement,
        per_node=per_node,
        accelerator=CPU if job.frozen.get("device") == "cpu" else named,
        target_steps=target_steps,
        architectures=architectures,
        paths=paths,
        rows=rows,
        keep_last=job.keep_last,
        sources=sources_of(job),
    )


def placement_of(execution: Execution | None) -> RlPlacement | None:
    """Return how the roles of a stage lie on its accelerators; None where no plan has placed them."""
    if execution is None or not execution.generator_tensor:
        return None
    arrangement = "offloaded" if execution.waits_on_host else execution.placement or COLOCATED
    apart = [role for role in execution.roles.values() if role.parts]
    return RlPlacement(
        arrangement=next(name for name in get_args(Arrangement) if name == arrangement),
        groups=tuple(
            RolesTogether(roles=role.parts, num_accelerators=role.accelerators, layout=planned_layout(role.layout))
            for role in apart
        ),
        generator_tensor=execution.generator_tensor,
    )


def sources_of(job: Job) -> dict[str, str]:
    """Return the texts of the user's own reward functions, by the paths in the file."""
    files = job.inputs.get(REWARD_SOURCES, ())
    return {item.name.removeprefix(f"{REWARD_SOURCES} "): item.location().read_text("utf-8") for item in files}


def layout_of(job: Job) -> Layout:
    """The layout in a job's frozen values, in the planner's terms: a micro-batch counts sequences."""
    frozen = engine_layout(job.frozen)
    degrees = {name: int(job.frozen.get(name, default)) for name, default in HOSTED_DEGREES.items()}
    spread = frozen.tensor * degrees["pipeline"] * frozen.context
    data = max(1, frozen.world_size // spread)
    share = max(1, _batch(job) // data)
    micro = min(frozen.micro_batch or share, share)
    started = ExecutableLayout(
        data=data,
        tensor=frozen.tensor,
        pipeline=degrees["pipeline"],
        context=frozen.context,
        expert=degrees["expert"],
        interleave=degrees["interleave"],
        sequence_parallel=frozen.sequence_parallel,
        zero=frozen.zero,
        micro_batch=micro,
        accumulation=-(-share // micro),
        recompute=frozen.recompute,
        offload=frozen.offload,
        offload_activations=frozen.offload_activations,
        replicas=frozen.replicas,
    )
    return planned_layout(started, rows=job.spec.SEQUENCES_PER_ROW)


def model_roles(job: Job) -> dict[str, JobInput]:
    """The models that an engine reads, by role; judges are asked by Charter's own process."""
    wanted = [role for role, what in job.spec.REFERENCES.items() if what == MODEL and role != JUDGE]
    return {role: job.only(role) for role in wanted if role in job.inputs}


def data_roles(job: Job) -> tuple[str, ...]:
    """The roles of a stage that read data, and have some."""
    return tuple(role for role, what in job.spec.REFERENCES.items() if what != MODEL and job.inputs.get(role))


def architecture_of(item: JobInput, location: Path) -> Architecture:
    """The shape of a model that lies in a directory, or is described in the file."""
    if item.model is not None and item.model.architecture is not None:
        return item.model.architecture
    return architecture_from_config(location)


def _batch(job: Job) -> int:
    """Rows of an optimizer step."""
    if isinstance(job.spec, Optimization):
        return job.spec.global_batch
    return job.spec.minibatch if isinstance(job.spec, PpoStage) else 1
