"""Pages of a run: the run itself, each of its stages, and its cost (past, now, forecast)."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from charter.artifacts.group import LOG
from charter.dashboard.pages.pieces import Piece, piece
from charter.dashboard.pages.plan import KeptPlan, before_the_start, kept_plan
from charter.dashboard.render import Context, NoSuchPageError, PageValues, Params, WebPage
from charter.dashboard.site import DrawnMetrics
from charter.dashboard.snapshot import CostGroup, LogTail, Snapshot, StageNow, log_lines_with, log_tail
from charter.dashboard.view.run_parts import (
    Curve,
    Eta,
    EventLine,
    MeterView,
    OutputFile,
    StageOutputs,
    eta_of,
    event_lines,
    meter_view,
    stage_files,
)
from charter.dashboard.view.run_view import Money, RunView, StageRow, money_of, run_view
from charter.engines.project import load_project
from charter.errors import CharterError
from charter.evaluate.outcome import EvaluationOutcome, outcome_of, read_results
from charter.ledger import Accounted
from charter.ledger.attempt import Attempt
from charter.ledger.sums import Sums
from charter.metering.row import JOULES_PER_KILOWATT_HOUR
from charter.report.results import interval_text, value_text
from charter.report.samples import SampleSource, has_samples
from charter.run.actions import check_approvable
from charter.run.approval import Sampled, read_approval, samples_of
from charter.run.events import actions_of
from charter.run.graph import build_pipeline
from charter.run.paths import run_dir
from charter.tracking.base import metrics_file
from charter.tracking.progress import EVENTS_FILE


@dataclass(frozen=True, kw_only=True)
class RunPage(RunView):
    """The run page: what runs, and the plan before and after."""

    before: Piece | None
    """The plan of a project that has not started."""
    kept: KeptPlan | None
    """The plan that the run was started with."""


def build(context: Context) -> PageValues:
    """The run page."""
    project = context.project
    view = run_view(project, outcomes=_outcomes(project))
    fresh = project.plan is None and not project.ledger.attempts and bool(project.stages)
    before = piece(context, before_the_start(project), f"/p/{project.key}/plan/piece") if fresh else None
    first = None if project.plan is None else kept_plan(project.plan)
    return PageValues(title=project.name, model=RunPage(**vars(view), before=before, kept=first))


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


FILES = WebPage(name="files", path="/p/{project}/files", template="files.html", build=build_files)
ACTIONS = WebPage(name="actions", path="/p/{project}/actions", template="actions.html", build=build_actions)
PAGE = WebPage(name="run", path="/p/{project}", template="run.html", build=build, label="Run")


@dataclass(frozen=True, kw_only=True)
class StageFigure:
    """A measured figure as the page writes it."""

    label: str
    value: str
    interval: str
    number: str
    note: str


def figure_rows(results: Mapping[str, Any]) -> tuple[StageFigure, ...]:
    """The figures of an evaluation, in their order."""
    return tuple(
        StageFigure(
            label=str(figure.get("label") or figure.get("key") or ""),
            value=value_text(figure),
            interval=interval_text(figure),
            number=f"{figure['n']:,}" if isinstance(figure.get("n"), int) else "",
            note=str(figure.get("note") or ""),
        )
        for figure in results["figures"]
    )


@dataclass(frozen=True, kw_only=True)
class RunBeside:
    """The same stage of another run, whose curves lie over this one's."""

    key: str
    label: str
    curves: tuple[Curve, ...]

    def curve(self, metric: str) -> Curve | None:
        """Its curve of a metric; None where it has logged none that changes."""
        return next((curve for curve in self.curves if curve.metric == metric), None)


@dataclass(frozen=True, kw_only=True)
class CurvesBeside:
    """Runs whose curves lie over those of a stage, and runs that may."""

    runs: tuple[RunBeside, ...] = ()
    choices: tuple[tuple[str, str, bool], ...] = ()
    """Key and label of each run with a stage of this name and kind, and whether it is chosen."""
    asked: bool = False
    """Whether the choice is shown."""

    def of(self, metric: str) -> tuple[tuple[str, Curve], ...]:
        """The curves of a metric by the label of their run."""
        return tuple((run.label, curve) for run in self.runs if (curve := run.curve(metric)) is not None)


