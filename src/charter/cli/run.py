"""`charter run` and `charter resume`: run a project, or go on with it.

Views of a run: redrawn on a terminal, plain lines elsewhere, JSON lines for machines.
"""

import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from charter.cli.common import (
    DirOption,
    SetOption,
    SweepOption,
    VerifyOption,
    keep_chosen_engines,
    open_project,
    wants_live_display,
    with_chosen_engines,
)
from charter.errors import ExitCode
from charter.units import format_seconds, format_usd

if TYPE_CHECKING:
    from collections.abc import Sequence

    from charter.run.runner import RunOptions, Work
    from charter.run.sweep import SweepPoint
    from charter.spec.project import Project


Event = Mapping[str, Any]
PLAIN_EVERY_SECONDS = 10.0
_METRICS = ("loss", "accuracy", "reward_mean", "kl")


class JsonView:
    """Every event as one JSON line on stdout."""

    def __call__(self, event: Event) -> None:
        """Print one event."""
        print(json.dumps(event), flush=True)

    def __enter__(self) -> "JsonView":
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        return None


class PlainView:
    """A line per event, and one per ten seconds of progress."""

    def __init__(self, write: Callable[[str], None] | None = None) -> None:
        self._write = write or (lambda line: print(line, flush=True))
        self._last: dict[str, float] = {}

    def __enter__(self) -> "PlainView":
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        return None

    def __call__(self, event: Event) -> None:
        """Print what an event says, if it is time to."""
        stage = event.get("stage", "")
        if event["event"] == "stage_progress":
            if time.monotonic() - self._last.get(stage, time.monotonic()) >= PLAIN_EVERY_SECONDS:
                self._write(f"{stage:<16} {progress_line(event)}")
                self._last[stage] = time.monotonic()
            return
        if event["event"] == "stage_started":
            self._last[stage] = time.monotonic()
        if (line := event_line(event)) is not None:
            self._write(line)


