"""One stage: its curves, its attempts, the end of its log."""

from collections.abc import Iterable

from charter.dashboard.page import Context, NoSuchPageError, Page, PageValues, Params
from charter.dashboard.snapshot import Snapshot
from charter.dashboard.tails import LogTail, log_lines_with, log_tail
from charter.dashboard.view.curves import Curve, PhaseShare
from charter.dashboard.view.meter_view import meter_view
from charter.dashboard.view.stage_view import stage_view
from charter.evaluate.outcome import read_results
from charter.report.samples import SampleSource, has_samples
from charter.tracking.jsonl import metrics_file

LOG = "log.txt"
LONGEST_SEARCH = 200
NO_LOG = LogTail(lines=(), whole=True, size_bytes=0)


def build(context: Context) -> PageValues:
    """The page of a stage."""
    project, name = context.project, context.params["stage"]
    stage = project.stage(name)
    if stage is None:
        names = ", ".join(item.name for item in project.stages) or "none"
        raise NoSuchPageError(f"{project.name} has no stage {name!r}; its stages are {names}")
    curves: tuple[Curve, ...] = ()
    phases: tuple[PhaseShare, ...] = ()
    log, meter, results = NO_LOG, None, None
    is_read = False
    search = context.asked("log").strip()[:LONGEST_SEARCH]
    if stage.directory is not None:
        curves, phases = context.site.curves.of(metrics_file(stage.directory))
        log = log_lines_with(stage.directory / LOG, search) if search else log_tail(stage.directory / LOG)
        meter = meter_view(context.site.meters.rows(stage.directory))
        results = read_results(stage.directory) if stage.kind == "eval" else None
        is_read = has_samples(SampleSource(stage=name, kind=stage.kind, directory=stage.directory))
    attempts = context.reader.attempts(name) if context.reader else ()
    view = stage_view(
        project, name, curves=curves, phases=phases, log=log, log_search=search, attempts=attempts, meter=meter,
        results=results, has_samples=is_read,
    )  # fmt: skip
    charts = {"curves": [curve.to_json() for curve in view.curves], "meter": meter.charts if meter else []}
    return PageValues(title=f"{name}, {project.name}", model=view, charts=charts)


def each(project: Snapshot) -> Iterable[Params]:
    """One page for every stage."""
    return [{"stage": stage.name} for stage in project.stages]


PAGE = Page(name="stage", path="/p/{project}/stage/{stage}", template="stage.html", build=build, each=each)
