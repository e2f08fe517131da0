"""From the plan of a stage to what a renderer is asked. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from types import MappingProxyType

from charter.engines.common.request import CPU, Arrangement, Handover, HandoverPaths, RlPlacement, RolesTogether
from charter.errors import Problem, SpecError, UsageError
from charter.plan.option import Option, RoleGroup, StageQuestion
from charter.plan.plan import Plan
from charter.spec.architecture import Architecture
from charter.spec.ppo_stage import PpoStage
from charter.spec.project import Project
from charter.spec.stage import references
from charter.spec.stage_base import MODEL, Stage

WORK = "."
"""Files of an export name each other relative to the directory that they lie in."""
MODELS_DIR, DATA_DIR = "inputs", "data"
NO_ROWS: Mapping[str, int] = MappingProxyType({})
NO_SOURCES: Mapping[str, str] = MappingProxyType({})
GENERATORS, GENERATE = "generators", "generate"
_ROLE_OF_SPEC: Mapping[str, tuple[str, ...]] = {
    "init": ("model", "policy"),
    "policy": ("policy",),
    "reward": ("reward",),
}
"""Role in a stage's spec -> what the planner calls it."""


@dataclass(frozen=True, kw_only=True)
class ModelInput:
    """A model that a stage reads."""

    role: str
    path: str
    """As the engine's configuration names it."""
    made_by: str | None
    """The stage that makes it; None for a model of the catalog or a directory."""


def handover_of(
    project: Project,
    plan: Plan,
    name: str,
    *,
    data_suffix: str = ".jsonl",
    rows: Mapping[str, int] = NO_ROWS,
    sources: Mapping[str, str] = NO_SOURCES,
) -> Handover:
    """The stage as it was planned, with every path below the directory of the export.

    `data_suffix`: of the files that the engine reads; `rows` that each role of data has, where they are known;
    `sources`: texts of the user's own reward functions.
    """
    stage, planned = project.pipeline[name], plan.stage(name)
    if planned is None or planned.searched is None or planned.searched.question is None:
        raise UsageError(f"the plan says nothing of how {name} is laid out; stages that train can be handed over")
    option, question = planned.option, planned.searched.question
    if option.beside:
        kinds = ", ".join(
            sorted({option.place.accelerator.name, *(group.place.accelerator.name for group in option.beside)})
        )
        raise SpecError(
            [
                Problem(
                    path=f"pipeline.{name}.resources",
                    message=f"planned on two kinds of accelerators at once ({kinds}), which no configuration can tell",
                    hint="name one in resources.accelerators of the stage",
                )
            ]
        )
    return Handover(
        engine=stage.engine,
        run=project.name,
        name=name,
        stage=stage,
        seed=project.seed_of(name),
        layout=option.layout,
        num_nodes=option.num_nodes,
        per_node=option.place.processes if option.place.is_cpu else option.place.per_node,
        accelerator=CPU if option.place.is_cpu else option.place.accelerator.name,
        target_steps=target_steps(stage, question),
        architectures=_architectures(stage, question),
        paths=HandoverPaths(
            work=WORK,
            models={item.role: item.path for item in model_inputs(project, name)},
            data={role: f"{DATA_DIR}/{role}{data_suffix}" for role in data_roles(stage)},
        ),
        rows=rows,
        placement=placement_of(option) if stage.ROLLS_OUT else None,
        keep_last=project.storage.keep_last,
        sources=sources,
    )


def target_steps(stage: Stage, question: StageQuestion) -> int:
    """Optimizer steps, or rollouts."""
    if isinstance(stage, PpoStage):
        return ceil(stage.episodes / stage.rollout_batch)
    return round(question.training.steps)


def model_inputs(project: Project, name: str) -> tuple[ModelInput, ...]:
    """The models that a stage reads: by their name on a hub, or below the directory of the export."""
    stage = project.pipeline[name]
    inputs = []
    for role, names in references(stage).items():
        if stage.REFERENCES[role] != MODEL:
            continue
        spec = project.models.get(names[0])
        hub = None if spec is None else spec.model
        inputs.append(
            ModelInput(
                role=role,
                path=hub if hub is not None and _on_a_hub(hub) else f"{MODELS_DIR}/{role}",
                made_by=names[0] if names[0] in project.pipeline else None,
            )
        )
    return tuple(inputs)


def data_roles(stage: Stage) -> tuple[str, ...]:
    """The roles of a stage that read data."""
    return tuple(role for role in references(stage) if stage.REFERENCES[role] != MODEL)


def _on_a_hub(model: str) -> bool:
    """Return True if a name is that of a model and not of a directory.

    >>> _on_a_hub("meta-llama/Llama-3.1-8B"), _on_a_hub("/models/mine"), _on_a_hub("models/a/b")
    (True, False, False)
    """
    return model.count("/") == 1 and model[0] not in "/.~"


def _architectures(stage: Stage, question: StageQuestion) -> dict[str, Architecture]:
    roles = {role.name: role.architecture for role in question.work.roles}
    by_role = {}
    for role in references(stage):
        for name in _ROLE_OF_SPEC.get(role, ()):
            if name in roles and role not in by_role:
                by_role[role] = roles[name]
    return by_role


def placement_of(option: Option) -> RlPlacement:
    """Return the planned placement of the roles of a reinforcement-learning stage."""
    arrangement: Arrangement = "offloaded" if option.waits_on_host else _ARRANGEMENTS.get(option.placement, "colocated")
    apart = len(option.groups) > 1
    return RlPlacement(
        arrangement=arrangement,
        groups=tuple(_together(group) for group in option.groups) if apart else (),
        generator_tensor=option.generator_tensor,
    )


def _together(group: RoleGroup) -> RolesTogether:
    return RolesTogether(
        roles=(GENERATE,) if group.name == GENERATORS else group.roles,
        num_accelerators=group.num_accelerators,
        layout=group.layout,
    )


_ARRANGEMENTS: Mapping[str, Arrangement] = {"colocated": "colocated", "split": "split", "async": "async"}
