"""`charter run`, `run resume`, `run serve` and `submit`: a project run here or sent away, a model served.

A view of a run is redrawn on a terminal, plain lines elsewhere, JSON lines for machines. `run serve` becomes the
process that serves, so that signals reach it; it must not import torch itself.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from charter.cli.common import (
    DirOption,
    JsonOption,
    SetOption,
    SweepOption,
    VerifyOption,
    keep_chosen_engines,
    open_project,
    print_json,
    wants_live_display,
    with_chosen_engines,
)
from charter.errors import CharterError, ExitCode
from charter.units import format_seconds, format_usd

if TYPE_CHECKING:
    from collections.abc import Sequence

    from charter.run.runner import RunOptions, Work
    from charter.run.sweep import SweepPoint
    from charter.spec.project import Project


Event = Mapping[str, Any]
PLAIN_EVERY_SECONDS = 10.0
_METRICS = ("loss", "accuracy", "reward_mean", "kl")


def print_json_line(event: Event) -> None:
    """Print an event as one JSON line."""
    print(json.dumps(event), flush=True)


class PlainView:
    """A line per event, and one per ten seconds of progress."""

    def __init__(self, write: Callable[[str], None] | None = None) -> None:
        self._write = write or (lambda line: print(line, flush=True))
        self._last: dict[str, float] = {}

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
        settled, most = (format_usd(event.get(name, event["cost_usd"])) for name in ("cost_usd", "cost_usd_most"))
        parts.append(f"{settled} so far" if settled == most else f"{settled} so far, at most {most}")
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


def view(*, as_json: bool, live: bool) -> AbstractContextManager[Callable[[Event], None]]:
    """Return what shows every event on this output."""
    if as_json:
        return nullcontext(print_json_line)
    return LiveView() if live else nullcontext(PlainView())


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


def submit(
    stages: Annotated[
        list[str] | None, typer.Argument(help="Only these stages and what they need; all if left out.")
    ] = None,
    directory: DirOption = Path("."),
    on: Annotated[
        str | None,
        typer.Option(
            "--on",
            metavar="LAUNCHER",
            help="slurm, ray, kubernetes, subprocess, skypilot; with --print also sagemaker, vertex, azureml, kfp.",
        ),
    ] = None,
    print_: Annotated[
        bool, typer.Option("--print", help="Show what would be sent for each stage; needs no cluster.")
    ] = False,
    optimizer: Annotated[
        Path | None,
        typer.Option(
            "--optimizer",
            metavar="PYTHON",
            help="With --on skypilot: show what SkyPilot's own optimizer chooses for this plan; PYTHON is an "
            "interpreter that has SkyPilot.",
        ),
    ] = None,
    json_: JsonOption = False,
    set_: SetOption = None,
    anyway: AnywayOption = False,
    replan: ReplanOption = False,
) -> None:
    """Send a run's supervisor to a scheduler; it starts the stages from there."""
    from charter.run.submit import preview, skypilot_choice, submit_supervisor

    project, root = open_project(directory, set_)
    project, _ = with_chosen_engines(project, root, again=replan, out=sys.stderr)
    path, overrides = directory.resolve(), set_ or ()
    if optimizer is not None:
        _show_choice(skypilot_choice(project, root, on, stages or (), python=optimizer), as_json=json_)
        return
    if print_:
        shown = preview(project, root, on, stages or (), path=path, overrides=overrides, replan=replan, anyway=anyway)
        if json_:
            print_json(shown.to_json())
            return
        if shown.problem:
            typer.echo(f"no plan ({shown.problem}): charter.yaml alone says what is asked for", err=True)
        for refusal in shown.refused:
            typer.echo(f"warning[submit]: not sent as shown: {refusal}", err=True)
        typer.echo(shown.texts, nl=False)
        return
    keep_chosen_engines(project, root)
    engine, number = submit_supervisor(
        project, root, on, stages or (), path=path, overrides=overrides, anyway=anyway, replan=replan
    )
    own = root / "run" / "supervisor"
    log = f"; its own log is in {own}" if own.is_dir() else ""
    typer.echo(f"submitted to {engine}: {number}\n`charter status` and `charter logs STAGE` show how it goes{log}")


def _show_choice(choice: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(dict(choice))
        return
    for task in choice["tasks"]:
        market = "spot" if task["use_spot"] else "on demand"
        accelerators = ", ".join(f"{count:g} x {name}" for name, count in (task["accelerators"] or {}).items())
        place = f"{task['cloud']} {task['region']} ({task['instance_type']}, {market})"
        amounts = f"{format_seconds(task['seconds'])}, {format_usd(task['usd'])}"
        typer.echo(f"{task['task']:16} {accelerators or 'no accelerator'} on {place}: {amounts}")
    total = choice["total"]
    amounts = f"{format_seconds(total['seconds'])}, {format_usd(total['usd'])}"
    typer.echo(f"{'total':16} {amounts}: machines alone, one after the other")


def serve(
    model: Annotated[Path, typer.Argument(help="Hugging Face directory of a language model.", show_default=False)],
    host: Annotated[str, typer.Option(help="Address to listen on; any but this machine's own needs --token.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes any that is free.")] = 0,
    name: Annotated[
        str | None, typer.Option(help="How clients call the model; the directory's name unless given.")
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            metavar="env:NAME|file:PATH", help="Where the token that clients must send is kept; never the token itself."
        ),
    ] = None,
    batch: Annotated[
        int, typer.Option(min=1, help="Requests computed together; with 1 the same request gives the same bits.")
    ] = 16,
    waiting: Annotated[int, typer.Option(min=1, help="Requests that may wait; others are told to come back.")] = 1024,
    threads: Annotated[int, typer.Option(min=1, help="Threads that the model computes with.")] = 1,
    device: Annotated[str, typer.Option(help="cpu, or cuda.")] = "cpu",
) -> None:
    """Serve a language model under OpenAI's API, for small runs and tests; stops on SIGTERM."""
    from charter.inference.serve.protocol import ServeOptions, check_address
    from charter.run.preflight import RUN_PACKAGES, check_packages

    options = ServeOptions(
        directory=str(model),
        host=host,
        port=port,
        name=name,
        token=token,
        threads=threads,
        device=device,
        batch=batch,
        waiting=waiting,
    )
    check_address(options)
    check_packages((*RUN_PACKAGES, "aiohttp"))
    os.execv(sys.executable, [sys.executable, "-m", "charter.inference.serve.server", options.to_json()])
