"""Estimate against actual as the rows of a page's tables, in words. Pure."""

from typing import Any

from charter.report.estimate_actual import Accuracy, Against, PaceLine
from charter.units import format_bytes, format_seconds, format_usd

QUANTITIES = (
    ("seconds", "Time", format_seconds),
    ("memory_bytes", "Memory", format_bytes),
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
