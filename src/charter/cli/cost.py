"""`charter cost`: what was spent, where it went, what is still to come."""

from pathlib import Path
from typing import Annotated

import typer

from charter.cli.common import DirOption, JsonOption, print_json, project_root, write_asked
from charter.cli.cost_own import buy_or_rent
from charter.cli.cost_reconcile import reconcile

cost_app = typer.Typer(
    help="What was spent against the plan, what was lost, and the forecast.",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@cost_app.callback(invoke_without_command=True)
def cost(context: typer.Context, directory: DirOption = Path("."), json_: JsonOption = False) -> None:
    """What was spent against the plan, what was lost, and the forecast."""
    context.obj = (directory, json_)
    if context.invoked_subcommand is None:
        _report(directory, as_json=json_)


cost_app.command("buy-or-rent")(buy_or_rent)
cost_app.command("reconcile")(reconcile)


@cost_app.command("report")
def cost_report(context: typer.Context, directory: DirOption = Path("."), json_: JsonOption = False) -> None:
    """Plan against actual by stage, waste, cost per unit, budget."""
    _report(_chosen(context, directory), as_json=json_ or context.obj[1])


@cost_app.command("export")
def cost_export(
    context: typer.Context,
    focus: Annotated[
        Path, typer.Option("--focus", metavar="FILE.csv", help="Where to write the charges, in FOCUS 1.2 columns.")
    ],
    directory: DirOption = Path("."),
) -> None:
    """Write every attempt, and the calls to every server, as charges in a FOCUS 1.2 CSV, for FinOps tools."""
    from charter.ledger.focus import charge, export_csv
    from charter.ledger.usage import usage_charge
    from charter.report.read import read_run

    run = read_run(project_root(_chosen(context, directory)), with_metrics=False)
    charges = [*(charge(item) for item in run.accounted), *(usage_charge(item) for item in run.usage)]
    write_asked("--focus", focus, export_csv(charges), make_directory=True)
    typer.echo(f"Wrote {len(charges)} charge{'' if len(charges) == 1 else 's'} to {focus}")


def _chosen(context: typer.Context, directory: Path) -> Path:
    """`charter cost -C DIR report` and `charter cost report -C DIR` mean the same."""
    before: Path = context.obj[0]
    return before if directory == Path(".") else directory


def _report(directory: Path, *, as_json: bool) -> None:
    from charter.cli.tables import console
    from charter.report.cost import cost_json
    from charter.report.cost_text import print_cost
    from charter.report.overview import overview
    from charter.report.read import read_run

    run = read_run(project_root(directory), with_metrics=False, check_calls=True)
    view = overview(run)
    if as_json:
        print_json(cost_json(view, run.accounted, run.usage))
    else:
        print_cost(view, console(markup=True))