class LiveView:
    """Finished lines scroll; below them one line per running stage is redrawn."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(highlight=False)
        self._live = Live(console=self._console, refresh_per_second=4, transient=True)
        self._running: dict[str, Event | None] = {}

    def __enter__(self) -> "LiveView":
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        self._live.stop()

    def __call__(self, event: Event) -> None:
        """Redraw, and print what stays."""
        stage = event.get("stage", "")
        match event["event"]:
            case "stage_progress":
                self._running[stage] = event
            case "stage_started":
                self._running[stage] = None
            case "stage_done" | "stage_failed" | "stage_restart" | "stage_interrupted":
                self._running.pop(stage, None)
        if (line := event_line(event)) is not None:
            self._console.print(line, markup=False)
        self._live.update(self._table())

    def _table(self) -> Any:
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        table = Table.grid(padding=(0, 1))
        for stage, event in self._running.items():
            step, target = (event["step"], event["target_step"]) if event else (0, 1)
            words = progress_line(event) if event else "starting"
            table.add_row(f"{stage:<16}", ProgressBar(total=max(1, target), completed=step, width=20), words)
        return table


def progress_line(event: Event) -> str:
    """`step 40/120 · 3.2 steps/s · 25 s left · loss 2.31 · $0.01`."""
    rate, left = event.get("rate_per_second"), event["target_step"] - event["step"]
    parts = [f"step {event['step']}/{event['target_step']}"]
    if rate:
        parts += [f"{rate:.3g} {event.get('unit', 'steps')}/s", f"{format_seconds(left / rate)} left"]
    metrics = event.get("metrics", {})
    parts += [f"{name} {metrics[name]:.4g}" for name in _METRICS if name in metrics]
    if event.get("cost_usd") is not None:
        parts.append(f"{format_usd(event['cost_usd'])} so far")
    return " · ".join(parts)


def event_line(event: Event) -> str | None:
    """One event as a line, None for those that are not worth one."""
    stage = f"{event.get('stage', ''):<16}"
    match event["event"]:
        case "stage_skipped":
            return f"{stage} nothing to do: {event['why']}"
        case "stage_pending":
            return f"{stage} to run: {event['why']}"
        case "stage_started":
            where = f" from step {event['first_step']}" if event["first_step"] else ""
            again = f" (attempt {event['number']})" if event["number"] > 1 else ""
            place = f" on {', '.join(event['nodes'][:4])}" if event.get("nodes") else ""
            return f"{stage} started{where}{again}{place}"
        case "stage_queued":
            return f"{stage} submitted as {event['where']}"
        case "job_found":
            return f"going on with {event['engine']} job {event['job']}, which is {event['state']}"
        case "job_cancelled":
            return f"{stage} ended {event['engine']} job {event['job']}, which nobody waits for"
        case "job_left":
            return f"jobs of {event['engine']} may still run, locked out: {event['message']}"
        case "stage_done":
            return f"{stage} done in {format_seconds(event['seconds'])}"
        case "stage_restart":
            wait = event["wait_seconds"]
            return f"{stage} {event['message']}; restart in {wait:g} s, {event['reason']}"
        case "stage_failed":
            return f"{stage} failed: {event['message']}"
        case "stage_interrupted":
            return f"{stage} stopped at step {event['step']}"
        case "stage_note":
            return f"{stage} {event['message']}"
        case "attempt_abandoned":
            return f"{stage} an earlier attempt was killed at step {event['step']}"
        case "plan_failed":
            return f"the plan could not be made, so none is kept beside this run: {event['message']}"
        case "replica_failed" | "replica_note":
            return f"copies: {event['message']}"
        case "tracking_behind":
            return f"tracking: {event['message']}"
        case (
            "budget_unpriced" | "budget_warning" | "budget_hold" | "stage_idle" | "overoptimisation" | "ledger_rebuilt"
        ):
            return str(event["message"])
        case "stopping":
            return "stopping at the next safe point (Ctrl-C again to stop at once)"
    return None


def view(*, as_json: bool, live: bool) -> "JsonView | PlainView | LiveView":
    """The view for this output."""
    if as_json:
        return JsonView()
    return LiveView() if live else PlainView()


YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before spending.")]
EventsOption = Annotated[bool, typer.Option("--json-events", help="Print progress as JSON lines on stdout.")]
OnOption = Annotated[
    str | None,
    typer.Option(
        "--on",
        metavar="LAUNCHER",
        help="Where stages run: local, slurm, ray, kubernetes or subprocess; if left out, as resources.infra says, "
        "else local.",
    ),
]
ReshardOption = Annotated[
    bool, typer.Option("--reshard", help="Go on although threads, device or versions changed; not bit-identical.")
]
AnywayOption = Annotated[
    bool, typer.Option("--anyway", help="Start although a stage does not fit by the plan (else exit code 3).")
]

AcceptModelOption = Annotated[
    list[str] | None,
    typer.Option(
        "--accept-model",
        metavar="MODEL",
        help="Take what an endpoint serves now as a new revision: finished stages stay, others start anew; repeatable.",
    ),
]
ReplanOption = Annotated[
    bool, typer.Option("--replan", help="Plan anew, even if nothing that the run's plan rests on has changed.")
]


def run(
    project: Annotated[
        Path | None, typer.Argument(help="Project directory or charter.yaml; -C is the same.", show_default=False)
    ] = None,
    directory: DirOption = Path("."),
    yes: YesOption = False,
    json_events: EventsOption = False,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="STAGE", help="Run this stage and what it needs; repeatable.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check, say what would run and why; start nothing.")
    ] = False,
    set_: SetOption = None,
    template: Annotated[
        str | None, typer.Option("--template", help="Write this template into the directory first.")
    ] = None,
    reshard: ReshardOption = False,
    on: OnOption = None,
    anyway: AnywayOption = False,
    replan: ReplanOption = False,
    accept_model: AcceptModelOption = None,
    sweep: SweepOption = None,
) -> None:
    """Run or resume a project, here or on a scheduler; skip what is done."""
    from charter.run.runner import RunOptions

    where = project or directory
    if template is not None:
        _write_template(template, where)
    loaded, root = open_project(where, set_)
    options = RunOptions(
        only=tuple(only or ()),
        reshard=reshard,
        launcher=on,
        anyway=anyway,
        replan=replan,
        accept_models=tuple(accept_model or ()),
    )
    points = None
    if sweep is not None:
        from charter.run.sweep import sweep_points

        points = sweep_points(where, loaded, sweep, set_ or ())
    loaded, _ = with_chosen_engines(loaded, root, again=replan, out=sys.stderr)
    if dry_run:
        for item in points or ():
            print(f"{item.point.label}: {' '.join(item.point.overrides) or 'the file as it is'}")
        _show_work(loaded, root, options)
        return
    _confirm(loaded, yes=yes)
    keep_chosen_engines(loaded, root)
    if points is not None:
        _run_points(points, root, options, json_events=json_events)
        print(f"Next: charter report --sweep {sweep} -C {root}")
        return
    run_and_show(loaded, root, options, json_events=json_events)


def _run_points(points: "Sequence[SweepPoint]", root: Path, options: "RunOptions", *, json_events: bool) -> None:
    import sys
    from dataclasses import replace

    from charter.run.sweep import run_sweep

    run_sweep(
        points,
        lambda item: run_and_show(item.project, root, replace(options, point=item), json_events=json_events),
        lambda line: print(line, file=sys.stderr if json_events else sys.stdout, flush=True),
    )


def resume(
    directory: DirOption = Path("."),
    json_events: EventsOption = False,
    verify: VerifyOption = False,
    reshard: ReshardOption = False,
    on: OnOption = None,
    anyway: AnywayOption = False,
    replan: ReplanOption = False,
) -> None:
    """Continue an interrupted run from its last complete checkpoints (as `charter run` does)."""
    from charter.run.runner import RunOptions
    from charter.run.status import status_of

    loaded, root = open_project(directory)
    loaded, _ = with_chosen_engines(loaded, root, again=replan, out=sys.stderr)
    keep_chosen_engines(loaded, root)
    if verify:
        status_of(loaded, root, thorough=True)
    run_and_show(
        loaded, root, RunOptions(reshard=reshard, launcher=on, anyway=anyway, replan=replan), json_events=json_events
    )


def run_and_show(project: "Project", root: Path, options: "RunOptions", *, json_events: bool) -> None:
    """Run a project and show its events as they come."""
    from charter.report.export import CardWriter
    from charter.run.runner import run_project

    with view(as_json=json_events, live=wants_live_display()) as show:
        work = run_project(project, root, options, [show, CardWriter(project, root)])
    if not json_events:
        print(_summary(work, root))
        _print_outcome(root)


def _summary(work: "Work", root: Path) -> str:
    if not work.todo:
        count = len(work.verdicts)
        return f"nothing to be done: all {count} stages are done and their outputs verified"
    return f"done; {len(work.todo)} of {len(work.verdicts)} stages ran; results are in {root / 'run' / 'stages'}"


def _print_outcome(root: Path) -> None:
    """Print what the run says: is the policy better, what did it cost, what to read next."""
    from charter.errors import CharterError
    from charter.report.cost_text import cost_words
    from charter.report.overview import overview
    from charter.report.read import read_run
    from charter.report.results import outcomes

    try:
        run = read_run(root, with_metrics=False)
    except CharterError:  # the run itself is done; what cannot be read now is for `charter report` to say
        return
    print(cost_words(overview(run)))
    for outcome in outcomes(run):
        for comparison in outcome.comparisons:
            print(comparison)
    print(
        f"Next: charter report samples -C {root} · charter report -C {root} · "
        f"charter cost -C {root} · charter ui {root}"
    )


def _show_work(project: "Project", root: Path, options: "RunOptions") -> None:
    from charter.run.approval import waits_for_approval
    from charter.run.runner import check_work, find_work, plan_work

    work = find_work(project, root, options)
    running = {
        stage.name: "would wait" if waits_for_approval(stage, work.pipeline.root) else "would run"
        for stage in work.todo
    }
    for name, verdict in work.verdicts.items():
        print(f"{name:<16} {running.get(name, 'stays'):<10} {verdict.why}")
    check_work(plan_work(work, options), options)


def _confirm(project: "Project", *, yes: bool) -> None:
    """Ask before a priced run that somebody started by hand."""
    import sys

    if yes or project.resources.price is None or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return
    if not typer.confirm(f"This machine is priced at ${project.resources.price:g} per hour. Start?", default=True):
        raise typer.Exit(ExitCode.USAGE)


def _write_template(name: str, directory: Path) -> None:
    from charter.templates.shipped import find_template, write_template

    write_template(find_template(name), directory)


def again(
    stage: Annotated[str, typer.Argument(help="Stage that is to be computed anew.")],
    directory: DirOption = Path("."),
) -> None:
    """Set a stage's directory aside, so that the next charter run computes it anew; stages that read it stay done."""
    from charter.run.actions import rerun_stage
    from charter.run.graph import build_pipeline

    project, root = open_project(directory)
    target = rerun_stage(build_pipeline(project, root), stage)
    typer.echo(f"Set aside as {target}; charter run computes {stage} anew.")
