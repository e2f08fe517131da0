"""A run: its pipeline, how far it is and what it costs now; actions of people on it; its files."""

from collections.abc import Mapping
from dataclasses import dataclass

from charter.dashboard.page import Context, Page, PageValues
from charter.dashboard.snapshot import Snapshot
from charter.dashboard.view.run_parts import EventLine, OutputFile, StageOutputs, event_lines, stage_files
from charter.dashboard.view.run_view import run_view
from charter.evaluate.outcome import EvaluationOutcome, outcome_of, read_results
from charter.run.events import EVENTS_FILE, actions_of
from charter.run.paths import run_dir


def build(context: Context) -> PageValues:
    """The run page."""
    project = context.project
    return PageValues(title=project.name, model=run_view(project, outcomes=_outcomes(project)))


def _outcomes(project: Snapshot) -> tuple[EvaluationOutcome, ...]:
    """Return the outcomes of the finished evaluations."""
    done = [stage for stage in project.stages if stage.kind == "eval" and stage.state == "done" and stage.directory]
    read = [(stage.name, read_results(stage.directory)) for stage in done if stage.directory is not None]
    return tuple(outcome_of(name, results) for name, results in read if results is not None)


MOST_ACTIONS = 1000
"""Shown on the page; the interface for scripts has all of them."""


@dataclass(frozen=True, kw_only=True)
class ActionsView:
    """Actions of people on a run, newest first."""

    rows: tuple[EventLine, ...]
    all: int
    by: str
    """Whose actions alone are shown; everybody's where it is empty."""
    people: tuple[str, ...]


def build_actions(context: Context) -> PageValues:
    """The page of what people did."""
    project = context.project
    events = actions_of(run_dir(project.root) / EVENTS_FILE)
    by = context.asked("by")
    people = tuple(dict.fromkeys(str(event["by"]) for event in reversed(events) if event.get("by")))
    wanted = [event for event in events if by in ("", event.get("by"))]
    rows = event_lines(wanted, most=MOST_ACTIONS)
    return PageValues(
        title=f"Actions, {project.name}", model=ActionsView(rows=rows, all=len(wanted), by=by, people=people)
    )


MOST_FILES = 100
"""Of one stage on the page."""


@dataclass(frozen=True, kw_only=True)
class FilesView:
    """Files of a run by stage."""

    search: str
    stages: tuple[StageOutputs, ...]
    """All of them; with a search, those that have made a file that it finds."""
    shown: Mapping[str, tuple[OutputFile, ...]]
    more: Mapping[str, int]


def build_files(context: Context) -> PageValues:
    """The page of files: what each stage read and made, and where that came from."""
    project, search = context.project, context.asked("q").strip()[:200]
    stages = stage_files(project, context.reader.files.read) if context.reader else ()
    matching = {stage.name: tuple(file for file in stage.files if file.matches(search)) for stage in stages}
    model = FilesView(
        search=search,
        stages=tuple(stage for stage in stages if matching[stage.name] or not search),
        shown={name: files[:MOST_FILES] for name, files in matching.items()},
        more={name: max(0, len(files) - MOST_FILES) for name, files in matching.items()},
    )
    return PageValues(title=f"Files, {project.name}", model=model)


FILES = Page(name="files", path="/p/{project}/files", template="files.html", build=build_files)
ACTIONS = Page(name="actions", path="/p/{project}/actions", template="actions.html", build=build_actions)
PAGE = Page(name="run", path="/p/{project}", template="run.html", build=build, label="Run")
