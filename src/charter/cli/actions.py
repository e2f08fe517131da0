"""`charter run again`, `charter cost raise` and `charter cost add`: what a person does to a run, in a terminal."""

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from charter.cli.common import DirOption, open_project, project_root

DAY = "%Y-%m-%d"


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


def add_fee(
    what: Annotated[str, typer.Argument(metavar="WHAT", help="What is paid for: reserved capacity, a licence.")],
    usd: Annotated[str, typer.Option("--usd", metavar="USD", help="Its price for the whole time: 1200, 5k.")],
    since: Annotated[datetime, typer.Option("--from", formats=[DAY], metavar="DAY", help="First UTC day.")],
    until: Annotated[datetime, typer.Option("--to", formats=[DAY], metavar="DAY", help="Day after the last one.")],
    provider: Annotated[str, typer.Option("--provider", metavar="NAME", help="Who is paid.")] = "",
    stage: Annotated[str, typer.Option("--stage", help="The stage that it is for; the whole run unless given.")] = "",
    directory: DirOption = Path("."),
) -> None:
    """Add a cost that nothing measures to the ledger: the fee of a reserved term, used or not, a licence.

    It counts in budgets, groups, showback and FOCUS rows; what attempts cost stays as it is.
    """
    from charter.run.actions import add_charge
    from charter.units import format_usd

    project, root = open_project(directory)
    charge = add_charge(project, root, what=what, usd=usd, since=since, until=until, provider=provider, stage=stage)
    typer.echo(f"{format_usd((charge.micro_usd or 0) / 1e6)} for {charge.resource} is in the ledger of {charge.run}.")