@dataclass(frozen=True, kw_only=True)
class StagePage:
    """One stage, its curves and its log."""

    row: StageRow
    stage: StageNow
    before: StageNow | None
    after: StageNow | None
    readers: tuple[str, ...]
    """Stages that read what this one makes."""
    attempts: tuple[Accounted, ...]
    more_attempts: int
    """Older ones that are not shown."""
    drawn: DrawnMetrics
    log: LogTail
    meter: MeterView | None
    """None where nothing was metered."""
    ends_in: float | None
    outcome: EvaluationOutcome | None = None
    """Of a finished evaluation."""
    figures: tuple[StageFigure, ...] = ()
    beside: CurvesBeside = CurvesBeside()
    has_samples: bool = False
    """Whether it has written something to read."""
    log_search: str = ""
    """The text of the lines that `log` has; empty where it is the end of the log."""

    @property
    def phase_parts(self) -> tuple[tuple[str, float], ...]:
        """The shares of the phases, with the class of each one's colour."""
        return tuple((f"t{index}", phase.share) for index, phase in enumerate(self.drawn.phases))


def stage_view(
    snapshot: Snapshot,
    name: str,
    *,
    drawn: DrawnMetrics,
    log: LogTail,
    log_search: str = "",
    attempts: Sequence[Accounted],
    meter: MeterView | None = None,
    results: Mapping[str, Any] | None = None,
    beside: CurvesBeside | None = None,
    has_samples: bool = False,
) -> StagePage:
    """The page of the stage of that name, which must be there."""
    rows = run_view(snapshot).rows
    index = next(index for index, row in enumerate(rows) if row.name == name)
    row = rows[index]
    eta = eta_of(snapshot)
    return StagePage(
        row=row,
        stage=row.stage,
        before=rows[index - 1].stage if index else None,
        after=rows[index + 1].stage if index + 1 < len(rows) else None,
        readers=tuple(other.name for other in snapshot.stages if name in other.inputs),
        attempts=tuple(reversed(attempts)),
        more_attempts=row.attempts - len(attempts),
        drawn=drawn,
        log=log,
        meter=meter,
        ends_in=eta.ends_in.get(name),
        outcome=None if results is None else outcome_of(name, results),
        beside=beside or CurvesBeside(),
        has_samples=has_samples,
        log_search=log_search,
        figures=() if results is None else figure_rows(results),
    )


LONGEST_SEARCH = 200
MOST_BESIDE = 5
"""Other runs on one chart: with more, no line can be told from its neighbours."""
NO_LOG = LogTail(lines=(), whole=True, size_bytes=0)


def build_stage(context: Context) -> PageValues:
    """The page of a stage."""
    project, name = context.project, context.params["stage"]
    stage = project.stage(name)
    if stage is None:
        names = ", ".join(item.name for item in project.stages) or "none"
        raise NoSuchPageError(f"{project.name} has no stage {name!r}; its stages are {names}")
    drawn = DrawnMetrics(curves=())
    log, meter, results = NO_LOG, None, None
    is_read = False
    search = context.asked("log").strip()[:LONGEST_SEARCH]
    if stage.directory is not None:
        drawn = context.site.curves.of(metrics_file(stage.directory), wait=context.links.static)
        log = log_lines_with(stage.directory / LOG, search) if search else log_tail(stage.directory / LOG)
        meter = meter_view(context.site.meters.rows(stage.directory))
        results = read_results(stage.directory) if stage.kind == "eval" else None
        is_read = has_samples(SampleSource(stage=name, kind=stage.kind, directory=stage.directory))
    attempts = context.reader.attempts(name) if context.reader else ()
    view = stage_view(
        project, name, drawn=drawn, log=log, log_search=search, attempts=attempts, meter=meter,
        results=results, has_samples=is_read, beside=beside_of(context, project, stage),
    )  # fmt: skip
    curves = [curve.to_json(view.beside.of(curve.metric)) for curve in drawn.curves]
    charts = {"curves": curves, "meter": meter.charts if meter else []}
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
        RunBeside(key=other.key, label=other.label, curves=context.site.curves.of(metrics_file(directory)).curves)
        for other, directory in drawn
    )
    on = {run.key for run in runs}
    choices = tuple((other.key, other.label, other.key in on) for other, _ in same)
    return CurvesBeside(runs=runs, choices=choices, asked=True)


