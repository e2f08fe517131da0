"""The run: its pipeline, how far it is, what it costs now."""

from charter.dashboard.page import Context, Page, PageValues
from charter.dashboard.snapshot import Snapshot
from charter.dashboard.view.run_view import run_view
from charter.evaluate.outcome import EvaluationOutcome, outcome_of, read_results


def build(context: Context) -> PageValues:
    """The run page."""
    project = context.project
    return PageValues(title=project.name, model=run_view(project, outcomes=_outcomes(project)))


def _outcomes(project: Snapshot) -> tuple[EvaluationOutcome, ...]:
    """Return the outcomes of the finished evaluations."""
    done = [stage for stage in project.stages if stage.kind == "eval" and stage.state == "done" and stage.directory]
    read = [(stage.name, read_results(stage.directory)) for stage in done if stage.directory is not None]
    return tuple(outcome_of(name, results) for name, results in read if results is not None)


PAGE = Page(name="run", path="/p/{project}", template="run.html", build=build, label="Run")
