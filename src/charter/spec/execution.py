"""Execution of a stage as one frozen value: the plan makes it; launchers, engines, exports and checks read it.

Three kinds of facts meet here. What decides bits (engine, ranks, layout) is frozen with the stage when it first starts.
Where it runs (accelerator, market, provider) may be another equivalent offer at every start. What is left are counts
that follow from both.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from charter.spec.layout import Layout, Recompute, ZeroStage
from charter.spec.project import Project
from charter.spec.stage_base import ServerPool, Stage, StageResources

TRAINER = "trainer"
"""The role of the processes that train, and of all that share their accelerators."""
CLIENT = "client"
"""The role of a stage's own process where pools of servers answer for it."""
Use = Literal["train", "serve", "client"]
CPU = "cpu"


@dataclass(frozen=True, kw_only=True)
class ExecutableLayout:
    """Spread of one role over its accelerators; degrees have the names of the plan.

    Of a role that is served, `data` counts its replicas, each over `tensor` accelerators.
    """

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    interleave: int = 1
    sequence_parallel: bool = False
    zero: int = 0
    replicas: int = 1
    """Hybrid sharding: complete copies of what `zero` shards."""
    micro_batch: int = 0
    """Rows of one pass of one rank; 0: its whole share of the batch. Of servers: sequences together in a replica."""
    decode_batch: int = 0
    """Answers of a rollout that one rank draws at once; 0: its whole share."""
    accumulation: int = 1
    recompute: str = "none"
    offload: str = "none"
    offload_activations: bool = False
    dtype: str = ""

    @property
    def ranks(self) -> int:
        """Processes, one for each accelerator.

        >>> ExecutableLayout(data=4, tensor=2).ranks
        8
        """
        return self.data * self.tensor * self.pipeline * self.context


@dataclass(frozen=True, kw_only=True)
class RoleExecution:
    """One role of a stage: the machines that it holds, and its layout on them."""

    use: Use
    nodes: int
    accelerators_per_node: int
    layout: ExecutableLayout
    engine: str
    models: tuple[str, ...] = ()
    """Names in `charter.yaml` of the models that a pool serves, one after the other or side by side."""
    accelerator: str = ""
    """Catalog name; that of the stage unless given."""
    shares: str = ""
    """The role whose accelerators it uses too; empty where it has its own."""
    memory_share: float = 0.0
    """Of servers: share of an accelerator's memory that one takes; 0 where it is not planned."""
    max_tokens: int = 0
    """Of servers: longest prompt and answer together; 0: the model's own limit."""
    parts: tuple[str, ...] = ()
    """Of an engine that places roles apart, those that compute here: `policy`, `reference`, ..., `generate`."""

    @property
    def accelerators(self) -> int:
        """Accelerators of all nodes."""
        return self.nodes * self.accelerators_per_node


@dataclass(frozen=True, kw_only=True)
class Execution:
    """Execution of one stage."""

    engine: str
    nodes: int
    accelerators_per_node: int
    roles: Mapping[str, RoleExecution]
    accelerator: str = ""
    """Catalog name; empty on processors."""
    market: str = "owned"
    infra: str = "local"
    region: str | None = None
    instance: str = ""
    memory_bytes_per_node: int = 0
    """System memory that a node needs, as the plan counts it; 0 where it says nothing."""
    placement: str = ""
    """Of the roles of reinforcement learning: `colocated`, `split`, `async`; empty where there is nothing to place."""
    generator_tensor: int = 0
    """Tensor parallelism of the generators of an engine that places the roles itself; 0 where none does."""
    waits_on_host: bool = False
    """Of such an engine: models wait in host memory while others compute on the same accelerators."""
    is_planned: bool = True
    """False where the plan could not say and the file's own words were taken."""

    @property
    def accelerators(self) -> int:
        """Accelerators that are paid for: the sum over the roles that have some of their own."""
        return sum(role.accelerators for role in self.roles.values() if not role.shares)

    @property
    def uses_spot(self) -> bool:
        """Return True if it runs on capacity that may be taken away."""
        return self.market == "spot"

    @property
    def pools(self) -> dict[str, RoleExecution]:
        """Roles that servers play, by name."""
        return {name: role for name, role in self.roles.items() if role.use == "serve"}

    def to_json(self) -> dict[str, Any]:
        """The value as `charter plan --json` prints it, with the number of accelerators."""
        content = {**asdict(self), "accelerators": self.accelerators}
        if self.generator_tensor:
            return content
        roles = {name: _without(role, ("parts",)) for name, role in content["roles"].items()}
        return {**_without(content, OF_ENGINES), "roles": roles}


OF_ENGINES = ("generator_tensor", "waits_on_host")
"""Fields that stand in JSON only where the engine places the roles."""


def _without(content: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: value for name, value in content.items() if name not in names}


def execution_from_json(content: Mapping[str, Any]) -> Execution:
    """Return the value that `to_json` wrote; a KeyError or TypeError where it is another's."""
    values = {item.name: content[item.name] for item in fields(Execution) if item.name in content}
    values["roles"] = {name: _role(role) for name, role in content["roles"].items()}
    return Execution(**values)


def _role(content: Mapping[str, Any]) -> RoleExecution:
    layout = ExecutableLayout(**content["layout"])
    names = {name: tuple(content.get(name, ())) for name in ("models", "parts")}
    return RoleExecution(**{**content, **names, "layout": layout})


