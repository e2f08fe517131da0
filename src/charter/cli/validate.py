"""`charter validate`: predictions beside a file of measurements, row by row and per source."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from charter.cli.common import JsonOption, console, plain_table, print_json
from charter.errors import DataError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from charter.validation.validate import RowVerdict, Score


def validate(
    file: Annotated[Path, typer.Argument(help="CSV of measurements (docs/reference/measurements.md).")],
    calibrate_rows: Annotated[
        int,
        typer.Option("--calibrate-rows", min=0, metavar="K", help="First fit each source's stacks on K of its rows."),
    ] = 0,
    leave_out: Annotated[
        str, typer.Option("--leave-out", metavar="KOR,MLM", help="Refit without the sources of these id prefixes.")
    ] = "",
    by: Annotated[
        Literal["source", "kind", "gpu"], typer.Option("--by", help="How the summary is grouped.")
    ] = "source",
    calibration: Annotated[
        Path | None,
        typer.Option("--calibration", help="Constants of `charter validate calibrate` instead of the shipped ones."),
    ] = None,
    in_sample: Annotated[
        bool, typer.Option("--in-sample", help="Keep a source's own rows in the fit that predicts it.")
    ] = False,
    worst: Annotated[int, typer.Option("--worst", min=0, help="List the rows that are furthest off.")] = 0,
    json_: JsonOption = False,
) -> None:
    """Check the planner against measured runs: error, bias and coverage per source; refusals with their reason."""
    from charter.physics.fitted import load
    from charter.validation.alarms import fingerprint
    from charter.validation.rows.measurement import read_measurements
    from charter.validation.validate import grouped
    from charter.validation.validate import validate as predict

    if file.suffix in (".yaml", ".yml") or file.is_dir():
        raise UsageError(f"{file}: charter check finds the errors of a project; validate reads a CSV of measured runs")
    rows = read_measurements(file)
    prefixes = tuple(part.strip().upper()[:3] for part in leave_out.split(",") if part.strip())
    verdicts = predict(
        rows,
        calibrate_rows=calibrate_rows,
        leave_out=prefixes,
        in_sample=in_sample,
        bundle=load(calibration) if calibration else None,
    )
    groups = grouped(verdicts, by)
    if json_:
        print_json(_report(verdicts, groups, by))
        _refuse_all_refused(file, verdicts)
        return
    _print(file, verdicts, groups, by)
    if calibration and load(calibration).sha256 == fingerprint(rows):
        typer.echo(f"{calibration} was fitted to these very rows: the errors above are not those of a new run")
    if worst:
        _print_worst(verdicts, worst)
    _refuse_all_refused(file, verdicts)


def _refuse_all_refused(file: Path, verdicts: "Sequence[RowVerdict]") -> None:
    """Raise DataError where no row of a file could be predicted, so that nothing was validated."""
    if all(item.refused for item in verdicts):
        raise DataError(f"no row of {file} can be predicted; docs/reference/measurements.md says what a row needs")


def _report(verdicts: "Sequence[RowVerdict]", groups: "Mapping[str, Score]", by: str) -> dict[str, Any]:
    from charter.validation.validate import score

    prefixes = sorted({item.row.prefix for item in verdicts})
    return {
        "rows": [_row(item) for item in verdicts],
        "sources": {
            prefix: _score(score([item for item in verdicts if item.row.prefix == prefix])) for prefix in prefixes
        },
        "groups": {"by": by} | {name: _score(group_score) for name, group_score in groups.items()},
        "total": _score(score(verdicts)),
    }


def _row(item: "RowVerdict") -> dict[str, Any]:
    measured: float | bool = bool(item.row.value) if item.row.metric == "oom" else item.row.value
    return {
        "id": item.row.id,
        "metric": item.row.metric,
        "unit": item.row.unit,
        "measured": measured,
        "predicted": item.predicted,
        "p10": item.p10,
        "p50": item.p50,
        "p90": item.p90,
        "refused": item.refused,
        "stack": item.stack,
        "knowledge": item.knowledge,
        "calibrated_on": item.used,
        "alarms": list(item.alarms),
        "assumptions": list(item.assumptions),
        "fits_probability": item.fits_probability,
        "fits": item.fits,
    }


def _score(total: "Score") -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(total)


def _print(file: Path, verdicts: "Sequence[RowVerdict]", groups: "Mapping[str, Score]", by: str) -> None:
    from charter.validation.validate import score

    out = console()
    total = score(verdicts)
    out.print(f"{file}: {total.rows} rows, {total.refused} refused, {total.configurations} configurations predicted")
    headings = [(by, "left"), *((name, "right") for name in _COLUMNS)]
    table = plain_table(*headings)
    for name, group_score in groups.items():
        table.add_row(name, *_cells(group_score))
    table.add_section()
    table.add_row("all", *_cells(total), style="bold")
    out.print(table)
    out.print(
        "error: |predicted / measured - 1|, one vote per configuration; bias: its signed median; "
        "inside: share between p10 and p90"
    )
    for item in verdicts:
        for alarm in item.alarms:
            out.print(f"flagged {item.row.id}: {alarm}; it counts in no figure above", style="yellow")
    assumed: dict[str, int] = {}
    for item in verdicts:
        for name in item.assumptions:
            assumed[name] = assumed.get(name, 0) + 1
    if assumed:
        listed = ", ".join(f"{name} ({count})" for name, count in assumed.items())
        out.print(f"assumed, since a typed column is unknown or missing: {listed}", style="dim")
    for reason, count in sorted(total.reasons.items(), key=lambda item: -item[1]):
        out.print(f"refused {count}: {reason}", style="dim")


_COLUMNS = (
    "rows",
    "refused",
    "configs",
    "median error",
    "p90 error",
    "bias",
    "inside",
    "p90/p10",
    "OOM missed",
    "OOM too many",
)


def _cells(total: "Score") -> list[str]:
    def share(value: float | None, sign: str = "") -> str:
        return "" if value is None else f"{value:{sign}.1%}"

    return [
        str(total.rows),
        str(total.refused or ""),
        str(total.configurations or ""),
        share(total.median_error),
        share(total.p90_error),
        share(total.bias, "+"),
        share(total.coverage),
        "" if total.width is None else f"{total.width:.2f}",
        str(total.said_fits_was_oom) if total.oom_rows else "",
        str(total.said_oom_ran) if total.oom_rows else "",
    ]


def _print_worst(verdicts: "Sequence[RowVerdict]", count: int) -> None:
    table = plain_table(
        ("row", "left"), ("error", "right"), ("measured", "right"), ("predicted", "right"), ("what", "wrap")
    )
    predicted = [item for item in verdicts if item.error is not None]
    for item in sorted(predicted, key=lambda item: -abs(item.error or 0.0))[:count]:
        what = f"{item.row.model}, {item.row.gpus or ''} x {item.row.gpu}, {item.row.framework}, {item.row.metric}"
        table.add_row(item.row.id, f"{item.error:+.0%}", f"{item.row.value:g}", f"{item.predicted:.4g}", what)
    console().print(table)
