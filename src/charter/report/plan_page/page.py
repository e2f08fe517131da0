"""A plan as one HTML page: totals, stages, money, dates, memory, choices, what it is unsure of."""

from datetime import UTC, date, datetime
from typing import Any

from charter import __version__
from charter.physics.terms import Interval
from charter.plan.money import STORAGE, TRANSFER
from charter.plan.option import Option
from charter.plan.plan import Plan
from charter.plan.stage_plan import StagePlan
from charter.report.markup import (
    Markup,
    card,
    chart,
    document,
    esc,
    folded,
    join,
    plain_value,
    script_json,
    section,
    stage_name,
    table,
)
from charter.report.plan_cells import (
    VERDICT_WORDS,
    beside_the_machines,
    dates_line,
    full_share,
    gib,
    hardware,
    hours,
    is_stale,
    layout,
    less,
    peak_of_limit,
    seconds_range,
    usd_range,
)
from charter.report.plan_notes import difference, dominant_phase, longest_pole, sample_lines, split_rejected
from charter.report.plan_page.front import chart_data, drivers, median_total
from charter.units import format_bytes, format_count, format_moment, format_seconds, format_usd

# -------- The tables of the plan page: stages, why this hardware, what was dropped, what is assumed.


OBJECTIVES = {
    "cheapest": "the fastest of the plans within 5 % of the cheapest, if it keeps the deadline",
    "fastest": "the earliest end",
    "balanced": "the least product of time and cost",
}
"""What a plan is chosen for (plan/decision.py), in words."""
NEXT_OPTIONS = 5
"""Options that are shown beside the chosen one, per stage."""


def stage_table(plan: Plan) -> Markup:
    """Every stage: hardware, layout, how full, how long, what it costs; storage and totals."""
    head = ("Stage", "Hardware", "Layout", "Peak GiB", "Full", "Time p50-p90", "GPU-h", "Cost p50-p90")
    pole = longest_pole(plan)
    rows = [_stage_row(plan, stage, pole=stage is pole) for stage in plan.stages]
    total = (
        Markup("<strong>Total</strong>"),
        f"{format_bytes(plan.storage_bytes)} stored",
        "",
        "",
        "",
        seconds_range(plan.seconds),
        hours(plan.gpu_hours.p50),
        usd_range(plan.project_usd),
    )
    rows += _around(plan)
    note = "Cost is machines and storage. Marked: the stage that decides how long the run takes."
    note = " ".join((note, *sample_lines(plan)))
    return section("Stages", table(head, rows, numeric=range(3, 8), foot=total), note=note)


def _around(plan: Plan) -> list[tuple[object, ...]]:
    """Return the cost beside the machines, storage and transfer of its stages, where there is any."""
    total = plan.project_usd
    if total is None or plan.usd is None or not less(total, plan.usd).p90:
        return []
    named = [name for name, _ in beside_the_machines(plan) if name not in (STORAGE, TRANSFER)]
    return [("around the stages", ", ".join(named), "", "", "", "", "", usd_range(less(total, plan.usd)))]


def _stage_row(plan: Plan, stage: StagePlan, *, pole: bool) -> tuple[object, ...]:
    option = stage.option
    mark = Markup(' <span class="pill running">longest</span>') if pole and len(plan.stages) > 1 else ""
    return (
        join((stage_name(plan, stage.name), mark)),
        hardware(option),
        layout(option),
        " / ".join(peak_of_limit(stage)),
        f"{100 * full_share(option):.0f} %",
        seconds_range(option.seconds),
        hours(stage.gpu_hours.p50),
        usd_range(stage.usd),
    )


def schedule_table(plan: Plan) -> Markup:
    """Start and end of every stage at p50 and at p90, from the start of the run."""
    median, high = plan.timeline("p50"), plan.timeline("p90")
    rows = [
        (
            stage_name(plan, stage.name),
            format_seconds(median.start_seconds[stage.name]),
            format_seconds(median.end_seconds[stage.name]),
            format_seconds(high.end_seconds[stage.name]),
            "yes" if stage.name in median.critical_path else "",
        )
        for stage in plan.stages
    ]
    head = ("Stage", "Starts p50", "Ends p50", "Ends p90", "Critical path")
    return folded("As numbers", table(head, rows, numeric=(1, 2, 3)))


def memory_table(plan: Plan) -> Markup:
    """Peak of every stage with its range, the largest parts, and whose it is."""
    rows = []
    for stage in plan.stages:
        option = stage.option
        if option.peak.total_bytes <= 0:
            continue
        parts = sorted(option.peak.by_part().items(), key=lambda item: -item[1])[:4]
        roles: dict[str, float] = {}
        for role, term in option.peak.parts:
            roles[role or "all roles"] = roles.get(role or "all roles", 0.0) + term.value
        rows.append(
            (
                stage_name(plan, stage.name),
                option.peak.moment,
                _bytes_range(stage.peak_range.interval),
                format_bytes(stage.peak_range.enough_bytes),
                format_bytes(option.capacity_bytes),
                ", ".join(f"{name.replace('_', ' ')} {format_bytes(value)}" for name, value in parts),
                ", ".join(f"{name} {format_bytes(value)}" for name, value in roles.items()),
            )
        )
    head = ("Stage", "Fullest moment", "Peak p10-p90", "Planned with", "Usable", "Largest parts", "By role")
    return table(head, rows, numeric=(2, 3, 4)) if rows else Markup("")


