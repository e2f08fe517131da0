"""`charter cost`: what was spent, where it went, what is still to come; a limit is raised, a stage is run again."""

import math
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from charter.cli.common import (
    DirOption,
    JsonOption,
    console,
    loadable_project,
    open_project,
    plain_table,
    print_json,
    project_root,
    write_asked,
)
from charter.errors import DataError, UsageError
from charter.units import format_usd

if TYPE_CHECKING:
    from charter.cost.own_hardware import OwnedServer, OwnOrRent
    from charter.ledger.call import CallSums
    from charter.ledger.focus_columns import Version
    from charter.report.cost import CostFacts
    from charter.run.accounts import BillImported, BillReconciled


DAY = "%Y-%m-%d"


def add_fee(
    what: Annotated[
        str,
        typer.Argument(metavar="WHAT", help="What is paid for: reserved capacity, a licence; or why money came back."),
    ],
    usd: Annotated[
        str, typer.Option("--usd", metavar="USD", help="Its price for the whole time: 1200, 5k; a credit: -200.")
    ],
    since: Annotated[datetime, typer.Option("--from", formats=[DAY], metavar="DAY", help="First UTC day.")],
    until: Annotated[datetime, typer.Option("--to", formats=[DAY], metavar="DAY", help="Day after the last one.")],
    provider: Annotated[str, typer.Option("--provider", metavar="NAME", help="Who is paid.")] = "",
    stage: Annotated[str, typer.Option("--stage", help="The stage that it is for; the whole run unless given.")] = "",
    directory: DirOption = Path("."),
) -> None:
    """Add a cost that nothing measures to the ledger: the fee of a reserved term, used or not; a licence.

    An amount below zero is a credit or refund. Both count in budgets, groups, showback and FOCUS rows; what attempts
    cost stays as it is, and so does what was added before.
    """
    from charter.run.actions import add_charge

    project, root = open_project(directory)
    charge = add_charge(project, root, what=what, usd=usd, since=since, until=until, provider=provider, stage=stage)
    typer.echo(f"{format_usd((charge.micro_usd or 0) / 1e6)} for {charge.resource} is in the ledger of {charge.run}.")


def raise_limit(
    limit: Annotated[str, typer.Argument(metavar="USD", help="New limit: 500, $2_000, 5k.")],
    of: Annotated[
        str, typer.Option("--of", metavar="KEY", help="Another limit: budget.owners.ann, budget.tags.team=red.")
    ] = "budget.limit",
    directory: DirOption = Path("."),
) -> None:
    """Raise a limit for this run; charter.yaml stays as it is, and a new limit there has the last word."""
    from charter.run.actions import raise_budget

    before, now = raise_budget(project_root(directory), limit, of=of)
    which = "Budget" if of == "budget.limit" else of
    typer.echo(f"{which} raised from {format_usd(before)} to {format_usd(now)}; charter run goes on under it.")


BILL_SCHEMA = "charter.bill/1"
MOST_LINES = 40
FileArgument = Annotated[
    Path,
    typer.Argument(
        metavar="BILL.csv",
        help="FOCUS, an AWS Cost and Usage Report, or CSV with cost_usd, resource, start, end, hours.",
    ),
]
ProviderOption = Annotated[
    list[str] | None,
    typer.Option(
        "--provider", metavar="NAME", help="Whose bill it is: only attempts there should be on it; repeatable."
    ),
]
BillDryRunOption = Annotated[bool, typer.Option("--dry-run", help="Compare, and keep nothing.")]


def import_bill(
    context: typer.Context,
    file: FileArgument,
    provider: ProviderOption = None,
    dry_run: BillDryRunOption = False,
    directory: DirOption = Path("."),
    json_: JsonOption = False,
) -> None:
    """Compare a provider's bill with the ledger, line by line, and keep both; nothing is overwritten."""
    from charter.run import accounts

    before, json_before = context.obj
    project, root = open_project(before if directory == Path(".") else directory)
    done = accounts.import_bill(project, root, file, dry_run=dry_run, providers=provider or ())
    if json_ or json_before:
        print_json(_bill_as_json(done))
    else:
        _bill_print(done, dry_run=dry_run)


def _bill_as_json(done: "BillImported") -> dict[str, Any]:
    from charter.ledger.bill import MEANINGS, sums_by_kind

    return {
        "schema": BILL_SCHEMA,
        "bill": {"name": done.bill.name, "format": done.bill.format, "lines": len(done.bill.lines)},
        "billed_usd": f"{done.bill.usd:f}",
        "ledger_usd": f"{done.ledger_usd:f}",
        "agrees": done.agrees,
        "stored": done.stored,
        "kinds": [
            {"kind": kind, "meaning": MEANINGS[kind], "count": count, "difference_usd": f"{usd:f}"}
            for kind, (count, usd) in sums_by_kind(done.findings).items()
        ],
        "findings": [item.to_json() for item in done.findings],
    }