def each(project: Snapshot) -> Iterable[Params]:
    """One page for every stage."""
    return [{"stage": stage.name} for stage in project.stages]


STAGE = WebPage(name="stage", path="/p/{project}/stage/{stage}", template="stage.html", build=build_stage, each=each)


SHOWN_RECORDS = 5
"""Records of each input."""


@dataclass(frozen=True, kw_only=True)
class ApprovalView:
    """The page."""

    stage: str
    kind: str
    fingerprint: str = ""
    inputs: tuple[Sampled, ...] = ()
    approved_by: str = ""
    """Empty where nobody has yet."""
    refusal: str = ""
    """Why it cannot be approved now; empty where it can."""


def build_approval(context: Context) -> PageValues:
    """Samples of what the stage reads, drawn by its fingerprint, so that everybody sees the same."""
    project, name = context.project, context.params["stage"]
    root = context.reader.found.root if context.reader else None
    listed = project.stage(name)
    if root is None or listed is None:
        raise NoSuchPageError(f"{project.name} has no stage {name!r}")
    model = ApprovalView(stage=name, kind=listed.kind)
    try:
        pipeline = build_pipeline(load_project(root, env=dict(os.environ)), root)
        stage = pipeline.stage(name)
        given = read_approval(stage, root)
        model = replace(model, fingerprint=stage.asked_fingerprint, approved_by=given.by if given else "")
        check_approvable(pipeline, stage)
        model = replace(model, inputs=tuple(samples_of(stage, SHOWN_RECORDS, seed=pipeline.project.seed)))
    except CharterError as error:
        model = replace(model, refusal=str(error))
    return PageValues(title=f"Approve {name}, {project.name}", model=model)


APPROVE = WebPage(
    name="approve",
    path="/p/{project}/approve/{stage}",
    template="approve.html",
    build=build_approval,
    each=lambda _: (),
)


OF_NO_STAGE = "(no stage)"
"""What no stage alone has caused: storage, fees."""


@dataclass(frozen=True, kw_only=True)
class Split:
    """Cost of one stage, owner, tag or accelerator, and its parts, which add up to it."""

    name: str
    colour: int
    kept: float
    """What was paid for work that was kept."""
    lost: float
    """Lost to kills, preemption and failures."""
    idle: float
    """Allocated, and nothing was done."""
    calls: float
    """Paid to servers of models."""
    other: float
    """Storage, transfer, fees, less credits."""
    accelerator_seconds: float
    attempts: int

    @property
    def whole(self) -> float:
        """All of it."""
        return self.kept + self.lost + self.idle + self.calls + self.other

    @property
    def drawn(self) -> float:
        """Length of its bar: all of it before credits, which have none."""
        return self.whole - min(0.0, self.other)


@dataclass(frozen=True, kw_only=True)
class Left:
    """Time and money that one stage is still expected to take."""

    name: str
    state: str
    phase: str
    basis: str
    p50_usd: float | None
    p90_usd: float | None
    seconds: float | None


@dataclass(frozen=True, kw_only=True)
class CostView:
    """The whole page."""

    unit: str
    """`usd`, or `seconds` where nothing has a price."""
    money: Money
    stages: tuple[Split, ...]
    accelerators: tuple[Split, ...]
    owners: tuple[Split, ...]
    tags: tuple[Split, ...]
    whole: Split
    running: tuple[Attempt, ...]
    left: tuple[Left, ...]
    forecast_p10: float | None
    forecast_p50: float | None
    forecast_p90: float | None
    eta: Eta
    energy_kwh: float | None
    """What was metered; not power supplies, fans, the building."""

    @property
    def used_columns(self) -> tuple[tuple[str, str], ...]:
        """The parts of spending, beside kept work, that there are any of."""
        names = (("lost", "Lost"), ("idle", "Idle"), ("calls", "Calls"), ("other", "Other"))
        return tuple((key, title) for key, title in names if getattr(self.whole, key))


