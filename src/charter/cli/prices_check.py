"""`charter prices check`: what is wrong with a price list."""

from datetime import date
from pathlib import Path
from typing import Annotated

import typer

from charter.cli.common import JsonOption, print_json
from charter.cli.prices_import import FormatOption, read_list


def prices_check(
    file: Annotated[Path | None, typer.Argument(help="A price list; the bundled snapshot if left out.")] = None,
    layout: FormatOption = None,
    cloud: Annotated[str, typer.Option("--cloud", help="The cloud of a skypilot or gpuhunt file.")] = "",
    json_: JsonOption = False,
) -> None:
    """Check a price list by every rule; exit code 8 when rows must not be used."""
    from charter.catalog.rows import DATA
    from charter.cli.prices_view import finding_json, finding_lines, left_out_lines
    from charter.errors import DataError

    path = file or DATA / "prices.csv"
    checked = read_list(path, layout=layout, cloud=cloud, as_of="", today=date.today())
    if json_:
        print_json(
            {
                "file": str(file) if file else "bundled",
                "format": checked.format.value,
                "rows": len(checked.rows),
                "errors": len(checked.errors),
                "left_out": dict(checked.left_out),
                "findings": [finding_json(finding) for finding in checked.findings],
            }
        )
    else:
        for line in [*finding_lines(checked.findings), *left_out_lines(checked.left_out)]:
            typer.echo(line)
        counts = (len(checked.rows), len(checked.errors), len(checked.findings))
        typer.echo("rows checked: {:,}; errors: {:,}; findings in all: {:,}".format(*counts))
    if checked.errors:
        raise DataError(
            f"{path.name}: {len(checked.errors)} findings are errors, the first in row {checked.errors[0].row}: "
            f"{checked.errors[0].message}"
        )
