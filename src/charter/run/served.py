"""Models that answer behind an endpoint: which they are, and which stages can do without their weights."""

from collections.abc import Iterator, Sequence

from charter.errors import Problem
from charter.run.graph import PlannedStage
from charter.spec.project import Project
from charter.spec.stage import MODEL, STAGE_KINDS, PpoStage

ASKED = {
    "generate": frozenset({"policy"}),
    "critique": frozenset({"policy", "critic"}),
    "label": frozenset({"policy", "judge"}),
    "eval": frozenset({"judge", "also_judges"}),
}
"""Roles of which a stage wants answers alone; every other one needs weights."""


def loads_weights(project: Project, stage: PlannedStage) -> bool:
    """Return True if some model of a stage is loaded into its own process."""
    served = {name for name, serving in project.serving.items() if serving.is_used}
    return any(
        item.name not in served
        for items in stage.inputs.values()
        for item in items
        if item.source == "model" or (item.stage_kind and STAGE_KINDS[item.stage_kind].MAKES == MODEL)
    )


def check_served(project: Project, todo: Sequence[PlannedStage]) -> Iterator[Problem]:
    """Roles that need weights, where the model is only served."""
    for stage in todo:
        served_roles = ASKED.get(stage.spec.kind, frozenset())
        if isinstance(stage.spec, PpoStage) and stage.spec.judges:
            served_roles = frozenset({stage.spec.judge_role})
        for role, items in stage.inputs.items():
            for item in items:
                if (
                    item.source == "model"
                    and item.path is None
                    and item.name in project.serving
                    and role not in served_roles
                ):
                    yield Problem(
                        path=f"pipeline.{stage.name}.{role}",
                        message=f"needs the weights of {item.name!r}, which is only served "
                        f"({project.serving[item.name].endpoint})",
                        hint=f"give models.{item.name}.model the path of a Hugging Face directory",
                    )
