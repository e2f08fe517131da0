"""`charter run again` and `charter cost raise`: what the buttons of the dashboard do, in a terminal."""

from pathlib import Path
from typing import Annotated

import typer

from charter.cli.common import DirOption, open_project, project_root


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


def raise_limit(
    limit: Annotated[str, typer.Argument(metavar="USD", help="New limit: 500, $2_000, 5k.")],
    directory: DirOption = Path("."),
) -> None:
    """Raise the budget's limit for this run; charter.yaml stays as it is, and a new limit there has the last word."""
    from charter.run.actions import raise_budget
    from charter.units import format_usd

    before, now = raise_budget(project_root(directory), limit)
    typer.echo(f"Budget raised from {format_usd(before)} to {format_usd(now)}; charter run goes on under it.")
