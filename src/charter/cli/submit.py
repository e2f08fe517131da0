"""`charter submit`: send a whole run to a scheduler, or show what would be sent."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from charter.cli.common import (
    DirOption,
    JsonOption,
    SetOption,
    keep_chosen_engines,
    open_project,
    print_json,
    with_chosen_engines,
)
from charter.cli.run import AnywayOption, ReplanOption
from charter.units import format_seconds, format_usd


def submit(
    stages: Annotated[
        list[str] | None, typer.Argument(help="Only these stages and what they need; all unless given.")
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
