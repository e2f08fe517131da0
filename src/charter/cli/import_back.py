"""`charter import --list | --take-back ID`: what was imported into a project, and one of it taken out again."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from charter.cli.common import open_project, print_json

if TYPE_CHECKING:
    from charter.pipeline.imports.taking_back import PastImport, TakenBack
    from charter.spec.project import Project

LIST_SCHEMA = "charter.imports/1"
TAKE_BACK_SCHEMA = "charter.import_taken_back/1"


def past_imports_asked(
    directory: Path, overrides: list[str] | None, take_back: str | None, *, yes: bool, dry_run: bool, as_json: bool
) -> None:
    """List every import, or take one back."""
    from charter.pipeline.imports.taking_back import past_imports

    project, root = open_project(directory, overrides)
    imports = past_imports(project, root)
    if take_back is None:
        _list(imports, as_json=as_json)
    else:
        _take_back(project, root, imports, take_back, yes=yes, dry_run=dry_run, as_json=as_json)


def _list(imports: "Sequence[PastImport]", *, as_json: bool) -> None:
    if as_json:
        print_json({"schema": LIST_SCHEMA, "imports": [_import_json(item) for item in imports]})
    elif not imports:
        typer.echo("nothing was imported")
    else:
        _print_table(imports)


def _take_back(
    project: "Project",
    root: Path,
    imports: "Sequence[PastImport]",
    import_id: str,
    *,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Show what an import wrote, and remove it after a yes."""
    from charter.pipeline.imports.taking_back import chosen, take_back, what_goes

    going = what_goes(chosen(imports, import_id), imports, root)
    if not as_json:
        _print_going(going)
    if not dry_run:
        _ask(yes=yes, as_json=as_json)
    removed = None if dry_run else take_back(project, root, going)
    if as_json:
        print_json(_going_json(going, removed))
    elif removed is not None:
        typer.echo(f"taken back: {removed} attempts left the ledger; the same run can be imported again")


def _ask(*, yes: bool, as_json: bool) -> None:
    from charter.errors import UsageError

    if yes:
        return
    if as_json or not _is_terminal():
        raise UsageError("give --yes to take it back, or --dry-run to see what goes")
    typer.confirm("Take it back?", abort=True)


def _is_terminal() -> bool:
    import sys

    return sys.stdin.isatty()


def _print_table(imports: "Sequence[PastImport]") -> None:
    from charter.cli.tables import console, plain_table
    from charter.units import format_count, format_seconds, format_usd

    table = plain_table(
        ("Import", "left"), ("Stage", "left"), ("Source", "wrap"), ("Imported", "left"), ("Attempts", "right"),
        ("Steps", "right"), ("Time", "right"), ("Tokens", "right"), ("Cost", "right"),
    )  # fmt: skip
    for item in imports:
        stored = item.stored
        if stored is None:
            table.add_row(item.import_id, item.stage, "half taken back: --take-back finishes it", *([""] * 6))
            continue
        totals, usd = stored.totals, stored.usd
        table.add_row(
            item.import_id,
            item.stage,
            stored.source,
            _time(stored.imported_at),
            ", ".join(str(attempt.number) for attempt in stored.attempts),
            f"{stored.attempts[0].first_step:,} to {stored.attempts[-1].last_step:,}",
            format_seconds(totals.milliseconds / 1000),
            format_count(totals.tokens),
            "" if usd is None else format_usd(usd),
        )
    console().print(table)


def _print_going(going: "TakenBack") -> None:
    from charter.units import format_seconds, format_usd

    past, stored = going.past, going.past.stored
    typer.echo(f"import {past.import_id} of stage {past.stage}")
    if stored is not None:
        cost = "" if stored.usd is None else f", {format_usd(stored.usd)}"
        typer.echo(f"  read from {stored.source} ({stored.format or 'format not told'}), {_time(stored.imported_at)}")
        for item in stored.attempts:
            steps = f"steps {item.first_step:,} to {item.last_step:,}"
            typer.echo(f"  attempt {item.number} leaves the ledger: {steps}, {format_seconds(item.seconds)}")
        typer.echo(f"  together {format_seconds(stored.totals.milliseconds / 1000)}{cost}")
    for path in going.curves:
        typer.echo(f"  {path} is removed")
    for row in going.rows:
        typer.echo(f"  row {row.row_id} of {row.file} is removed")
    for sentence in going.stays:
        typer.echo(f"  {sentence}")


def _time(at: float | None) -> str:
    import time

    return "not told" if at is None else time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(at))


def _import_json(item: "PastImport") -> dict[str, Any]:
    stored = item.stored
    if stored is None:
        return {"import": item.import_id, "stage": item.stage, "in_ledger": False}
    totals = stored.totals
    return {
        "import": item.import_id,
        "stage": item.stage,
        "in_ledger": True,
        "source": stored.source,
        "format": stored.format,
        "imported_at": stored.imported_at,
        "attempts": [attempt.number for attempt in stored.attempts],
        "first_step": stored.attempts[0].first_step,
        "last_step": stored.attempts[-1].last_step,
        "seconds": totals.milliseconds / 1000,
        "tokens": totals.tokens,
        "usd": stored.usd,
        "has_receipt": item.receipt is not None,
    }


def _going_json(going: "TakenBack", removed: int | None) -> dict[str, Any]:
    return {
        "schema": TAKE_BACK_SCHEMA,
        **_import_json(going.past),
        "curves": [str(path) for path in going.curves],
        "measurements": [{"file": row.file, "id": row.row_id} for row in going.rows],
        "stays": list(going.stays),
        "removed_attempts": removed,
    }