def _bill_print(done: "BillImported", *, dry_run: bool) -> None:
    from charter.ledger.bill import MEANINGS, sums_by_kind

    for kind, (count, usd) in sums_by_kind(done.findings).items():
        typer.echo(f"{count:>8}  {MEANINGS[kind]} ({usd:+.2f} USD)")
    different = [item for item in done.findings if item.kind != "equal"]
    for item in different[:MOST_LINES]:
        where = f"line{'' if len(item.lines) == 1 else 's'} {', '.join(map(str, item.lines))}: " if item.lines else ""
        typer.echo(f"  {where}{item.what}: {item.why or MEANINGS[item.kind]}")
    if len(different) > MOST_LINES:
        typer.echo(f"  ... and {len(different) - MOST_LINES} more; --json has all of them")
    typer.echo(f"The bill: {done.bill.usd:.2f} USD. The ledger: {done.ledger_usd:.2f} USD.")
    if not done.stored:
        typer.echo("Nothing was kept (--dry-run)." if dry_run else "This bill is in the ledger already.")


FocusOption = Annotated[
    Path,
    typer.Option("--focus", metavar="FILE", help="Where to write the charges as FOCUS: FILE.csv or FILE.parquet."),
]
FocusVersionOption = Annotated[
    str | None, typer.Option("--focus-version", metavar="1.2|1.3", help="Version of the specification.")
]


def _focus_version(value: str | None) -> "Version | None":
    from charter.ledger.focus_columns import VERSIONS

    if value is not None and value not in VERSIONS:
        raise UsageError(f"--focus-version {value}: the versions are {' and '.join(VERSIONS)}")
    return next((version for version in VERSIONS if version == value), None)


def export(
    context: typer.Context,
    focus: FocusOption,
    focus_version: FocusVersionOption = None,
    directory: DirOption = Path("."),
) -> None:
    """Write every attempt, call, stored byte, fee and credit as charges in FOCUS 1.2 or 1.3, for FinOps tools.

    Idle and lost money stands in columns of its own (x_IdleCost, x_LostCost): it is part of the cost, not beside it.
    """
    from charter.ledger.focus_check import to_csv, to_parquet
    from charter.ledger.focus_columns import DEFAULT_VERSION
    from charter.report.cost import focus_dataset

    before, _ = context.obj
    root = project_root(before if directory == Path(".") else directory)
    suffix = focus.suffix.lower()
    if suffix not in (".csv", ".parquet"):
        raise UsageError(f"--focus {focus}: is neither .csv nor .parquet; give FILE.csv or FILE.parquet")
    version = _focus_version(focus_version) or DEFAULT_VERSION
    rows = focus_dataset(loadable_project(root), root)
    content = to_csv(rows, version) if suffix == ".csv" else to_parquet(rows, version)
    write_asked("--focus", focus, content, make_directory=True)
    unpriced = sum(row.get("x_IsPriced") == "false" for row in rows)
    said = f" ({unpriced} of them without a price, with cost 0 and x_IsPriced false)" if unpriced else ""
    typer.echo(f"Wrote {len(rows)} charge{'' if len(rows) == 1 else 's'} to {focus} as FOCUS {version}{said}")


def check(
    file: Annotated[Path, typer.Argument(metavar="FILE.csv", help="A FOCUS dataset, by Charter or anyone else.")],
    focus_version: FocusVersionOption = None,
    json_: JsonOption = False,
) -> None:
    """Check that a FOCUS CSV keeps the rules of its version of the specification; exit code 8 if it does not."""
    import csv
    import io

    from charter.ledger.focus_check import check_focus
    from charter.ledger.focus_columns import version_of

    version = _focus_version(focus_version)
    if not file.is_file():
        raise UsageError(f"there is no file {file}; give a FOCUS dataset as CSV")
    try:
        rows = list(csv.reader(io.StringIO(file.read_text(encoding="utf-8-sig"), newline="")))
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{file} is not CSV ({error})") from None
    header, body = (rows[0], rows[1:]) if rows else ([], [])
    version = version or version_of(header)
    violations = check_focus(header, (dict(zip(header, row, strict=False)) for row in body), version)
    if json_:
        problems = [{"row": item.row, "column": item.column, "message": item.message} for item in violations]
        answer = {"schema": "charter.focus_check/1", "focus_version": version, "rows": len(body)}
        print_json({**answer, "problems": problems})
    else:
        for item in violations:
            typer.echo(str(item))
        count = f"{len(violations) or 'no'} problem{'' if len(violations) == 1 else 's'}"
        typer.echo(f"FOCUS {version}: {len(body)} rows, {count}")
    if violations:
        raise typer.Exit(DataError.exit_code)