def _bytes_range(interval: Interval) -> str:
    return f"{gib(interval.p10)}-{gib(interval.p90)} GiB"


def why_this_hardware(plan: Plan) -> Markup:
    """The chosen option of every stage and the next ones, each with what it would change."""
    head = ("Option", "Layout", "Full", "Time p50-p90", "Cost p50", "Against the chosen")
    parts = []
    for stage in plan.stages:
        others = _next_options(stage)
        if not others:
            continue
        rows = [_option_row(stage.option, "chosen"), *(_option_row(o, difference(o, stage.option)) for o in others)]
        title = Markup(f"<h3>{stage_name(plan, stage.name)}</h3>")
        parts.append(join((title, table(head, rows, numeric=(2, 3, 4)))))
    rule = OBJECTIVES.get(plan.objective, plan.objective)
    note = (
        f"Cost of the machines; the next options that fit, cheapest first. The plan is chosen as a whole ({rule}), so "
        "a single stage may have a cheaper or faster option."
    )
    return section("Why this hardware", *parts, note=note)


def _next_options(stage: StagePlan) -> list[Option]:
    """The next options of other hardware or layout, cheapest first."""
    chosen = stage.option
    others = [option for option in stage.options if option is not chosen and option != chosen]

    def key(option: Option) -> tuple[float, float, str]:
        usd = 0.0 if option.usd is None else option.usd.p50
        return (usd, option.seconds.p50, option.label + option.layout_label)

    return sorted(others, key=key)[:NEXT_OPTIONS]


def _option_row(option: Option, reason: str) -> tuple[object, ...]:
    return (
        hardware(option),
        layout(option),
        f"{100 * full_share(option):.0f} %",
        seconds_range(option.seconds),
        format_usd(None if option.usd is None else option.usd.p50),
        Markup(f"<strong>{esc(reason)}</strong>") if reason == "chosen" else reason,
    )


def rejected_families(plan: Plan) -> Markup:
    """Return the options that do not fit or cannot be had, one reason each."""
    rows = [
        (stage_name(plan, stage.name), item.option, item.reason)
        for stage in plan.stages
        for item in split_rejected(stage)[1]
    ]
    if not rows:
        return Markup("")
    shown = table(("Stage", "Option", "Reason"), rows)
    return section("Not possible", folded(f"{len(rows)} options that do not fit or are not offered", shown))


def assumptions(plan: Plan, today: date) -> Markup:
    """Return the assumptions of the plan, with source and date; old prices are marked."""
    rows = []
    for item in plan.assumptions:
        stale = Markup(' <span class="pill interrupted">stale</span>') if is_stale(item.name, item.as_of, today) else ""
        rows.append((item.name, plain_value(item.value), item.source, join((esc(item.as_of), stale))))
    head = ("Assumption", "Value", "Source", "As of")
    return section("Assumptions", table(head, rows) if rows else "")


LOWEST, HIGHEST = 50, 200
"""Per cent of the planned value that a slider reaches."""


# -------- A plan as one HTML page: totals, stages, money, dates, memory, choices, what it is unsure of.


def sliders(plan: Plan) -> Markup:
    """The sliders and, until one is moved, the totals of the plan; without a script there is nothing to move."""
    seconds, usd = plan.seconds, plan.project_usd
    shown = [("time", "Time", f"{format_seconds(seconds.p50)} (p90 {format_seconds(seconds.p90)})")]
    if usd is not None and usd.p50:
        shown.append(("cost", "Cost", f"{format_usd(usd.p50 / 1e6)} (p90 {format_usd(usd.p90 / 1e6)})"))
    inputs = _slider("speed", "Speed of the work")
    inputs += _slider("price", "Price per hour") if len(shown) > 1 else ""
    outputs = "".join(
        f'<p><span class="name">{name}</span> <output data-total="{key}">{esc(text)}</output> '
        f'<span class="note" data-verdict="{key}"></span></p>'
        for key, name, text in shown
    )
    body = Markup(f'<div class="levers"><div>{inputs}</div><div aria-live="polite">{outputs}</div></div>')
    note = (
        "Computed in this page: hardware and layouts stay, and so does the time to start a stage. "
        "For another choice of hardware ask charter plan again."
    )
    return section("What if", body, note=note)


def _slider(key: str, label: str) -> str:
    return (
        f'<label>{label} <span data-percent="{key}">100 %</span>'
        f'<input type="range" data-lever="{key}" min="{LOWEST}" max="{HIGHEST}" step="5" value="100"></label>'
    )


