"""Compared runs as a page: rows of its tables, values of its charts."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from charter import __version__
from charter.report.markup import Markup, chart, document, esc, join, script_json, section, table
from charter.report.run_compare.comparison import FigureRow, RunComparison, Spent
from charter.report.run_compare.text import (
    difference_text,
    planned_text,
    time_text,
    usd_text,
    value_text,
    verdict_text,
    waste_text,
)
from charter.report.sections import pill


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


ROW = 30
"""Pixels of one row of a horizontal chart."""
SCRIPTS = ("compare.js",)


def comparison_html(found: RunComparison, *, now: float) -> str:
    """The whole page; `now` is the time that it says it was made at."""
    stamp = datetime.fromtimestamp(now, tz=UTC).strftime("%Y-%m-%d %H:%M UTC")
    title = " and ".join(found.labels)
    body = (
        Markup(f'<p class="kicker">{esc(f"Comparison of runs, {stamp}")}</p><h1>{esc(title)}</h1>'),
        totals(found),
        figures(found),
        curves(found),
        settings(found),
        stages(found),
        notes(found),
        Markup(f'<p class="note made">Made by charter {esc(__version__)}.</p>'),
    )
    return document(title=f"{title} - Charter", body=join(body), data=script_json(chart_data(found)), scripts=SCRIPTS)


def totals(found: RunComparison) -> Markup:
    """Each run in all: state, time, cost, what was lost."""
    head = ("Run", "Project", "State", "Time", "Cost", "Planned", "Lost", "Attempts")
    rows = [
        (run_name(found, index), project, pill(item.state), *_amounts(item), f"{item.attempts:,}")
        for index, (item, project) in enumerate(zip(found.totals, found.projects, strict=True))
    ]
    return section(
        "Runs", table(head, rows, numeric=(3, 4, 5, 6, 7)), note="In brackets: how many times the first run."
    )


def _amounts(item: Spent) -> tuple[str, ...]:
    return (time_text(item), usd_text(item), planned_text(item), waste_text(item))


def run_name(found: RunComparison, index: int) -> Markup:
    """A run's label behind a dot in its colour."""
    return Markup(f'<span class="stage"><span class="dot s{index % 12}"></span>{esc(found.labels[index])}</span>')


def figures(found: RunComparison) -> Markup:
    """Evaluations side by side, with whether they differ beyond noise."""
    if not found.figures:
        return Markup("")
    panels = chart_data(found)["figures"]
    drawn = [
        chart(
            "side_by_side",
            label=f"Figures in {panel['unit'] or 'their own unit'} of every run with 95 % intervals",
            height=(14 * len(found.labels) + 22) * len(panel["rows"]) + 70,
            index=index,
        )
        for index, panel in enumerate(panels)
    ]
    head = ["Figure", found.labels[0]]
    for label in found.labels[1:]:
        head += [label, f"less {found.labels[0]}", "Verdict"]
    rows = [(" / ".join(row.labels), *_cells(row)) for row in found.figures]
    note = "A dot is a figure, its line the 95 % interval. Beyond noise: the interval of a difference leaves out zero."
    return section("Evaluation", *drawn, table(head, rows), note=note)


def _cells(row: FigureRow) -> Iterator[str]:
    for index, value in enumerate(row.values):
        yield value_text(value, row.unit)
        if index:
            yield difference_text(row.differences[index], row.unit)
            yield verdict_text(row, index)


def curves(found: RunComparison) -> Markup:
    """The same metric of every run in one panel."""
    if not found.curves:
        return Markup("")
    shared: list[Markup] = []
    alone: list[Markup] = []
    equal: list[Markup] = []
    for index, panel in enumerate(found.curves):
        metric = panel.metric.replace("_", " ")
        label, caption = f"{metric} of {panel.title} by step, every run", f"{panel.title}: {metric}"
        drawn = chart("overlay", label=label, height=190, caption=caption, index=index)
        (equal if panel.is_equal else shared if len(panel.lines) > 1 else alone).append(drawn)
    key = " ".join(run_name(found, index) for index in range(len(found.labels)))
    numbers = [
        (panel.title, panel.metric.replace("_", " "), run_name(found, line.side), *_ends(line.points))
        for panel in found.curves
        for line in panel.lines
    ]
    head = ("Stage", "Metric", "Run", "First", "Last", "Lowest", "Highest")
    folded = Markup(f"<details><summary>As numbers</summary>{table(head, numbers, numeric=(3, 4, 5, 6))}</details>")
    grid = '<div class="multiples">{}</div>'.format
    others = "".join(
        f"<details><summary>{title}</summary>{grid(join(drawn))}</details>"
        for title, drawn in ((f"{len(equal)} equal in every run", equal), ("Of one run alone", alone))
        if drawn
    )
    return section("Curves", Markup(f'<p class="note">{key}</p>{grid(join(shared))}{others}'), folded)


def _ends(points: tuple[tuple[int, float], ...]) -> tuple[str, ...]:
    values = [value for _, value in points]
    return tuple(f"{end:.4g}" for end in (values[0], values[-1], min(values), max(values)))


def settings(found: RunComparison) -> Markup:
    """Return the settings that differ."""
    parts = []
    for title, computed in (("What is computed", True), ("Where and how", False)):
        rows = [
            (row.path, *("-" if value is None else value for value in row.values))
            for row in found.spec
            if row.is_computed is computed
        ]
        if rows:
            parts.append(Markup(f"<h3>{title}</h3>{table(('Setting', *found.labels), rows)}"))
    return section("Settings that differ", *parts or (Markup("<p>The runs were asked for the same.</p>"),))


def stages(found: RunComparison) -> Markup:
    """Time and cost of the stages that answer each other."""
    rows = []
    for row in found.stages:
        names = " / ".join(dict.fromkeys(item.name for item in row if item is not None))
        rows.append((names, *(cell for item in row for cell in _stage(item))))
    head = ["Stage", *(f"{label}, {what}" for label in found.labels for what in ("time", "cost"))]
    return section("Stages", table(head, rows, numeric=range(1, len(head))))


def _stage(item: Spent | None) -> tuple[str, str]:
    if item is None:
        return ("-", "-")
    return (time_text(item), usd_text(item)) if item.attempts else (item.state, "")


def notes(found: RunComparison) -> Markup:
    """Return the notes to keep in mind."""
    items = "".join(f"<li>{esc(note)}</li>" for note in found.notes)
    return section("What to keep in mind", Markup(f"<ul>{items}</ul>") if items else "")