def buy_or_rent(
    accelerator: Annotated[str, typer.Argument(help="Accelerator that would be bought.")] = "H100",
    rent: Annotated[
        list[float] | None,
        typer.Option(help="Rent in usd per accelerator-hour; repeatable. Default: the bundled on-demand offers."),
    ] = None,
    utilisation: Annotated[float, typer.Option(help="Share of the hours in which it would work.")] = 0.6,
    scenario: Annotated[str, typer.Option(help="Cost of owning: cheap, mid or costly.")] = "mid",
    server_usd: Annotated[float | None, typer.Option(help="Your quote for a server of eight.")] = None,
    power_kw: Annotated[float | None, typer.Option(help="Peak power that the server draws.")] = None,
    json_: JsonOption = False,
) -> None:
    """Compare owning an accelerator with renting one: break-even use, and months until it has paid for itself."""
    from charter.catalog.accelerators import get
    from charter.cost.own_hardware import own_or_rent, owned_server

    name = get(accelerator).name
    server = owned_server(name, scenario, server_usd=server_usd, power_kw=power_kw)
    rents = [("given", value) for value in rent] if rent else _offered(name)
    comparisons = [
        (source, own_or_rent(server, rent_usd_per_hour=usd, utilisation=utilisation)) for source, usd in rents
    ]
    if json_:
        print_json(_own_as_json(name, scenario, server, comparisons))
    else:
        _own_print(name, scenario, server, comparisons, utilisation)


def _offered(accelerator: str) -> list[tuple[str, float]]:
    """The cheapest bundled on-demand price of every cloud, dearest first."""
    from charter.catalog.price_book import Market, offers

    cheapest: dict[str, tuple[float, str]] = {}
    for offer in offers(accelerator, market=Market.ON_DEMAND):
        usd = offer.usd_per_accelerator_hour(Market.ON_DEMAND)
        if usd is not None and offer.whole_machine and usd < cheapest.get(offer.cloud, (math.inf, ""))[0]:
            cheapest[offer.cloud] = (usd, offer.provenance.as_of)
    if not cheapest:
        raise UsageError(f"no bundled offer rents out {accelerator}; give a rent with --rent 3.99")
    ranked = sorted(cheapest.items(), key=lambda item: (-item[1][0], item[0]))
    return [(f"{cloud}, {as_of.partition(' (')[0]}", usd) for cloud, (usd, as_of) in ranked]


def _own_as_json(
    name: str, scenario: str, server: "OwnedServer", comparisons: "list[tuple[str, OwnOrRent]]"
) -> dict[str, Any]:
    from charter.cost.own_hardware import owned_usd_per_year

    rows = []
    for source, row in comparisons:
        values = {key: None if value == math.inf else value for key, value in vars(row).items()}
        verdicts = {"owning_is_cheaper": row.owning_is_cheaper, "pays_back_in_life": row.pays_back_in_life}
        rows.append({"rent_from": source, **values, **verdicts})
    return {
        "accelerator": name,
        "scenario": scenario,
        "server": vars(server),
        "usd_per_year": owned_usd_per_year(server),
        "rents": rows,
    }


def _own_print(
    name: str, scenario: str, server: "OwnedServer", comparisons: "list[tuple[str, OwnOrRent]]", utilisation: float
) -> None:
    from charter.cost.own_hardware import owned_usd_per_accelerator_hour, owned_usd_per_year

    out = console()
    owned = owned_usd_per_accelerator_hour(server)
    parts = owned_usd_per_year(server)
    shares = ", ".join(f"{part} {usd / sum(parts.values()):.0%}" for part, usd in parts.items())
    out.print(
        f"{name}, {scenario} scenario: ${owned:.2f} per available hour; ${owned / utilisation:.2f} per hour in use "
        f"at {utilisation:.0%}"
    )
    out.print(f"  of which {shares}")
    table = plain_table(
        ("rent from", "left"),
        ("usd/h", "right"),
        ("break-even use", "right"),
        ("pays back in", "right"),
        ("at this use", "left"),
    )
    for source, row in comparisons:
        even = f"{row.break_even_utilisation:.0%}" if row.break_even_utilisation <= 1 else "never"
        months = f"{row.crossover_months:.0f} months" if row.crossover_months < math.inf else "never"
        verdict = "buy" if row.owning_is_cheaper else "rent"
        table.add_row(source, f"{row.rent_usd_per_hour:.2f}", even, months, verdict)
    out.print(table)
    out.print(
        f"Buy where the use is above the break-even; a server is written off after {server.years:g} years.\n"
        "The scenario is made of assumptions: --server-usd and --power-kw take your own quotes."
    )


