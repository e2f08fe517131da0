"""A plan as one HTML page: totals, stages, money, dates, memory, choices, what it is unsure of."""

from datetime import UTC, datetime
from typing import Any

from charter import __version__
from charter.plan.plan import Plan
from charter.report.document import document
from charter.report.markup import Markup, chart, esc, join, script_json, section, table
from charter.report.plan_page import tables
from charter.report.plan_page.chart_data import chart_data
from charter.report.plan_page.drivers import drivers, median_total
from charter.report.plan_page.heading import heading
from charter.report.plan_page.levers import sliders
from charter.units import format_seconds, format_usd

ROW = 30
"""Pixels of one row of a horizontal chart."""
SCRIPTS, STYLES = ("plan.js",), ("plan.css",)


def plan_html(plan: Plan, *, now: float, start: float | None = None) -> str:
    """The whole page; `now` is the time that it says it was made at, `start` puts dates on the time axis."""
    charts = chart_data(plan, start=start)
    today = datetime.fromtimestamp(now, tz=UTC).date()
    body = (
        heading(plan, now=now, start=start),
        tables.stage_table(plan),
        money(plan, charts),
        schedule(plan, charts),
        memory(plan, charts),
        choices(charts),
        tables.why_this_hardware(plan),
        sensitivity(plan),
        sliders(plan),
        tables.rejected_families(plan),
        tables.assumptions(plan, today),
        Markup(f'<p class="note made">Made by charter {esc(__version__)}.</p>'),
    )
    title = f"{plan.name} - Charter plan"
    return document(title=title, body=join(body), data=script_json(charts), scripts=SCRIPTS, styles=STYLES)


def money(plan: Plan, charts: dict[str, Any]) -> Markup:
    """Cost by stage, and how much of it is work."""
    data = charts["buckets"]
    priced = data["unit"] == "usd"
    label = f"{'Cost' if priced else 'Time'} by stage"
    text = format_usd if priced else format_seconds
    rows = [
        (tables.stage_name(plan, row["stage"]), *(text(value) for value in row["values"]), text(sum(row["values"])))
        for row in data["rows"]
    ]
    numbers = table(("Stage", *data["parts"], "sum"), rows, numeric=range(1, len(data["parts"]) + 2))
    drawn = chart("buckets", label=label, height=ROW * len(rows) + 60)
    note = f"{label} at the median, by what it is paid for." if priced else f"{label} at the median."
    return section("Where it goes", drawn, folded("As numbers", numbers), units(plan), note=note)


def units(plan: Plan) -> Markup:
    """Cost per unit of what the project makes."""
    if plan.cost is None or not plan.cost.units:
        return Markup("")
    rows = [(item.name.replace("_", " "), f"{item.value:,.4g}", item.formula) for item in plan.cost.units]
    return folded("Cost per unit", table(("Unit", "Value", "From"), rows, numeric=(1,)))


def schedule(plan: Plan, charts: dict[str, Any]) -> Markup:
    """Return the times at which each stage runs, at the median and at p90."""
    drawn = chart("gantt", label="Start and end of each stage", height=ROW * len(plan.stages) + 40)
    path = " > ".join(plan.timeline().critical_path)
    clock = "" if charts["gantt"]["start"] is None else " Times are UTC."
    note = f"Solid: medians of start and end over draws of the plan; pale: their p90.{clock} Critical path: {path}."
    return section("Timeline", drawn, tables.schedule_table(plan), note=note)


def memory(plan: Plan, charts: dict[str, Any]) -> Markup:
    """The fullest moment of the fullest accelerator of each stage, by part."""
    rows = charts["memory"]["rows"]
    drawn = chart("memory", label="Peak memory by part", height=ROW * len(rows) + 90) if rows else ""
    note = "Peak per accelerator at the fullest moment. The line is what a plan may use of it."
    return section("Memory", drawn, tables.memory_table(plan), note=note)


def choices(charts: dict[str, Any]) -> Markup:
    """Time against money of every option, a chart per stage."""
    cells = [
        chart(
            "pareto",
            label=f"Options of stage {panel['stage']}: time against cost",
            height=250,
            caption=f"{panel['stage']}: {len(panel['points'])} options"
            + (f", {panel['left_out']} dearer ones not drawn" if panel["left_out"] else ""),
            index=index,
        )
        for index, panel in enumerate(charts["pareto"])
    ]
    if not cells:
        return Markup("")
    note = (
        "Time against cost at the median; the larger a mark, the more memory is left. Ringed: chosen. Diamonds cost as "
        "much within the width of the estimate. The dashed line joins options that none beats in time and cost."
    )
    return section("Choices", Markup(f'<div class="multiples">{"".join(cells)}</div>'), note=note)


def sensitivity(plan: Plan) -> Markup:
    """Return the chart of the total with one cause low or high."""
    entries = drivers(plan)
    if not entries:
        return Markup("")
    unit, base = median_total(plan)
    text = format_usd if unit == "usd" else format_seconds
    rows = [(item.name, text(item.low), text(item.high), text(item.width), item.note) for item in entries]
    numbers = table(("Cause", "Low", "High", "Width", "What it is"), rows, numeric=(1, 2, 3))
    label = f"What moves the {'cost' if unit == 'usd' else 'time'} of the plan"
    drawn = chart("tornado", label=label, height=ROW * len(rows) + 46)
    what = "" if unit == "usd" else ", the sum of all stages"
    note = f"Each cause at its p10 and p90, all else at the median of {text(base)}{what}; stages move together."
    return section("What moves the total", drawn, numbers, note=note)


def folded(summary: str, body: str) -> Markup:
    """`body` behind a line to open it by."""
    return Markup(f"<details><summary>{esc(summary)}</summary>{body}</details>")
