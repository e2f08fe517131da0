"""From a planned option to the value that is run, submitted and exported (`charter.spec.execution`)."""

from collections.abc import Iterator
from math import ceil

from charter.plan.options.option import DeviceGroup, Option, RoleGroup
from charter.plan.serving.answering_search import own_roles
from charter.plan.work.phase import Workload
from charter.spec.execution import (
    CLIENT,
    TRAINER,
    ExecutableLayout,
    Execution,
    RoleExecution,
    Use,
    executable,
)
from charter.spec.stage import NATIVE, TRAINS, Stage

POOL_ENGINE = "vllm"
"""What answers for a model on accelerators of its own."""
LEAST_CONTEXT = 8192
"""Tokens; less would save no memory worth a refused prompt."""


def execution_of(stage: Stage, option: Option, work: Workload) -> Execution:
    """Return what runs for a stage that was planned so."""
    place = option.place
    return Execution(
        engine=option.engine,
        nodes=option.num_nodes,
        accelerators_per_node=0 if place.is_cpu else place.per_node,
        roles=dict(_roles(stage, option, work)),
        accelerator="" if place.is_cpu else place.accelerator.name,
        market=option.price.market,
        infra=place.infra,
        region=option.price.region or place.region,
        instance=place.instance,
        placement=option.placement,
    )


def _roles(stage: Stage, option: Option, work: Workload) -> Iterator[tuple[str, RoleExecution]]:
    if stage.kind not in TRAINS:
        yield from _answering(stage, option, work)
    elif option.groups:
        beside = {group.name: group for group in option.beside}
        for group in option.groups:
            yield _group_name(group), _of_group(stage, option, group, beside.get(group.name))
    else:
        layout = executable(option.layout, rows=stage.SEQUENCES_PER_ROW, dtype=option.dtype)
        yield TRAINER, _own(option, "train", layout)


def _own(option: Option, use: Use, layout: ExecutableLayout) -> RoleExecution:
    """A role that has all accelerators of the stage's own machines."""
    return RoleExecution(
        use=use,
        nodes=option.num_nodes,
        accelerators_per_node=0 if option.place.is_cpu else option.place.per_node,
        layout=layout,
        engine=option.engine,
        accelerator="" if option.place.is_cpu else option.place.accelerator.name,
    )


def _answering(stage: Stage, option: Option, work: Workload) -> Iterator[tuple[str, RoleExecution]]:
    """A pool for each model that is asked; on processors the stage's own process answers.

    All pools of a stage have the same accelerators, each a share of their memory. An evaluation computes with weights
    beside its judge, and has the first group of accelerators for that.
    """
    place, layout = option.place, option.layout
    if place.is_cpu:
        yield CLIENT, _own(option, "client", ExecutableLayout())
        return
    alone = own_roles(stage, work)
    used = {phase.role for phase in work.phases}.difference(work.remote, alone)
    served = [role for role in work.roles if role.name in used]
    own = (layout.tensor if served else place.per_node) if alone else 0
    yield (
        CLIENT,
        RoleExecution(
            use="client",
            nodes=1,
            accelerators_per_node=own,
            layout=ExecutableLayout(dtype="bf16"),
            engine=NATIVE,
            accelerator=place.accelerator.name if own else "",
        ),
    )
    first = ""
    for model in dict.fromkeys(role.model for role in served):
        names = [role.name for role in served if role.model == model]
        yield (
            names[0],
            RoleExecution(
                use="serve",
                nodes=option.num_nodes,
                accelerators_per_node=place.per_node - own,
                layout=ExecutableLayout(
                    data=layout.data - (1 if alone else 0),
                    tensor=layout.tensor,
                    micro_batch=layout.micro_batch,
                    dtype="bf16",
                ),
                engine=POOL_ENGINE,
                models=(model,),
                accelerator=place.accelerator.name,
                shares=first,
                memory_share=_memory_share(option, names),
                max_tokens=_most_tokens(work, model),
            ),
        )
        first = first or names[0]


def _memory_share(option: Option, roles: list[str]) -> float:
    """Share of an accelerator's memory for the servers of one model, out of what the plan may fill."""
    usable = option.capacity_bytes / option.place.accelerator.memory_bytes
    own = sum(term.value for role, term in option.peak.parts if role in roles)
    others = sum(term.value for role, term in option.peak.parts if role not in roles)
    return usable * own / (own + others) if own else usable


def _most_tokens(work: Workload, model: str) -> int:
    """Longest prompt and answer that the servers of a model take: with room, since lengths are estimates."""
    phases = [phase for phase in work.phases if work.model_of(phase.role) == model]
    return max(LEAST_CONTEXT, 2 * ceil(max((phase.longest_tokens for phase in phases), default=0.0)))


def _group_name(group: RoleGroup) -> str:
    return TRAINER if group.name in ("all", "trainers") else group.name


def _of_group(stage: Stage, option: Option, group: RoleGroup, beside: DeviceGroup | None) -> RoleExecution:
    """One group of accelerators of a placement: complete nodes, or some accelerators of one."""
    per_node = (beside.place if beside else option.place).per_node
    count = group.num_accelerators
    nodes, each = (count // per_node, per_node) if count % per_node == 0 else (1, count)
    return RoleExecution(
        use="serve" if group.name == "generators" else "train",
        nodes=nodes,
        accelerators_per_node=each,
        layout=executable(group.layout, rows=stage.SEQUENCES_PER_ROW, dtype=option.dtype),
        engine=option.engine,
        accelerator=group.hardware,
    )
