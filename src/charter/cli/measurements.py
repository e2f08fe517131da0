"""`charter validate convert` and `share`: measured runs in typed columns, to be confirmed or handed on."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from charter.validation.typed_rows import TypedTable

FileArgument = Annotated[Path, typer.Argument(help="CSV of measurements (docs/reference/measurements.md).")]
OutputOption = Annotated[Path, typer.Option("--output", "-o", help="The CSV to write, not the file that is read.")]


def convert(file: FileArgument, output: OutputOption) -> None:
    """Write the typed columns of a CSV that has none, for its owner to confirm; print what was read from which text.

    A prediction reads typed columns and nothing else. What the text does not say becomes `unknown` and widens the
    interval until the right word stands in its place.
    """
    from charter.validation.rows.measurement import read_measurements
    from charter.validation.typed_rows import UNKNOWN, converted

    table = converted(read_measurements(file))
    _write(table, file, output)
    said = {text: count for text, count in table.inferences.items() if not text.endswith(f"= {UNKNOWN}")}
    for text, count in said.items():
        typer.echo(f"{count} rows: {text}")
    unknown = [text.partition(" = ")[0] for text in table.inferences if text not in said]
    if unknown:
        typer.echo(f"unknown in some rows, to be filled in: {', '.join(unknown)}")
    typer.echo(f"{output}: {len(table.rows)} rows; confirm each word above, then `charter validate {output}`")


def share(
    file: FileArgument,
    output: OutputOption,
    prefix: Annotated[str, typer.Option("--as", metavar="ABC", help="Three letters that the new ids begin with.")],
) -> None:
    """Write anonymous typed rows to hand on: numbered anew, without notes, sources or names of your own models."""
    from charter.errors import UsageError
    from charter.validation.rows.measurement import Refusal, read_measurements
    from charter.validation.typed_rows import shared

    if not (len(prefix) == 3 and prefix.isascii() and prefix.isalpha() and prefix.isupper()):
        raise UsageError(f"--as {prefix!r} is not three capital letters, for example ABC")
    try:
        table = shared(read_measurements(file), prefix)
    except Refusal as refusal:
        raise UsageError(f"{refusal.reason}\n  charter validate convert {file} -o typed.csv") from refusal
    _write(table, file, output)
    typer.echo(f"{output}: {len(table.rows)} rows with the columns {', '.join(table.columns)}")
    typer.echo("read it before you hand it on: numbers and shapes are yours")


def _write(table: "TypedTable", file: Path, output: Path) -> None:
    from charter.artifacts.durable import write_file
    from charter.errors import UsageError

    if output.resolve() == file.resolve():
        raise UsageError(f"{output} is the file that is read; give another name")
    write_file(output, table.csv())
