"""The plan of a run, kept in `plan.json`: what the planner said when the run was started."""

from collections.abc import Iterable
from pathlib import Path

from charter.artifacts import durable
from charter.pipeline.graph import PlannedStage
from charter.pipeline.paths import run_dir
from charter.pipeline.planned_step import write_planned_steps
from charter.plan.plan import Plan
from charter.spec.project import Project

PLAN_FILE = "plan.json"


def write_plan(project: Project, root: Path, stages: Iterable[PlannedStage] = ()) -> tuple[Plan | None, str]:
    """Write the plan as of now, and what it says of each stage's step beside the stage.

    Returns it, or none and what went wrong, since a run on this machine's processors does not depend on it.
    """
    try:
        from charter.plan.project_plan import plan_project

        plan = plan_project(project, root)
        durable.write_json(run_dir(root) / PLAN_FILE, plan.to_json())
        write_planned_steps(plan, stages)
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"
    return plan, ""
