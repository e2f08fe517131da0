"""`charter cost import`: a provider's bill beside the ledger, with every difference explained."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from charter.cli.common import DirOption, JsonOption, open_project, print_json

if TYPE_CHECKING:
    from charter.pipeline.bill import BillImported

SCHEMA = "charter.bill/1"
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
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Compare, and keep nothing.")]


def import_bill(
    context: typer.Context,
    file: FileArgument,
    provider: ProviderOption = None,
    dry_run: DryRunOption = False,
    directory: DirOption = Path("."),
    json_: JsonOption = False,
) -> None:
    """Compare a provider's bill with the ledger, line by line, and keep it beside it; nothing is overwritten."""
    from charter.pipeline import bill

    before, json_before = context.obj
    project, root = open_project(before if directory == Path(".") else directory)
    done = bill.import_bill(project, root, file, dry_run=dry_run, providers=provider or ())
    if json_ or json_before:
        print_json(_as_json(done))
    else:
        _print(done, dry_run=dry_run)


def _as_json(done: "BillImported") -> dict[str, Any]:
    from charter.ledger.bill import MEANINGS, sums_by_kind

    return {
        "schema": SCHEMA,
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


def _print(done: "BillImported", *, dry_run: bool) -> None:
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