def cost_view(snapshot: Snapshot) -> CostView:
    """The cost page of a project."""
    ledger, eta = snapshot.ledger, eta_of(snapshot)
    money = money_of(snapshot, eta)
    is_work_priced = (
        ledger.whole.totals.priced_attempts or not ledger.whole.totals.attempts or ledger.whole.calls.requests
    )
    unit = "usd" if money.spent_usd is not None and is_work_priced else "seconds"
    names = [stage.name for stage in snapshot.stages]
    others = [name for name in ledger.by_stage if name not in names]
    stages = tuple(
        _split(name or OF_NO_STAGE, i % 12, ledger.stage(name), unit) for i, name in enumerate([*names, *others])
    )
    left, spent = eta.left.usd, money.spent_usd
    return CostView(
        unit=unit,
        money=money,
        stages=tuple(split for split in stages if split.whole),
        accelerators=_splits(ledger.by_accelerator, unit),
        owners=_splits(ledger.by_owner, unit),
        tags=_splits(ledger.by_tag, unit),
        whole=_split("all", 0, ledger.whole, unit),
        running=ledger.running,
        left=tuple(_left(stage, eta) for stage in snapshot.stages if stage.state != "done"),
        forecast_p10=spent if left is None else (spent or 0.0) + left.p10,
        forecast_p50=money.forecast_usd,
        forecast_p90=spent if left is None else (spent or 0.0) + left.p90,
        eta=eta,
        energy_kwh=joules / JOULES_PER_KILOWATT_HOUR if (joules := ledger.whole.totals.energy_joules) else None,
    )


def burn_chart(snapshot: Snapshot, view: CostView) -> dict[str, Any]:
    """Money over time: what was spent, the forecast with its band, the limit. Seconds since the first spending."""
    spend = snapshot.ledger.spend
    if not spend:
        return {"points": []}
    start = spend[0][0]
    points = [[moment - start, micro / 1e6] for moment, micro in spend]
    now = max(points[-1][0], snapshot.read_at - start if view.running else points[-1][0])
    spent = view.money.spent_usd or 0.0
    points.append([now, spent])
    eta = view.eta.run_seconds
    ends = None
    if view.left and view.forecast_p50 is not None and eta:
        ends = {
            "at": now + eta, "p10": view.forecast_p10, "p50": view.forecast_p50, "p90": view.forecast_p90,
        }  # fmt: skip
    return {
        "points": points,
        "now": now,
        "spent": spent,
        "end": ends,
        "limit": snapshot.budget_limit_usd,
        "start": start,
    }


def _splits(groups: Iterable[CostGroup], unit: str) -> tuple[Split, ...]:
    return tuple(_split(group.name, index % 12, group.sums, unit) for index, group in enumerate(groups))


def _split(name: str, colour: int, sums: Sums, unit: str) -> Split:
    totals = sums.totals
    if unit == "usd":
        total, idle = totals.micro_usd / 1e6, totals.idle_micro_usd / 1e6
        lost = (totals.lost_to_kills_micro_usd + totals.lost_to_failures_micro_usd) / 1e6
        calls, other = sums.calls.settled_micro_usd / 1e6, sums.other_micro_usd / 1e6
    else:
        total, idle = totals.milliseconds / 1e3, totals.idle_milliseconds / 1e3
        lost = (totals.lost_to_kills_milliseconds + totals.lost_to_failures_milliseconds) / 1e3
        calls = other = 0.0
    return Split(
        name=name,
        colour=colour,
        kept=total - lost - idle,
        lost=lost,
        idle=idle,
        calls=calls,
        other=other,
        accelerator_seconds=totals.billed_unit_milliseconds / 1e3,
        attempts=totals.attempts,
    )


def _left(stage: StageNow, eta: Eta) -> Left:
    rest = eta.left.stages[stage.name]
    return Left(
        name=stage.name,
        state=stage.state,
        phase=stage.phase.value,
        basis=rest.basis,
        p50_usd=rest.usd.p50 if rest.usd else None,
        p90_usd=rest.usd.p90 if rest.usd else None,
        seconds=eta.stage_seconds(stage.name),
    )


def build_cost(context: Context) -> PageValues:
    """The cost page."""
    project = context.project
    view = cost_view(project)
    return PageValues(title=f"Cost, {project.name}", model=view, charts={"burn": burn_chart(project, view)})


COST = WebPage(name="cost", path="/p/{project}/cost", template="cost.html", build=build_cost, label="Cost")
