"""The plan of a run, kept in `plan.json`: what the planner said when the run was started."""

from pathlib import Path

from charter.artifacts import durable
from charter.pipeline.paths import run_dir
from charter.spec.project import Project

PLAN_FILE = "plan.json"


def write_plan(project: Project, root: Path) -> str | None:
    """Write the plan as of now.

    Returns what went wrong, since a run on this machine does not depend on it.
    """
    try:
        from charter.plan.project_plan import plan_project

        durable.write_json(run_dir(root) / PLAN_FILE, plan_project(project, root).to_json())
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None
