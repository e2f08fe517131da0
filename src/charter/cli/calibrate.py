"""`charter calibrate`: fit the planner to measured runs, and store what was learned with where it comes from."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from charter.cli.common import JsonOption, SetOption, open_project, print_json

if TYPE_CHECKING:
    from charter.calibration.bundle import Bundle


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
        bool, typer.Option("--alone", help="Fit this file only; otherwise the published measurements too.")
    ] = False,
    overrides: SetOption = None,
    json_: JsonOption = False,
) -> None:
    """Fit the constants of each stack to measured runs, or re-scale the plan of a project by its own steps.

    Reports the error of each source with that source left out. `charter plan` reads calibration.json of the project, or
    the file given with --calibration.
    """
    from charter.errors import UsageError

    if (file is None) == (directory is None):
        raise UsageError("give a CSV of measurements, or -C DIR for the steps of a project's run")
    if file is not None:
        bundle, output = _fitted(file, alone), output or Path("calibration.json")
    else:
        assert directory is not None
        project, root = open_project(directory, overrides)
        bundle, output = _paced(project, root), output or root / "calibration.json"
    from charter.calibration.bundle import save

    save(bundle, output)
    if json_:
        print_json(_report(bundle, output))
    else:
        _print(bundle, output)


def _fitted(file: Path, alone: bool) -> "Bundle":
    from datetime import date

    from charter.calibration.bundle import MEASUREMENTS, make
    from charter.calibration.quantities import QUANTITIES
    from charter.calibration.rows.measurement import read_measurements

    rows = read_measurements(file)
    more = () if alone or file.resolve() == MEASUREMENTS.resolve() else read_measurements(MEASUREMENTS)
    seen = {(row.id, row.value) for row in rows}
    together = (*rows, *(row for row in more if (row.id, row.value) not in seen))
    source = file.name + (" and published rows" if more else "")
    return make(QUANTITIES, together, source=source, as_of=date.today().isoformat())


def _paced(project: Any, root: Path) -> "Bundle":
    from datetime import date

    from charter.calibration.bundle import Bundle
    from charter.errors import UsageError
    from charter.pipeline.measured_pace import measured_paces

    paces = measured_paces(project, root)
    if not paces:
        raise UsageError(
            f"no stage of {root} has logged two steps yet\n"
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
                "sources": dict(found.sources),
                "left_out_median_error": dict(found.left_out),
                "half_widths": {group: dict(widths) for group, widths in found.spread.half_widths.items()},
                "common": dict(found.fitted.shared),
                "stacks": {stack: dict(shift) for stack, shift in found.fitted.stacks.items()},
            }
            for name, found in bundle.quantities.items()
        },
    }


def _print(bundle: "Bundle", output: Path) -> None:
    from charter.cli.tables import console, plain_table

    out = console()
    if bundle.quantities:
        error = ("median error, source left out", "right")
        table = plain_table(("quantity", "left"), ("source", "left"), ("rows", "right"), error)
        for name, found in bundle.quantities.items():
            for prefix, count in found.sources.items():
                left_out = found.left_out.get(prefix)
                table.add_row(name, prefix, str(count), "" if left_out is None else f"{left_out:.1%}")
        out.print(table)
    if bundle.paces:
        heading = (("accelerator", "left"), ("kind of stage", "left"), ("steps", "right"), ("measured / plan", "right"))
        table = plain_table(*heading)
        for pace in bundle.paces:
            table.add_row(pace.accelerator, pace.kind, str(pace.steps), f"{pace.factor:.2f}")
        out.print(table)
    out.print(f"{output}: {bundle.source}")
