"""`charter run` and `charter resume`: run a project, or go on with it."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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

if TYPE_CHECKING:
    from collections.abc import Sequence

    from charter.run.runner import RunOptions, Work
    from charter.run.sweep import SweepPoint
    from charter.spec.project import Project

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before spending.")]
EventsOption = Annotated[bool, typer.Option("--json-events", help="Print progress as JSON lines on stdout.")]
OnOption = Annotated[
    str | None,
    typer.Option(
        "--on",
        metavar="ENGINE",
        help="Where stages run: local, slurm, ray, kubernetes or subprocess; as resources.infra says, else local.",
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
    bool, typer.Option("--replan", help="Plan anew, though nothing that the run's plan follows from has changed.")
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
    """Run or resume a project, here or on an engine; skips what is done."""
    from charter.run.runner import RunOptions

    where = project or directory
    if template is not None:
        _write_template(template, where)
    loaded, root = open_project(where, set_)
    options = RunOptions(
        only=tuple(only or ()),
        reshard=reshard,
        engine=on,
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

    from charter.run.sweep import run_sweep

    run_sweep(
        points,
        lambda project: run_and_show(project, root, options, json_events=json_events),
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
        loaded, root, RunOptions(reshard=reshard, engine=on, anyway=anyway, replan=replan), json_events=json_events
    )


def run_and_show(project: "Project", root: Path, options: "RunOptions", *, json_events: bool) -> None:
    """Run a project and show its events as they come."""
    from charter.cli.run_view import view
    from charter.report.tracked_cards import CardWriter
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
