"""`charter validate calibrate`, `convert` and `share`: fit the planner to measured runs, and hand their rows on."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from charter.cli.common import JsonOption, SetOption, console, open_project, plain_table, print_json
from charter.errors import UsageError

if TYPE_CHECKING:
    from charter.physics.fitted import Bundle
    from charter.validation.typed_rows import TypedTable


def calibrate(
    file: Annotated[
        Path | None, typer.Argument(help="CSV of measurements (docs/reference/measurements.md).", show_default=False)
    ] = None,
    directory: Annotated[
        Path | None,
        typer.Option("-C", "--directory", help="Use the steps that a run of this project has logged."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Where it goes: calibration.json, with -C the project's.", show_default=False
        ),
    ] = None,
    alone: Annotated[
        bool, typer.Option("--alone", help="Fit this file and nothing else, not on top of the published measurements.")
    ] = False,
    overrides: SetOption = None,
    json_: JsonOption = False,
) -> None:
    """Fit the constants of each stack to measured runs, or re-scale the plan of a project by its own steps.

    The constants start where the published measurements put them, and move as far as the new rows speak for it. The
    errors shown are those of each source before its own rows were used. `charter plan` reads calibration.json of the
    project, or the file given with --calibration.
    """
    if (file is None) == (directory is None):
        raise UsageError("give a CSV of measurements, or -C DIR for the steps of a project's run")
    from charter.physics.fitted import load, save

    left_out: dict[str, tuple[str, ...]] = {}
    if file is not None:
        (bundle, left_out), output = _fitted(file, alone), output or Path("calibration.json")
        if output.is_file():
            bundle = replace(bundle, paces=load(output).paces)
    else:
        assert directory is not None
        project, root = open_project(directory, overrides)
        bundle, output = _paced(project, root), output or root / "calibration.json"
        if output.is_file():
            bundle = replace(bundle, quantities=load(output).quantities)
    save(bundle, output)
    if json_:
        print_json(_report(bundle, output) | {"left_out": {name: list(texts) for name, texts in left_out.items()}})
    else:
        _print(bundle, output)
        for name, texts in left_out.items():
            typer.echo(f"left out {name}: {'; '.join(texts)}")


def _fitted(file: Path, alone: bool) -> "tuple[Bundle, dict[str, tuple[str, ...]]]":
    """The published constants moved to the file's rows, or a fit of the file alone; and what it leaves out, and why."""
    from datetime import date

    from charter.physics.fitted import bundled
    from charter.validation.alarms import MEASUREMENTS, flagged, taught_measurements
    from charter.validation.intervals import extend, make
    from charter.validation.rows.measurement import read_measurements
    from charter.validation.score import QUANTITIES

    rows, today = read_measurements(file), date.today().isoformat()
    alarms = flagged(rows)
    if file.resolve() == MEASUREMENTS.resolve():
        return make(QUANTITIES, taught_measurements(), source=file.name, as_of=today), alarms
    sound = [row for row in rows if row.id not in alarms]
    if rows and not sound:
        reasons = "\n".join(f"  {name}: {'; '.join(texts)}" for name, texts in alarms.items())
        raise UsageError(f"no row of {file} can be fitted to; each cannot be what it says:\n{reasons}")
    if alone:
        return make(QUANTITIES, sound, source=file.name, as_of=today), alarms
    return extend(bundled(), QUANTITIES, sound, source=f"published rows, then {file.name}", as_of=today), alarms


def _paced(project: Any, root: Path) -> "Bundle":
    from datetime import date

    from charter.physics.fitted import Bundle
    from charter.run.planned import measured_paces

    paces = measured_paces(project, root)
    if not paces:
        raise UsageError(
            f"no stage of {root} has logged three steps yet\n"
            "  start the run (`charter run`), stop it after a few steps (`charter stop`), then calibrate"
        )
    return Bundle(
        quantities={}, source=f"steps of {project.name}", as_of=date.today().isoformat(), sha256="", paces=paces
    )


def _report(bundle: "Bundle", output: Path) -> dict[str, object]:
    return {
        "output": str(output),
        "source": bundle.source,
        "sha256": bundle.sha256,
        "paces": [pace.to_json() for pace in bundle.paces],
        "quantities": {
            name: {
                "sources": dict(fit.sources),
                "left_out_median_error": dict(fit.left_out),
                "half_widths": {group: dict(widths) for group, widths in fit.spread.half_widths.items()},
                "common": dict(fit.fitted.shared),
                "stacks": {stack: dict(shift) for stack, shift in fit.fitted.stacks.items()},
            }
            for name, fit in bundle.quantities.items()
        },
    }


def _print(bundle: "Bundle", output: Path) -> None:
    out = console()
    if bundle.quantities:
        error = ("median error without its rows", "right")
        table = plain_table(("quantity", "left"), ("source", "left"), ("rows", "right"), error)
        moved = any(fit.calibrated_stacks for fit in bundle.quantities.values())
        for name, fit in bundle.quantities.items():
            for prefix, count in fit.sources.items():
                if moved and not (fit.calibrated_stacks and prefix not in fit.without):
                    continue
                left_out = fit.left_out.get(prefix)
                table.add_row(name, prefix, str(count), "" if left_out is None else f"{left_out:.1%}")
        out.print(table)
    if bundle.paces:
        heading = (("accelerator", "left"), ("kind of stage", "left"), ("steps", "right"), ("measured / plan", "right"))
        table = plain_table(*heading)
        for pace in bundle.paces:
            table.add_row(pace.accelerator, pace.kind, str(pace.steps), f"{pace.factor:.2f}")
        out.print(table)
    out.print(f"{output}: {bundle.source}")


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

    if output.resolve() == file.resolve():
        raise UsageError(f"{output} is the file that is read; give another name")
    write_file(output, table.csv())