def executable(layout: Layout, *, rows: int = 1, decode_batch: int = 0, dtype: str = "") -> ExecutableLayout:
    """Return a planned layout as an engine executes it; `rows` sequences of the plan are one row of the engine.

    >>> from charter.spec.layout import ZeroStage
    >>> made = executable(Layout(data=4, zero=ZeroStage.PARAMETERS, micro_batch=8), rows=2)
    >>> made.zero, made.micro_batch, made.ranks
    (3, 4, 4)
    """
    return ExecutableLayout(
        data=layout.data,
        tensor=layout.tensor,
        pipeline=layout.pipeline,
        context=layout.context,
        expert=layout.expert,
        interleave=layout.interleave,
        sequence_parallel=layout.sequence_parallel,
        zero=int(layout.zero),
        replicas=layout.replicas,
        micro_batch=max(1, layout.micro_batch // rows),
        decode_batch=decode_batch,
        accumulation=layout.accumulation,
        recompute=layout.recompute.value,
        offload="all" if layout.offload_parameters else "optimizer" if layout.offload_optimizer else "none",
        offload_activations=layout.offload_activations,
        dtype=dtype,
    )


def planned_layout(layout: ExecutableLayout, *, rows: int = 1) -> Layout:
    """Return a layout in the planner's terms, of an engine one of whose rows is `rows` sequences of a plan.

    >>> planned_layout(ExecutableLayout(data=4, zero=3, micro_batch=4, offload="optimizer"), rows=2).label
    'zero3 dp4 mb8 offload'
    """
    return Layout(
        data=layout.data,
        tensor=layout.tensor,
        pipeline=layout.pipeline,
        context=layout.context,
        expert=layout.expert,
        interleave=layout.interleave,
        sequence_parallel=layout.sequence_parallel,
        zero=ZeroStage(layout.zero),
        micro_batch=layout.micro_batch * rows,
        accumulation=layout.accumulation,
        recompute=Recompute(layout.recompute),
        offload_optimizer=layout.offload in ("optimizer", "all"),
        offload_parameters=layout.offload == "all",
        offload_activations=layout.offload_activations,
        replicas=layout.replicas,
    )


def shares_accelerators(stage: Stage) -> bool:
    """Return True if servers answer for all models of a stage, so that its own process needs no accelerator.

    An evaluation computes with the weights of models beside the judge that it asks.
    """
    return stage.kind != "eval"


def resolved(project: Project, executions: Mapping[str, Execution]) -> Project:
    """Return the project with what will run written into the resources of its stages; the file's own words come first.

    Whoever starts, submits, renders or checks a stage reads its resources, so that nothing can run but what was
    planned. No fingerprint depends on them.

    >>> from charter.spec.stage import SftStage
    >>> stage = SftStage(init="base", data=("chats",), resources=StageResources(tensor=2))
    >>> role = RoleExecution(use="train", nodes=2, accelerators_per_node=8, engine="native", accelerator="H100-80GB",
    ...                      layout=ExecutableLayout(data=8, tensor=2, zero=3, micro_batch=4))
    >>> planned = Execution(engine="native", nodes=2, accelerators_per_node=8, roles={"trainer": role},
    ...                     accelerator="H100-80GB", market="spot")
    >>> project = Project(name="p", models={}, pipeline={"sft": stage})
    >>> made = resolved(project, {"sft": planned}).pipeline["sft"].resources
    >>> made.accelerators, made.num_nodes, made.use_spot, made.zero, made.micro_batch, made.tensor
    ('H100-80GB:8', 2, True, 3, 4, 2)
    """
    stages = {
        name: replace(stage, resources=_resources(project, stage, executions[name])) if name in executions else stage
        for name, stage in project.pipeline.items()
    }
    return replace(project, pipeline=stages)


def _resources(project: Project, stage: Stage, execution: Execution) -> StageResources:
    own = stage.resources or StageResources()
    planned: dict[str, Any] = {
        "accelerators": f"{execution.accelerator}:{execution.accelerators_per_node}",
        "num_nodes": execution.nodes,
        "use_spot": execution.uses_spot,
        "memory": project.resources.memory or execution.memory_bytes_per_node or None,
    }
    if (trainer := execution.roles.get(TRAINER)) is not None:
        layout = trainer.layout
        planned |= {name: getattr(layout, name) for name in PLANNED_FIELDS}
        planned["micro_batch"] = layout.micro_batch * stage.SEQUENCES_PER_ROW
    if execution.pools:
        described = project.pools_of(stage)
        servers = {model: _servers(role) for role in execution.pools.values() for model in role.models}
        planned["pools"] = described | {
            model: _described(described.get(model), pool) for model, pool in servers.items()
        }
    said = {item.name: getattr(own, item.name) for item in fields(StageResources)}
    # Which accelerator, and how many of them a node has, is one fact: the file may offer several to choose from.
    decided = {"accelerators", "pools"}.intersection(planned)
    own_values = {name: value for name, value in said.items() if value is not None and name not in decided}
    return replace(own, **{**planned, **own_values})


def _servers(role: RoleExecution) -> ServerPool:
    return ServerPool(
        engine="charter" if role.engine == "charter" else "vllm",
        replicas=role.layout.data,
        tensor=role.layout.tensor,
        max_num_seqs=role.layout.micro_batch or None,
        max_tokens=role.max_tokens or None,
        memory_share=round(role.memory_share, 4) or None,
    )


def _described(own: ServerPool | None, planned: ServerPool) -> ServerPool:
    """Return the servers of a model as the file has them, and as planned where it says nothing."""
    if own is None:
        return planned
    values = {item.name: getattr(own, item.name) for item in fields(own)}
    return replace(planned, **{name: value for name, value in values.items() if value is not None})


PLANNED_FIELDS = (
    "tensor", "pipeline", "context", "expert", "interleave", "sequence_parallel", "zero", "replicas", "recompute",
    "offload", "offload_activations", "decode_batch",
)  # fmt: skip
"""Fields of a layout that the resources of a stage have under the same names."""
