"""`charter cost reconcile`: the bill of a run against the log of the provider that sends it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from charter.cli.common import DirOption, JsonOption, open_project, print_json

if TYPE_CHECKING:
    from charter.ledger.call import CallSums
    from charter.pipeline.reconcile import BillReconciled

SCHEMA = "charter.reconcile/1"
EndpointOption = Annotated[
    list[str] | None,
    typer.Option("--endpoint", metavar="URL", help="Whose log it is; needed when several servers were called."),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Say what differs and change nothing.")]


def reconcile(
    context: typer.Context,
    log: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="The provider's log, CSV or JSON lines: request_id with cost_usd, or with tokens."
        ),
    ],
    endpoint: EndpointOption = None,
    dry_run: DryRunOption = False,
    directory: DirOption = Path("."),
    json_: JsonOption = False,
) -> None:
    """Make the bill of a run equal to the provider's log of it, and say what differed.

    The log must hold every request that the provider bills for this run: what it lacks counts as not billed.
    """
    from charter.ledger.provider_log import read_provider_log
    from charter.pipeline.reconcile import reconcile_run

    before, json_before = context.obj
    project, root = open_project(before if directory == Path(".") else directory)
    rows = read_provider_log(log)
    done = reconcile_run(project, root, rows, source=log.name, endpoints=endpoint or (), dry_run=dry_run)
    if json_ or json_before:
        print_json(_as_json(done, rows=len(rows), dry_run=dry_run))
    else:
        _print(done, dry_run=dry_run)


def _as_json(done: "BillReconciled", *, rows: int, dry_run: bool) -> dict[str, Any]:
    from charter.ledger.reconcile import MEANINGS

    return {
        "schema": SCHEMA,
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


def _print(done: "BillReconciled", *, dry_run: bool) -> None:
    from charter.ledger.reconcile import MEANINGS
    from charter.units import format_usd

    for item in done.found.differences:
        was = f"{format_usd(item.settled_before_micro_usd / 1e6)} here"
        if item.unknown_before_micro_usd:
            was = f"at most {format_usd(item.unknown_before_micro_usd / 1e6)} here"
        billed = format_usd(float(item.billed_micro_usd) / 1e6)
        typer.echo(f"{item.count:>8}  {MEANINGS[item.kind]} ({was}, {billed} there)")
    typer.echo(f"The bill before: {_interval(done.before)}")
    typer.echo("Nothing was changed (--dry-run)." if dry_run else f"The bill now:    {_interval(done.after)}")


def _interval(sums: "CallSums") -> str:
    from charter.units import format_usd

    low, high = format_usd(sums.settled_micro_usd / 1e6), format_usd(sums.most_micro_usd / 1e6)
    unknown = f"{sums.unknown} call{'' if sums.unknown == 1 else 's'} unknown"
    return f"{low} to {high}, {unknown}" if sums.unknown else low
