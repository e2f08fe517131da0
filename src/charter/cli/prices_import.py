"""`charter prices import`: a price list made into the project's `prices.csv`."""

from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from charter.cli.common import DirOption, JsonOption, print_json, write_asked

if TYPE_CHECKING:
    from charter.catalog.price_import import Checked

FormatOption = Annotated[
    str | None,
    typer.Option("--format", help="charter, skypilot, gpuhunt or contract; told by the header if left out."),
]


def prices_import(
    file: Annotated[Path, typer.Argument(help="A price list (CSV): a catalog, or your contracts.")],
    layout: FormatOption = None,
    cloud: Annotated[str, typer.Option("--cloud", help="The cloud of a skypilot or gpuhunt file.")] = "",
    as_of: Annotated[str, typer.Option("--as-of", help="Date of the prices, 2026-08-20; today if left out.")] = "",
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out the rows that fail a check.")] = False,
    accelerator: Annotated[
        list[str] | None, typer.Option("--accelerator", help="Import only these accelerators; repeatable.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write; prices.csv of the project if left out.")
    ] = None,
    directory: DirOption = Path("."),
    json_: JsonOption = False,
) -> None:
    """Check a price list and add it to the project's prices.csv, which plans then use."""
    from charter.catalog.price_write import by_region, merged, prices_csv

    today = date.today()
    checked = read_list(file, layout=layout, cloud=cloud, as_of=as_of, today=today)
    checked = _only(checked, accelerator)
    _refuse_bad(checked, file, skip_bad=skip_bad)
    target = output or (directory.parent if directory.is_file() else directory) / "prices.csv"
    held = read_list(target, layout="charter", cloud="", as_of="", today=today).rows if target.is_file() else ()
    new = by_region(checked.good_rows)
    kept = merged(held, new)
    write_asked("--output", target, prices_csv(kept), make_directory=True)
    _tell(checked, target, written=len(new), total=len(kept), as_json=json_)


def read_list(path: Path, *, layout: str | None, cloud: str, as_of: str, today: date) -> "Checked":
    """Read and check a price list from disk."""
    from charter.catalog.names import closest
    from charter.catalog.offer import earliest_day
    from charter.catalog.price_import import PriceFormat, read_prices
    from charter.catalog.price_reading import Import
    from charter.errors import UsageError

    known = [item.value for item in PriceFormat]
    if layout is not None and layout not in known:
        raise UsageError(f"--format {layout} is unknown{closest(layout, known)}; it is one of {', '.join(known)}")
    if as_of and earliest_day(as_of) is None:
        raise UsageError(f"--as-of {as_of} names no date; write it like 2026-08-20")
    if not path.is_file():
        raise UsageError(f"there is no file {path}")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text: {error}") from None
    about = Import(file=path.name, imported_on=today, cloud=cloud, as_of=as_of)
    return read_prices(text, about, layout=PriceFormat(layout) if layout else None, today=today)


def _only(checked: "Checked", accelerator: list[str] | None) -> "Checked":
    """The rows of some accelerators; what is left out is counted."""
    from dataclasses import replace

    from charter.catalog.accelerators import get

    if not accelerator:
        return checked
    names = {get(name).name for name in accelerator}
    rows = tuple(row for row in checked.rows if row.accelerator in names)
    lines = {row.number for row in rows} | {0}
    read = {row.number for row in checked.rows}
    told = tuple(finding for finding in checked.findings if finding.row in lines or finding.row not in read)
    left_out = {**checked.left_out, "other accelerators than asked for": len(checked.rows) - len(rows)}
    return replace(checked, rows=rows, findings=told, left_out=left_out)


def _refuse_bad(checked: "Checked", file: Path, *, skip_bad: bool) -> None:
    from charter.catalog.price_row import lines_of
    from charter.cli.prices_view import finding_lines
    from charter.errors import UsageError

    bad = len(lines_of(checked.findings))
    if bad and not skip_bad:
        raise UsageError(
            "\n".join(
                (
                    f"{file.name}: {bad} rows fail a check; nothing was written",
                    *finding_lines(checked.errors),
                    "correct the rows, or leave them out with --skip-bad",
                )
            )
        )
    if not checked.good_rows:
        raise UsageError(f"{file.name}: no row can be used; `charter prices check {file}` says why")


def _tell(checked: "Checked", target: Path, *, written: int, total: int, as_json: bool) -> None:
    from charter.catalog.price_row import lines_of
    from charter.cli.prices_view import finding_json, finding_lines, left_out_lines

    skipped = sorted(lines_of(checked.findings))
    if as_json:
        print_json(
            {
                "output": str(target),
                "format": checked.format.value,
                "rows_read": len(checked.rows),
                "offers_written": written,
                "offers_total": total,
                "rows_skipped": skipped,
                "left_out": dict(checked.left_out),
                "findings": [finding_json(finding) for finding in checked.findings],
            }
        )
        return
    for line in [*finding_lines(checked.findings), *left_out_lines(checked.left_out)]:
        typer.echo(line)
    if skipped:
        typer.echo(f"left out by --skip-bad: {len(skipped):,} rows, each named above or in --json")
    typer.echo(
        f"Wrote {target}: {written:,} offer{'' if written == 1 else 's'} from {len(checked.good_rows):,} good "
        f"row{'' if len(checked.good_rows) == 1 else 's'}; the file now holds {total:,}"
    )
