"""`charter cost export | check`: a run's charges as a FOCUS 1.2 dataset, and whether a dataset keeps its rules."""

from pathlib import Path
from typing import Annotated

import typer

from charter.cli.common import DirOption, JsonOption, loadable_project, print_json, project_root, write_asked

FocusOption = Annotated[
    Path,
    typer.Option("--focus", metavar="FILE", help="Where to write the charges, FOCUS 1.2: FILE.csv or FILE.parquet."),
]


def export(context: typer.Context, focus: FocusOption, directory: DirOption = Path(".")) -> None:
    """Write every attempt, call, stored byte and fee as charges in FOCUS 1.2, for FinOps tools.

    Idle and lost money stands in columns of its own (x_IdleCost, x_LostCost): it is part of the cost, not beside it.
    """
    from charter.errors import UsageError
    from charter.ledger.focus_files import to_csv, to_parquet
    from charter.report.focus_dataset import focus_dataset

    before, _ = context.obj
    root = project_root(before if directory == Path(".") else directory)
    suffix = focus.suffix.lower()
    if suffix not in (".csv", ".parquet"):
        raise UsageError(f"--focus {focus}: is neither .csv nor .parquet; give FILE.csv or FILE.parquet")
    rows = focus_dataset(loadable_project(root), root)
    write_asked("--focus", focus, to_csv(rows) if suffix == ".csv" else to_parquet(rows), make_directory=True)
    unpriced = sum(row.get("x_IsPriced") == "false" for row in rows)
    said = f" ({unpriced} of them without a price, with cost 0 and x_IsPriced false)" if unpriced else ""
    typer.echo(f"Wrote {len(rows)} charge{'' if len(rows) == 1 else 's'} to {focus}{said}")


def check(
    file: Annotated[Path, typer.Argument(metavar="FILE.csv", help="A FOCUS dataset, of Charter or of anyone.")],
    json_: JsonOption = False,
) -> None:
    """Whether a FOCUS CSV keeps the rules of the specification; exit code 8 if it does not."""
    import csv
    import io

    from charter.errors import DataError, UsageError
    from charter.ledger.focus_check import check_focus

    if not file.is_file():
        raise UsageError(f"there is no file {file}; give a FOCUS dataset as CSV")
    try:
        rows = list(csv.reader(io.StringIO(file.read_text(encoding="utf-8-sig"), newline="")))
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{file} is not CSV ({error})") from None
    header, body = (rows[0], rows[1:]) if rows else ([], [])
    found = check_focus(header, (dict(zip(header, row, strict=False)) for row in body))
    if json_:
        problems = [{"row": item.row, "column": item.column, "message": item.message} for item in found]
        print_json({"schema": "charter.focus_check/1", "rows": len(body), "problems": problems})
    else:
        for item in found:
            typer.echo(str(item))
        typer.echo(f"{len(body)} rows, {'no' if not found else len(found)} problem{'' if len(found) == 1 else 's'}")
    if found:
        raise typer.Exit(DataError.exit_code)
