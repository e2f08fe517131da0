"""Choice of the engine of stages that say `engine: auto`: the quickest that is there and keeps what the file demands.

An engine can be chosen that `engines:` names, since only the user knows what is installed where the run goes. It must
train the kind of stage, express every field of it, and resume as exactly as `exact` demands. The comparison is the
plan's own, on the accelerators that it chose for the native engine.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from charter.artifacts import durable
from charter.engines import handover_engine
from charter.engines.common.rendered import Guarantee
from charter.errors import CharterError
from charter.plan.option import EngineLayout
from charter.plan.plan import Plan
from charter.plan.project_plan import plan_project
from charter.plan.stage_plan import StagePlan
from charter.plan.what_if import with_other_engines
from charter.report.handover import exported, with_engine
from charter.report.plan_notes import WORTH_SAYING
from charter.run.paths import run_dir
from charter.spec.load import ENGINES_FILE, chosen_engines
from charter.spec.project import Project
from charter.spec.stage import TRAINS
from charter.spec.stage_base import NATIVE, Engine
from charter.units import format_usd

ENOUGH: Mapping[str, tuple[Guarantee, ...]] = {
    "bits": ("bit_exact",),
    "record": ("bit_exact", "same_data_order"),
    "none": ("bit_exact", "same_data_order", "best_effort"),
}
"""What an engine must promise for each demand of `exact`."""


@dataclass(frozen=True, kw_only=True)
class EngineChoice:
    """Engine of one stage, and why."""

    stage: str
    engine: Engine
    why: str


def choose_engines(project: Project, root: Path, *, again: bool = False) -> tuple[Project, tuple[EngineChoice, ...]]:
    """Return the project with its engines chosen, and the choices in words; nothing is written.

    A run keeps the choices with which it began; `again` makes those of stages anew.
    """
    begun = {} if again else chosen_engines(root)
    stages = [
        name
        for name, stage in project.pipeline.items()
        if stage.engine_by == "plan" and stage.kind in TRAINS and name not in begun
    ]
    if not stages or not project.engines:
        return project, ()
    plan = with_other_engines(plan_project(project, root))
    choices = tuple(_choice(project, root, plan, plan.stage(name)) for name in stages)
    for item in choices:
        project = with_engine(project, item.stage, item.engine)
    return project, choices


def keep_engines(project: Project, root: Path) -> None:
    """Write the engines of a run that begins, so that it is resumed with the same."""
    engines = {name: stage.engine for name, stage in project.pipeline.items() if stage.engine_by == "plan"}
    if any(engine != NATIVE for engine in engines.values()) and chosen_engines(root) != engines:
        durable.make_dir(run_dir(root))
        durable.write_json(run_dir(root) / ENGINES_FILE, engines)


def _choice(project: Project, root: Path, plan: Plan, stage: StagePlan | None) -> EngineChoice:
    assert stage is not None, "every stage is in the plan"
    refusals: dict[str, str] = {}
    for other in _candidates(project, stage):
        if other.engine in refusals:
            continue  # another placement of it
        if refused := _refusal(project, root, stage.name, other):
            refusals[other.engine] = f"{other.engine} {refused}"
            continue
        saved = "" if stage.usd is None else f", about {format_usd((1 - other.ratio) * stage.usd.p50 / 1e6)}"
        why = f"{1 - other.ratio:.0%} less work{saved}"
        return EngineChoice(
            stage=stage.name, engine=handover_engine(other.engine).name, why="; ".join([why, *refusals.values()])
        )
    why = "; ".join(refusals.values()) or "no engine under `engines:` is quicker"
    return EngineChoice(stage=stage.name, engine=NATIVE, why=why)


def _candidates(project: Project, stage: StagePlan) -> Iterator[EngineLayout]:
    """Yield the engines that are there and quicker by more than the estimates differ, the quickest first."""
    for other in stage.other_engines:
        if other.engine in project.engines and other.ratio <= WORTH_SAYING:
            yield other


def _refusal(project: Project, root: Path, name: str, other: EngineLayout) -> str:
    """Return the reason why an engine is not for this stage; empty where it is."""
    changed = with_engine(project, name, handover_engine(other.engine).name)
    try:
        handed = exported(changed, plan_project(changed, root), root, name, rows={})
    except CharterError as error:
        return f"refuses it ({str(error).splitlines()[0]})"
    if handed.rendered.resume.guarantee not in ENOUGH[project.exact]:
        return f"does not resume as `exact: {project.exact}` demands"
    return ""