RECONCILE_SCHEMA = "charter.reconcile/1"
EndpointOption = Annotated[
    list[str] | None,
    typer.Option("--endpoint", metavar="URL", help="Whose log it is; needed when several servers were called."),
]
ReconcileDryRunOption = Annotated[bool, typer.Option("--dry-run", help="Say what differs and change nothing.")]


def reconcile(
    context: typer.Context,
    log: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="The provider's log, CSV or JSON lines: request_id with cost_usd, or with tokens."
        ),
    ],
    endpoint: EndpointOption = None,
    dry_run: ReconcileDryRunOption = False,
    directory: DirOption = Path("."),
    json_: JsonOption = False,
) -> None:
    """Correct the recorded cost of a run by the provider's log, and say what differed.

    The log must hold every request that the provider bills for this run: what it lacks counts as not billed.
    """
    from charter.ledger.reconcile import read_provider_log
    from charter.run.accounts import reconcile_run

    before, json_before = context.obj
    project, root = open_project(before if directory == Path(".") else directory)
    rows = read_provider_log(log)
    done = reconcile_run(project, root, rows, source=log.name, endpoints=endpoint or (), dry_run=dry_run)
    if json_ or json_before:
        print_json(_reconcile_as_json(done, rows=len(rows), dry_run=dry_run))
    else:
        _reconcile_print(done, dry_run=dry_run)


def _reconcile_as_json(done: "BillReconciled", *, rows: int, dry_run: bool) -> dict[str, Any]:
    from charter.ledger.reconcile import MEANINGS

    return {
        "schema": RECONCILE_SCHEMA,
        "endpoints": list(done.endpoints),
        "rows": rows,
        "changed": not dry_run and bool(done.found.corrections),
        "before": _bill(done.before),
        "after": _bill(done.after),
        "differences": [
            {
                "kind": item.kind,
                "meaning": MEANINGS[item.kind],
                "count": item.count,
                "settled_before_micro_usd": item.settled_before_micro_usd,
                "unknown_before_micro_usd": item.unknown_before_micro_usd,
                "billed_usd": float(item.billed_micro_usd) / 1_000_000,
            }
            for item in done.found.differences
        ],
    }


def _bill(sums: "CallSums") -> dict[str, int | float]:
    return {
        "requests": sums.requests,
        "unknown": sums.unknown,
        "micro_usd": sums.settled_micro_usd,
        "micro_usd_most": sums.most_micro_usd,
        "usd": sums.settled_micro_usd / 1_000_000,
        "usd_most": sums.most_micro_usd / 1_000_000,
    }


def _reconcile_print(done: "BillReconciled", *, dry_run: bool) -> None:
    from charter.ledger.reconcile import MEANINGS

    for item in done.found.differences:
        was = f"{format_usd(item.settled_before_micro_usd / 1e6)} here"
        if item.unknown_before_micro_usd:
            was = f"at most {format_usd(item.unknown_before_micro_usd / 1e6)} here"
        billed = format_usd(float(item.billed_micro_usd) / 1e6)
        typer.echo(f"{item.count:>8}  {MEANINGS[item.kind]} ({was}, {billed} there)")
    typer.echo(f"The bill before: {_interval(done.before)}")
    typer.echo("Nothing was changed (--dry-run)." if dry_run else f"The bill now:    {_interval(done.after)}")


def _interval(sums: "CallSums") -> str:
    low, high = format_usd(sums.settled_micro_usd / 1e6), format_usd(sums.most_micro_usd / 1e6)
    unknown = f"{sums.unknown} call{'' if sums.unknown == 1 else 's'} unknown"
    return f"{low} to {high}, {unknown}" if sums.unknown else low


