"""The tables of the plan page: stages, why this hardware, what was dropped, what is assumed."""

from datetime import date

from charter.physics.terms import Interval
from charter.plan.money import STORAGE, TRANSFER
from charter.plan.option import Option
from charter.plan.plan import Plan
from charter.plan.stage_plan import StagePlan
from charter.report.markup import Markup, esc, join, section, table
from charter.report.plan_cells import (
    beside_the_machines,
    full_share,
    gib,
    hardware,
    hours,
    is_stale,
    layout,
    less,
    seconds_range,
    usd_range,
)
from charter.report.plan_notes import difference, longest_pole, sample_lines, split_rejected
from charter.units import format_bytes, format_seconds, format_usd

OBJECTIVES = {
    "cheapest": "the fastest of the plans within 5 % of the cheapest, if it keeps the deadline",
    "fastest": "the earliest end",
    "balanced": "the least product of time and cost",
}
"""What a plan is chosen for (plan/decision.py), in words."""
NEXT_OPTIONS = 5
"""Options that are shown beside the chosen one, per stage."""


def stage_name(plan: Plan, name: str) -> Markup:
    """A stage's name behind a dot in its colour."""
    names = [stage.name for stage in plan.stages]
    colour = f"s{names.index(name) % 12}" if name in names else "other"
    return Markup(f'<span class="stage"><span class="dot {colour}"></span>{esc(name)}</span>')


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
        f"{gib(option.peak.total_bytes)} / {gib(option.capacity_bytes)}",
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
    return _folded("As numbers", table(head, rows, numeric=(1, 2, 3)))


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
                format_bytes(option.capacity_bytes),
                ", ".join(f"{name.replace('_', ' ')} {format_bytes(value)}" for name, value in parts),
                ", ".join(f"{name} {format_bytes(value)}" for name, value in roles.items()),
            )
        )
    head = ("Stage", "Fullest moment", "Peak p10-p90", "Usable", "Largest parts", "By role")
    return table(head, rows, numeric=(2, 3)) if rows else Markup("")


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
    return section("Not possible", _folded(f"{len(rows)} options that do not fit or are not offered", shown))


def assumptions(plan: Plan, today: date) -> Markup:
    """Return the assumptions of the plan, with source and date; old prices are marked."""
    rows = []
    for item in plan.assumptions:
        stale = Markup(' <span class="pill interrupted">stale</span>') if is_stale(item.name, item.as_of, today) else ""
        rows.append((item.name, _plain(item.value), item.source, join((esc(item.as_of), stale))))
    head = ("Assumption", "Value", "Source", "As of")
    return section("Assumptions", table(head, rows) if rows else "")


def _plain(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "" if value is None else str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _folded(summary: str, body: str) -> Markup:
    return Markup(f"<details><summary>{esc(summary)}</summary>{body}</details>")
