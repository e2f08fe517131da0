"""Estimate against actual as the rows of a page's tables, in words. Pure."""

from pathlib import Path
from typing import Any

from charter.engines.project import load_project
from charter.errors import CharterError
from charter.physics.fitted import Pace, load
from charter.plan.project_plan import CALIBRATION_FILE
from charter.report.estimate_actual import Accuracy, Against, PaceLine, accuracy
from charter.report.overview import overview
from charter.report.read import read_run
from charter.run.planned import measured_paces
from charter.units import format_bytes, format_seconds, format_usd

QUANTITIES = (
    ("seconds", "Time", format_seconds),
    ("tensor_bytes", "Memory of tensors", format_bytes),
    ("process_bytes", "Memory of the process", format_bytes),
    ("usd", "Cost", format_usd),
)
PLACES = {"inside": "within p10-p90", "above": "above p90", "below": "below p10", "open": ""}


def accuracy_rows(found: Accuracy) -> dict[str, Any]:
    """Plain JSON: a table per quantity that any stage has, and the paces."""
    return {"quantities": [table for table in map(_quantity(found), QUANTITIES) if table], "paces": _paces(found)}


def _quantity(found: Accuracy) -> Any:
    def of(item: tuple[str, str, Any]) -> dict[str, Any] | None:
        key, name, text = item
        rows = [
            {"stage": stage.name, "kind": stage.kind, "state": stage.state, **_against(getattr(stage, key), text)}
            for stage in found.stages
            if getattr(stage, key).p50 or getattr(stage, key).actual
        ]
        inside, settled = found.inside(key)
        bias = found.bias(key)
        if not rows or all(row["actual"] == "-" for row in rows):
            return None
        return {
            "key": key,
            "name": name,
            "rows": rows,
            "inside": inside,
            "told": settled,
            "bias": "" if bias is None else f"{bias:.2f}",
        }

    return of


def _against(item: Against, text: Any) -> dict[str, Any]:
    return {
        "planned": "-" if item.p50 is None else text(item.p50),
        "band": "-" if item.p10 is None or item.p90 is None else f"{text(item.p10)} to {text(item.p90)}",
        "actual": "-" if item.actual is None else text(item.actual),
        "ratio": "" if item.ratio is None else f"{item.ratio:.2f}",
        "place": item.place,
        "place_words": PLACES[item.place],
    }


def _paces(found: Accuracy) -> list[dict[str, Any]]:
    return [_pace(line) for line in found.paces]


def _pace(line: PaceLine) -> dict[str, Any]:
    return {
        "accelerator": line.accelerator,
        "kind": line.kind,
        "used": "shipped constants" if line.used is None else f"{line.used:.2f} x",
        "shown": "-" if line.shown is None else f"{line.shown:.2f} x",
        "steps": line.steps,
    }


# -------- Reading what estimate against actual is made from: the run, the paces in use, the paces that its steps show.


def read_accuracy(root: Path) -> Accuracy:
    """The run in a project directory beside its plan; UsageError where there is neither."""
    run = read_run(root)
    return accuracy(run, overview(run), used=_used(root), shown=_shown(root))


def _used(root: Path) -> tuple[Pace, ...]:
    """The paces of the project's own calibration, which its next plan uses."""
    path = root / CALIBRATION_FILE
    return load(path).paces if path.is_file() else ()


def _shown(root: Path) -> tuple[Pace, ...]:
    """Return the calibration that this run would store; nothing where the project can no longer be planned."""
    try:
        return measured_paces(load_project(root), root)
    except CharterError:
        return ()
