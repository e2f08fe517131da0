"""One stage: its curves, its attempts, the end of its log."""

from collections.abc import Iterable

from charter.dashboard.page import Context, NoSuchPageError, Page, PageValues, Params
from charter.dashboard.snapshot import Snapshot, StageNow
from charter.dashboard.tails import LogTail, log_lines_with, log_tail
from charter.dashboard.view.curves import Curve, PhaseShare, Steady
from charter.dashboard.view.meter_view import meter_view
from charter.dashboard.view.stage_view import CurvesBeside, RunBeside, stage_view
from charter.evaluate.outcome import read_results
from charter.report.samples import SampleSource, has_samples
from charter.tracking.jsonl import metrics_file

LOG = "log.txt"
LONGEST_SEARCH = 200
MOST_BESIDE = 5
"""Other runs on one chart: with more, no line can be told from its neighbours."""
NO_LOG = LogTail(lines=(), whole=True, size_bytes=0)


def build(context: Context) -> PageValues:
    """The page of a stage."""
    project, name = context.project, context.params["stage"]
    stage = project.stage(name)
    if stage is None:
        names = ", ".join(item.name for item in project.stages) or "none"
        raise NoSuchPageError(f"{project.name} has no stage {name!r}; its stages are {names}")
    curves: tuple[Curve, ...] = ()
    steady: Steady = ()
    phases: tuple[PhaseShare, ...] = ()
    log, meter, results = NO_LOG, None, None
    is_read = False
    search = context.asked("log").strip()[:LONGEST_SEARCH]
    if stage.directory is not None:
        curves, steady, phases = context.site.curves.of(metrics_file(stage.directory))
        log = log_lines_with(stage.directory / LOG, search) if search else log_tail(stage.directory / LOG)
        meter = meter_view(context.site.meters.rows(stage.directory))
        results = read_results(stage.directory) if stage.kind == "eval" else None
        is_read = has_samples(SampleSource(stage=name, kind=stage.kind, directory=stage.directory))
    attempts = context.reader.attempts(name) if context.reader else ()
    view = stage_view(
        project, name, curves=curves, steady=steady, phases=phases, log=log, log_search=search, attempts=attempts,
        meter=meter, results=results, has_samples=is_read, beside=beside_of(context, project, stage),
    )  # fmt: skip
    drawn = [curve.to_json(view.beside.of(curve.metric)) for curve in view.curves]
    charts = {"curves": drawn, "meter": meter.charts if meter else []}
    return PageValues(title=f"{name}, {project.name}", model=view, charts=charts)


def beside_of(context: Context, project: Snapshot, stage: StageNow) -> CurvesBeside:
    """The runs that the address lays over the stage's curves (`with=KEY`), and those that it could."""
    wanted = set(context.all_asked("with"))
    if context.links.static or not (wanted or context.asked("beside")):
        return CurvesBeside()
    others = [reader.snapshot() for reader in context.site.readers() if reader.found.key != project.key]
    same = []
    for other in sorted(others, key=lambda other: (other.name != project.name, other.label)):
        its = other.stage(stage.name)
        if its is not None and its.kind == stage.kind and its.directory is not None:
            same.append((other, its.directory))
    drawn = [(other, directory) for other, directory in same if other.key in wanted][:MOST_BESIDE]
    runs = tuple(
        RunBeside(key=other.key, label=other.label, curves=context.site.curves.of(metrics_file(directory))[0])
        for other, directory in drawn
    )
    on = {run.key for run in runs}
    choices = tuple((other.key, other.label, other.key in on) for other, _ in same)
    return CurvesBeside(runs=runs, choices=choices, asked=True)


def each(project: Snapshot) -> Iterable[Params]:
    """One page for every stage."""
    return [{"stage": stage.name} for stage in project.stages]


PAGE = Page(name="stage", path="/p/{project}/stage/{stage}", template="stage.html", build=build, each=each)