OVER_BUDGET = 4
cost_app = typer.Typer(
    help="What was spent against the plan, what was lost, and the forecast.",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@cost_app.callback(invoke_without_command=True)
def cost(context: typer.Context, directory: DirOption = Path("."), json_: JsonOption = False) -> None:
    """Show what was spent against the plan, what was lost, and the forecast."""
    context.obj = (directory, json_)
    if context.invoked_subcommand is None:
        _report(directory, as_json=json_)


cost_app.command("buy-or-rent")(buy_or_rent)
cost_app.command("reconcile")(reconcile)
cost_app.command("export")(export)
cost_app.command("check")(check)
cost_app.command("import")(import_bill)
cost_app.command("raise")(raise_limit)
cost_app.command("add")(add_fee)


@cost_app.command("showback")
def cost_showback(
    context: typer.Context,
    by: Annotated[
        list[str] | None, typer.Option("--by", metavar="WHAT", help="owner, run, stage, tag:NAME; repeatable.")
    ] = None,
    since: Annotated[str, typer.Option("--from", metavar="MONTH", help="First UTC month, like 2026-10.")] = "",
    until: Annotated[str, typer.Option("--to", metavar="MONTH", help="Last one.")] = "",
    directory: DirOption = Path("."),
    json_: JsonOption = False,
) -> None:
    """Show what every owner, team or run has cost by month: all projects that share the ledger."""
    from charter.ledger import Ledger
    from charter.ledger.store import ledger_place
    from charter.ledger.sums import total_of
    from charter.report.cost_text import by_month, months_table, sums_json
    from charter.run.paths import run_dir

    project, root = open_project(_chosen(context, directory))
    names = tuple(dict.fromkeys(by or ("owner",)))
    first, last = (_day_of_month(month, last=is_last) for month, is_last in ((since, False), (until, True)))
    with Ledger.open(ledger_place(run_dir(root.resolve()), project.storage.ledger), create=False) as ledger:
        parts = by_month(ledger.sums(by=(*names, "day"), since=first, until=last))
    if json_ or context.obj[1]:
        months = [sums_json(part) for part in parts]
        print_json({"schema": "charter.showback/1", "by": names, "months": months, "total": sums_json(total_of(parts))})
    else:
        console(markup=True).print(months_table(names, parts))


def _day_of_month(month: str, *, last: bool) -> str | None:
    """Return the first or the last possible day of a month; days are compared as texts."""
    if not month:
        return None
    try:
        datetime.strptime(month, "%Y-%m")
    except ValueError:
        from charter.errors import UsageError

        raise UsageError(f"{month!r} is no month; write it like 2026-10") from None
    return f"{month}-31" if last else f"{month}-01"


@cost_app.command("report")
def cost_report(context: typer.Context, directory: DirOption = Path("."), json_: JsonOption = False) -> None:
    """Plan against actual by stage, waste, cost per unit, budget."""
    _report(_chosen(context, directory), as_json=json_ or context.obj[1])


@cost_app.command("budget")
def cost_budget(context: typer.Context, directory: DirOption = Path("."), json_: JsonOption = False) -> None:
    """Every limit of the budget: spent, forecast, per hour, state. Exit code 4 when one is reached."""
    from charter.report.cost import read_costs
    from charter.report.cost_text import limits_table

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
    """Show what would make the run cheaper, and by how much: fewer or smaller accelerators, spot, idle ones freed."""
    from dataclasses import asdict

    from charter.report.cost import read_advice, read_costs
    from charter.report.cost_text import advice_table

    project, root = open_project(_chosen(context, directory))
    advice = read_advice(read_costs(project, root), root)
    if json_ or context.obj[1]:
        print_json({"schema": "charter.advice/1", "advice": [asdict(item) for item in advice]})
    elif advice:
        console(markup=True).print(advice_table(advice))
    else:
        typer.echo("Nothing is known that would make this run cheaper.")


def _chosen(context: typer.Context, directory: Path) -> Path:
    """`charter cost -C DIR report` and `charter cost report -C DIR` mean the same."""
    before: Path = context.obj[0]
    return before if directory == Path(".") else directory


def _report(directory: Path, *, as_json: bool) -> None:
    from charter.report.cost import cost_json
    from charter.report.cost_text import groups_json, limits_table, print_cost, print_groups, print_imported
    from charter.report.overview import overview
    from charter.report.read import read_run

    root = project_root(directory)
    run = read_run(root, with_metrics=False, check_calls=True)
    view, facts = overview(run), _facts(root)
    for note in run.notes:
        typer.echo(f"warning[cost]: {note}", err=True)
    if as_json:
        more = {"notes": list(run.notes), **(groups_json(facts) if facts else {})}
        print_json({**cost_json(view, run.accounted, run.usage), **more})
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
    from charter.report.cost import read_costs

    project = loadable_project(root)
    return None if project is None else read_costs(project, root)
