"""Compared runs as the rows of a page's tables, in words: what a template prints. Pure."""

from typing import Any

from charter.report.run_compare.comparison import RunComparison
from charter.report.run_compare.figures import FigureRow
from charter.report.run_compare.money import Spent
from charter.report.run_compare.words import (
    difference_text,
    planned_text,
    time_text,
    usd_text,
    value_text,
    verdict_text,
    waste_text,
)


def page_rows(found: RunComparison) -> dict[str, Any]:
    """Plain JSON, every number already a text with its unit."""
    return {
        "labels": list(found.labels),
        "runs": [
            {"label": label, "project": project, "attempts": item.attempts, **_spent(item)}
            for label, project, item in zip(found.labels, found.projects, found.totals, strict=True)
        ],
        "spec": [{"path": row.path, "values": list(row.values), "is_computed": row.is_computed} for row in found.spec],
        "figures": [_figure(row) for row in found.figures],
        "stages": [
            {
                "name": " / ".join(dict.fromkeys(item.name for item in row if item is not None)),
                "cells": [None if item is None else _spent(item) | {"ran": item.attempts > 0} for item in row],
            }
            for row in found.stages
        ],
        "curves": [
            {
                "title": panel.title,
                "metric": panel.metric.replace("_", " "),
                "runs": len(panel.lines),
                "equal": panel.is_equal,
            }
            for panel in found.curves
        ],
        "notes": list(found.notes),
    }


def _spent(item: Spent) -> dict[str, Any]:
    return {
        "state": item.state,
        "time": time_text(item),
        "usd": usd_text(item),
        "planned": planned_text(item),
        "lost": waste_text(item),
    }


def _figure(row: FigureRow) -> dict[str, Any]:
    return {
        "label": " / ".join(row.labels),
        "suite": row.suite.replace("_", " "),
        "headline": row.headline,
        "cells": [
            {
                "value": value_text(value, row.unit),
                "difference": difference_text(difference, row.unit) if index else "",
                "verdict": verdict_text(row, index),
                "state": difference.verdict if difference is not None else "",
            }
            for index, (value, difference) in enumerate(zip(row.values, row.differences, strict=True))
        ],
    }