def heading(plan: Plan, *, now: float, start: float | None) -> Markup:
    """Name, when it was made, dates of catalog and prices, four figures, budget and deadline."""
    today = datetime.fromtimestamp(now, tz=UTC).date()
    kicker = f"Plan, {format_moment(now)}; nothing was started"
    cards = join(card(*figure) for figure in _cards(plan, start))
    return Markup(
        f'<header><p class="kicker">{esc(kicker)}</p><h1>{esc(plan.name)}</h1>{_models(plan, today)}'
        f'<div class="cards">{cards}</div>{_bars(plan)}</header>'
    )


def _models(plan: Plan, today: date) -> str:
    parts = [f"{name} {format_count(size)}" for name, size in plan.models] + dates_line(plan, today)
    return f'<p class="note">{esc(" · ".join(parts))}</p>' if parts else ""


def _cards(plan: Plan, start: float | None) -> list[tuple[str, str, str]]:
    seconds, usd = plan.seconds, plan.project_usd
    cost = (
        (format_usd(usd.p50 / 1e6), f"p90 {format_usd(usd.p90 / 1e6)}") if usd else ("unpriced", "a stage has no price")
    )
    pole = longest_pole(plan)
    phase = dominant_phase(pole)
    most = f"{100 * phase[1]:.0f} % of its time in {phase[0]}" if phase else "longest stage of the critical path"
    cards = [
        ("Time", format_seconds(seconds.p50), f"p90 {format_seconds(seconds.p90)}"),
        ("Cost", *cost),
        ("Accelerator-hours", f"{plan.gpu_hours.p50:,.0f}", f"p90 {plan.gpu_hours.p90:,.0f}"),
        ("Bottleneck", pole.name, most),
    ]
    if start is not None:
        cards.insert(1, ("Done", _day(start + seconds.p50), f"p90 {_day(start + seconds.p90)}; started {_day(start)}"))
    return cards


def _bars(plan: Plan) -> str:
    bars = ""
    total = plan.project_usd
    if plan.budget_usd is not None and total is not None:
        median, high = total.p50 / 1e6, total.p90 / 1e6
        text = f"Budget {format_usd(plan.budget_usd)}: {format_usd(median)} at p50, {format_usd(high)} at p90"
        bars += _bar(median, high, plan.budget_usd, text, plan.budget_verdict)
    elif plan.budget_usd is not None:
        bars += (
            f'<p class="note">Budget {esc(format_usd(plan.budget_usd))}: cannot be checked, a stage has no price.</p>'
        )
    if plan.deadline_seconds is not None:
        limit, time = plan.deadline_seconds, plan.seconds
        text = f"Deadline {format_seconds(limit)}: {format_seconds(time.p50)} at p50, {format_seconds(time.p90)} at p90"
        bars += _bar(time.p50, time.p90, limit, text, plan.deadline_verdict)
    return bars


def _bar(median: float, high: float, limit: float, text: str, verdict: str | None) -> str:
    """Two bars on one axis and a mark at the limit; the colour and the words say the verdict."""
    scale = max(limit, high) * 1.04 or 1.0
    state = {"ok": "", "p90 over": " warn", "over": " exceeded"}.get(verdict or "", "")
    spans = "".join(
        f'<span class="{name}" style="width:{100 * value / scale:.2f}%"></span>'
        for name, value in (("high", high), ("used", median))
    )
    mark = f'<span class="limit" style="left:{100 * limit / scale:.2f}%"></span>'
    words = f"{text}: {VERDICT_WORDS.get(verdict or '', verdict or '')}"
    return f'<div class="budget{state}"><div class="bar">{spans}{mark}</div><p>{esc(words)}</p></div>'


def _day(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, tz=UTC).strftime("%d %b %H:%M")


ROW = 30
"""Pixels of one row of a horizontal chart."""
SCRIPTS, STYLES = ("plan.js",), ("plan.css",)


def plan_html(plan: Plan, *, now: float, start: float | None = None) -> str:
    """The whole page; `now` is the time that it says it was made at, `start` puts dates on the time axis."""
    charts = chart_data(plan, start=start)
    today = datetime.fromtimestamp(now, tz=UTC).date()
    body = (
        heading(plan, now=now, start=start),
        stage_table(plan),
        money(plan, charts),
        schedule(plan, charts),
        memory(plan, charts),
        choices(charts),
        why_this_hardware(plan),
        sensitivity(plan),
        sliders(plan),
        rejected_families(plan),
        assumptions(plan, today),
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
        (stage_name(plan, row["stage"]), *(text(value) for value in row["values"]), text(sum(row["values"])))
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
    return section("Timeline", drawn, schedule_table(plan), note=note)


def memory(plan: Plan, charts: dict[str, Any]) -> Markup:
    """The fullest moment of the fullest accelerator of each stage, by part."""
    rows = charts["memory"]["rows"]
    drawn = chart("memory", label="Peak memory by part", height=ROW * len(rows) + 90) if rows else ""
    note = "Peak per accelerator at the fullest moment. The line is what a plan may use of it."
    return section("Memory", drawn, memory_table(plan), note=note)


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
        "much within the width of the estimate. The dashed line joins the options that no other beats in time and cost."
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
