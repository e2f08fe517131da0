"""`charter submit`: send a whole run to an engine, or show what would be sent."""

from pathlib import Path
from typing import Annotated

import typer

from charter.cli.common import DirOption, SetOption, open_project
from charter.cli.run import AnywayOption


def submit(
    stages: Annotated[
        list[str] | None, typer.Argument(help="Only these stages and what they need; all unless given.")
    ] = None,
    directory: DirOption = Path("."),
    on: Annotated[
        str | None,
        typer.Option(
            "--on",
            metavar="ENGINE",
            help="slurm, ray, kubernetes, subprocess, skypilot; to print also sagemaker, vertex, azureml, kfp.",
        ),
    ] = None,
    print_: Annotated[
        bool, typer.Option("--print", help="Show what would be sent for each stage; needs no engine.")
    ] = False,
    set_: SetOption = None,
    anyway: AnywayOption = False,
) -> None:
    """Send the supervisor of a run to an engine, which runs the stages from there."""
    from charter.run.submit import preview, submit_supervisor

    project, root = open_project(directory, set_)
    if print_:
        typer.echo(preview(project, root, on, stages or ()), nl=False)
        return
    path = directory.resolve()
    engine, number = submit_supervisor(project, root, on, stages or (), path=path, overrides=set_ or (), anyway=anyway)
    own = root / "run" / "supervisor"
    log = f"; its own log is in {own}" if own.is_dir() else ""
    typer.echo(f"submitted to {engine}: {number}\n`charter status` and `charter logs STAGE` show how it goes{log}")
