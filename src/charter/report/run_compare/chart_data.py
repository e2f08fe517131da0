"""Values of the charts of compared runs, as one JSON value. Pure."""

from typing import Any

from charter.report.run_compare.comparison import RunComparison
from charter.report.run_compare.figures import FigureRow


def chart_data(found: RunComparison) -> dict[str, Any]:
    """Figures by unit, and curves; runs are counted in the order they were given."""
    return {
        "stages": list(found.labels),
        "runs": list(found.labels),
        "figures": _panels(found),
        "overlays": [
            {
                "title": panel.title,
                "metric": panel.metric,
                "lines": [
                    {"run": line.side, "stage": line.stage, "mean_of": line.mean_of, "points": list(line.points)}
                    for line in panel.lines
                ],
            }
            for panel in found.curves
        ],
    }


def _panels(found: RunComparison) -> list[dict[str, Any]]:
    """Figures that share a unit share an axis; those that only one run has are in the table alone."""
    panels: dict[str, list[dict[str, Any]]] = {}
    for row in found.figures:
        if sum(value is not None for value in row.values) > 1:
            panels.setdefault(row.unit, []).append(_row(row))
    return [{"unit": unit, "rows": rows} for unit, rows in panels.items()]


def _row(row: FigureRow) -> dict[str, Any]:
    return {
        "label": row.labels[0],
        "values": [
            None if value is None else {"value": value.value, "low": value.low, "high": value.high}
            for value in row.values
        ],
    }
