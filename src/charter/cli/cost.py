"""`charter cost`: what was spent, where it went, what is still to come."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from charter.cli.common import DirOption, JsonOption, loadable_project, open_project, print_json, project_root
from charter.cli.cost_bill import import_bill
from charter.cli.cost_focus import check, export
from charter.cli.cost_own import buy_or_rent
from charter.cli.cost_reconcile import reconcile

if TYPE_CHECKING:
    from charter.report.cost_read import CostFacts

OVER_BUDGET = 4
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
cost_app.command("export")(export)
cost_app.command("check")(check)
cost_app.command("import")(import_bill)


@cost_app.command("report")
def cost_report(context: typer.Context, directory: DirOption = Path("."), json_: JsonOption = False) -> None:
    """Plan against actual by stage, waste, cost per unit, budget."""
    _report(_chosen(context, directory), as_json=json_ or context.obj[1])


@cost_app.command("budget")
def cost_budget(context: typer.Context, directory: DirOption = Path("."), json_: JsonOption = False) -> None:
    """Every limit of the budget: spent, forecast, per hour, state. Exit code 4 when one is reached."""
    from charter.cli.tables import console
    from charter.errors import UsageError
    from charter.report.cost_groups import limits_table
    from charter.report.cost_read import read_costs

    project, root = open_project(_chosen(context, directory))
    if project.budget is None:
        raise UsageError("charter.yaml has no budget; add  budget: {limit: $100}")
    facts = read_costs(project, root, with_groups=False)
    if json_ or context.obj[1]:
        limits = [line.to_json() for line in facts.lines]
        print_json({"schema": "charter.budget/1", "limits": limits, "usd_per_hour": facts.spending.usd_per_hour})
    else:
        console(markup=True).print(limits_table(facts.lines))
    if any(line.share >= 1 for line in facts.lines):
        raise typer.Exit(OVER_BUDGET)


@cost_app.command("advise")
def cost_advise(context: typer.Context, directory: DirOption = Path("."), json_: JsonOption = False) -> None:
    """What would make the run cheaper, and what it saves: fewer or smaller accelerators, spot, idle ones given back."""
    from dataclasses import asdict

    from charter.cli.tables import console
    from charter.report.cost_groups import advice_table
    from charter.report.cost_read import read_advice, read_costs

    project, root = open_project(_chosen(context, directory))
    found = read_advice(read_costs(project, root), root)
    if json_ or context.obj[1]:
        print_json({"schema": "charter.advice/1", "advice": [asdict(item) for item in found]})
    elif found:
        console(markup=True).print(advice_table(found))
    else:
        typer.echo("Nothing is known that would make this run cheaper.")


def _chosen(context: typer.Context, directory: Path) -> Path:
    """`charter cost -C DIR report` and `charter cost report -C DIR` mean the same."""
    before: Path = context.obj[0]
    return before if directory == Path(".") else directory


def _report(directory: Path, *, as_json: bool) -> None:
    from charter.cli.tables import console
    from charter.report.cost import cost_json
    from charter.report.cost_groups import groups_json, limits_table, print_groups
    from charter.report.cost_text import print_cost, print_imported
    from charter.report.overview import overview
    from charter.report.read import read_run

    root = project_root(directory)
    run = read_run(root, with_metrics=False, check_calls=True)
    view, facts = overview(run), _facts(root)
    if as_json:
        print_json({**cost_json(view, run.accounted, run.usage), **(groups_json(facts) if facts else {})})
        return
    terminal = console(markup=True)
    print_cost(view, terminal)
    print_imported(run.accounted, terminal)
    if facts is not None:
        terminal.print()
        print_groups(facts, terminal)
        if len(facts.lines) > 1:
            terminal.print(limits_table(facts.lines))


def _facts(root: Path) -> "CostFacts | None":
    """The sums of the run; None where charter.yaml no longer loads, which the report says."""
    from charter.report.cost_read import read_costs

    project = loadable_project(root)
    return None if project is None else read_costs(project, root)
