"""The plan of a run: made before its first stage starts, kept in `plan.json`."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from charter.artifacts import durable
from charter.pipeline.graph import PlannedStage
from charter.pipeline.paths import run_dir
from charter.pipeline.planned_step import write_planned_steps
from charter.plan.plan import InfeasiblePlanError, Plan
from charter.spec.project import Project

PLAN_FILE = "plan.json"


@dataclass(frozen=True, kw_only=True)
class PlanNow:
    """The planner's answer before a run starts: a plan, or the reason why there is none."""

    plan: Plan | None = None
    problem: str = ""
    overflow: InfeasiblePlanError | None = None
    """Where the reason is that a stage needs more memory than there is."""


def plan_now(project: Project, root: Path) -> PlanNow:
    """Plan a project as it is now; never raises, since a run on this machine's processors does not depend on it."""
    try:
        from charter.plan.project_plan import plan_project

        return PlanNow(plan=plan_project(project, root))
    except Exception as error:
        # Only bytes that do not fit say that the run must fail. All other errors leave the run as it is: data that
        # cannot be read is reported by the run itself, a missing price or place says nothing about memory, and
        # where no layout was laid out at all (a number format, a division of the batch), the limit may be the
        # planner's own; the checks before the start know what the engines can do.
        overflow = error if isinstance(error, InfeasiblePlanError) and error.is_overflow else None
        return PlanNow(problem=f"{type(error).__name__}: {error}", overflow=overflow)


def keep_plan(plan: Plan, root: Path, stages: Iterable[PlannedStage] = ()) -> str:
    """Write the plan into the run, and its figures for a step beside each stage; returns what went wrong."""
    try:
        durable.write_json(run_dir(root) / PLAN_FILE, plan.to_json())
        write_planned_steps(plan, stages)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""
