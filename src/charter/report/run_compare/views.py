"""Compared runs as a page and in a terminal: rows of tables, values of charts, words for differences. Pure."""

from collections.abc import Iterator, Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from charter import __version__
from charter.report.markup import Markup, chart, document, esc, join, script_json, section, table
from charter.report.results import figure_text
from charter.report.run_compare.comparison import Difference, FigureRow, Measured, RunComparison, Spent
from charter.report.sections import pill
from charter.units import format_moment, format_seconds, format_usd

VERDICTS = {
    "higher": "higher, beyond noise",
    "lower": "lower, beyond noise",
    "within noise": "within noise",
    "no interval": "no interval",
}


def value_text(value: Measured | None, unit: str) -> str:
    """A figure with its interval.

    >>> value_text(Measured(value=0.577, low=0.509, high=0.643), "share")
    '57.7 % (50.9 to 64.3)'
    """
    if value is None:
        return "-"
    shown = figure_text(value.value, unit, with_unit=True)
    if value.low is None or value.high is None:
        return shown
    return f"{shown} ({figure_text(value.low, unit)} to {figure_text(value.high, unit)})"


def difference_text(found: Difference | None, unit: str) -> str:
    """A difference with its interval and sign; of shares in percentage points.

    >>> difference_text(Difference(value=0.02, low=-0.01, high=0.05), "share")
    '+2.0 points (-1.0 to +5.0)'
    """
    if found is None:
        return "-"
    unit_words = " points" if unit == "share" else f" {unit}" if unit else ""
    shown = _signed(found.value, unit) + unit_words
    if found.low is None or found.high is None:
        return shown
    return f"{shown} ({_signed(found.low, unit)} to {_signed(found.high, unit)})"


def verdict_text(row: FigureRow, index: int) -> str:
    """Return the verdict on whether a run differs from the first beyond noise, and what they do not share."""
    difference = row.differences[index]
    if difference is None:
        return ""
    words = VERDICTS[difference.verdict]
    return f"{words}, but measured with another {' and '.join(row.yardsticks)}" if row.yardsticks else words


def _signed(value: float, unit: str) -> str:
    text = figure_text(value, unit)
    return text if text.startswith("-") else f"+{text}"


def time_text(item: Spent) -> str:
    """The time, with the ratio to the first run."""
    return format_seconds(item.seconds) + _times(item.seconds_ratio)


def usd_text(item: Spent) -> str:
    """The cost, with the ratio to the first run."""
    return format_usd(item.usd) + _times(item.usd_ratio)


def waste_text(item: Spent) -> str:
    """Return the amount lost to kills and failed attempts in words; `nothing` where that is none."""
    if not item.lost_seconds:
        return "nothing"
    money = "" if item.lost_usd is None else f", {format_usd(item.lost_usd)}"
    share = "" if item.kept_share is None else f" ({1 - item.kept_share:.1%})"
    return f"{format_seconds(item.lost_seconds)}{money}{share}"


def planned_text(item: Spent) -> str:
    """Planned time and cost; a dash where there was no plan."""
    if item.planned_seconds is None:
        return "-"
    money = "" if item.planned_usd is None else f", {format_usd(item.planned_usd)}"
    return f"{format_seconds(item.planned_seconds)}{money}"


def _times(ratio: float | None) -> str:
    return "" if ratio is None or round(ratio, 2) == 1.0 else f" ({ratio:.2f} x)"


COLOURS = {"higher": "cyan", "lower": "magenta"}
"""Neither is good nor bad: a lower perplexity is better, a lower win rate is not."""


def comparison_text(found: RunComparison, *, all_figures: bool = False) -> RenderableType:
    """The whole comparison; of figures the headlines, where the evaluation names some, unless all are wanted."""
    return Group(*_parts(found, all_figures=all_figures))


def _parts(found: RunComparison, *, all_figures: bool) -> Iterator[RenderableType]:
    yield _totals(found)
    if found.stages:
        yield _stages(found)
    yield _spec(found) if found.spec else Text("\nAll runs have the same settings.\n", style="bold")
    headlines = [row for row in found.figures if row.headline]
    rows = found.figures if all_figures or not headlines else headlines
    if rows:
        yield _figures(found, rows)
    if len(rows) < len(found.figures):
        yield Text(f"{len(found.figures) - len(rows)} more figures: --all, --json or --html", style="dim")
    yield from (Text(f"- {note}", style="dim") for note in found.notes)


def _table(title: str, labels: Sequence[str], first: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    table.add_column(first, overflow="fold")
    for label in labels:
        table.add_column(Text(label), overflow="fold")
    return table


def _totals(found: RunComparison) -> Table:
    table = _table("Runs", found.labels, "")
    table.add_row("project", *map(Text, found.projects))
    table.add_row("state", *(Text(item.state) for item in found.totals))
    for name, of in (("time", time_text), ("cost", usd_text), ("planned", planned_text), ("lost", waste_text)):
        table.add_row(name, *(Text(of(item)) for item in found.totals))
    table.add_row("attempts", *(Text(str(item.attempts)) for item in found.totals))
    if any(item.calls for item in found.totals):
        table.add_row("calls to servers", *(Text(f"{item.calls:,}") for item in found.totals))
    return table


def _stages(found: RunComparison) -> Table:
    table = _table("Stages", found.labels, "Stage")
    for row in found.stages:
        names = dict.fromkeys(item.name for item in row if item is not None)
        table.add_row(Text(" / ".join(names)), *map(_stage_cell, row))
    return table


def _stage_cell(item: Spent | None) -> Text:
    if item is None:
        return Text("-", style="dim")
    if not item.attempts:
        return Text(item.state, style="dim")
    money = "" if item.usd is None else f", {usd_text(item)}"
    state = "" if item.state == "done" else f" {item.state}"
    return Text(f"{time_text(item)}{money}{state}")


def _spec(found: RunComparison) -> Table:
    table = _table("What differs in what was asked", found.labels, "Setting")
    for index, row in enumerate(found.spec):
        if index and not row.is_computed and found.spec[index - 1].is_computed:
            table.add_section()
        table.add_row(Text(row.path), *(Text("-" if value is None else value) for value in row.values))
    return table


def _figures(found: RunComparison, rows: Sequence[FigureRow]) -> Table:
    table = _table("Evaluation, with 95 % intervals", (), "Figure")
    for index, label in enumerate(found.labels):
        table.add_column(Text(label), overflow="fold")
        if index:
            table.add_column(Text(f"less {found.labels[0]}"), overflow="fold")
    for row in rows:
        table.add_row(Text(" / ".join(row.labels)), *_figure_cells(row))
    return table


def _figure_cells(row: FigureRow) -> Iterator[Text]:
    for index, value in enumerate(row.values):
        yield Text(value_text(value, row.unit))
        difference = row.differences[index]
        if index:
            style = "" if difference is None else COLOURS.get(difference.verdict, "")
            words = verdict_text(row, index)
            shown = difference_text(difference, row.unit)
            yield Text(f"{shown}\n{words}" if words else shown, style=style)


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
    title = " and ".join(found.labels)
    body = (
        Markup(f'<p class="kicker">{esc(f"Comparison of runs, {format_moment(now)}")}</p><h1>{esc(title)}</h1>'),
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
    note = "A dot is a figure, its line the 95 % interval. Beyond noise: the interval of a difference excludes zero."
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
        for title, drawn in ((f"{len(equal)} equal in every run", equal), ("In one run only", alone))
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
    return section("Settings that differ", *parts or (Markup("<p>All runs have the same settings.</p>"),))


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
