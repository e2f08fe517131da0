"""Several plans side by side in a terminal: stages in rows, plans in columns, each beside the first."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from charter.physics.terms import Interval
from charter.plan.plan import Plan
from charter.plan.stage_plan import MicroUsd, StagePlan
from charter.report.plan_cells import full_share, hardware, layout, ratio, seconds_range, usd_range
from charter.units import format_usd


def compare_table(plans: Sequence[tuple[str, Plan]]) -> RenderableType:
    """One column per (label, plan): hardware, layout, time and cost p50-p90, share of the memory at its peak.

    Behind time and cost stands the ratio of the medians to those of the first plan. A stage that a plan does not
    have is a dash. Totals have the whole cost of the project where every plan has it, else the stages alone.
    """
    table = Table(box=box.SIMPLE_HEAD, show_lines=True)
    table.add_column("Stage", no_wrap=True)
    for label, _ in plans:
        table.add_column(Text(label), overflow="fold")
    if not plans:
        return table
    first = plans[0][1]
    for name in _names([plan for _, plan in plans]):
        table.add_row(Text(name), *(_stage_cell(plan.stage(name), first.stage(name)) for _, plan in plans))
    table.add_section()
    all_priced = all(plan.cost is not None for _, plan in plans)
    totals = [plan.project_usd if all_priced else plan.usd for _, plan in plans]
    cells = (_total_cell(plan, usd, first, totals[0]) for (_, plan), usd in zip(plans, totals, strict=True))
    table.add_row(Text("total", style="bold"), *cells)
    return table


def _names(plans: Sequence[Plan]) -> list[str]:
    """Every stage once, in the order of the first plan that has it."""
    return list(dict.fromkeys(stage.name for plan in plans for stage in plan.stages))


def _stage_cell(stage: StagePlan | None, base: StagePlan | None) -> Text:
    if stage is None:
        return Text("-", style="dim")
    option = stage.option
    seconds = None if base is None else base.option.seconds.p50
    usd = None if base is None else base.usd
    lines = [
        hardware(option),
        f"{layout(option)}, {full_share(option):.0%} full",
        seconds_range(option.seconds) + _ratio_text(option.seconds.p50, seconds),
        usd_range(stage.usd) + _usd_ratio(stage.usd, usd),
    ]
    return Text("\n".join(lines))


def _total_cell(plan: Plan, usd: MicroUsd | None, first: Plan, first_usd: MicroUsd | None) -> Text:
    fullest = max((full_share(stage.option) for stage in plan.stages), default=0.0)
    lines = [
        seconds_range(plan.seconds) + _ratio_text(plan.seconds.p50, first.seconds.p50),
        usd_range(usd) + _usd_ratio(usd, first_usd),
        f"fullest {fullest:.0%}",
    ]
    lines += [f"budget {plan.budget_verdict}"] if plan.budget_verdict else []
    lines += [f"deadline {plan.deadline_verdict}"] if plan.deadline_verdict else []
    return Text("\n".join(lines), style="bold")


def _ratio_text(value: float, base: float | None) -> str:
    """The ratio to the first plan; nothing where there is none, or no difference."""
    if not base or round(value / base, 2) == 1.0:
        return ""
    return f" ({value / base:.2f} x)"


def _usd_ratio(money: MicroUsd | None, base: MicroUsd | None) -> str:
    return "" if money is None or base is None else _ratio_text(money.p50, base.p50)


# -------- Plans side by side as plain values: ratios of totals and stages to the first plan's.

MEASURES = ("seconds", "gpu_hours", "usd")


def ratios(plan: Plan, base: Plan) -> Mapping[str, float | None]:
    """Medians of a plan over those of another; None where one has no price."""
    return {
        "seconds": ratio(plan.seconds.p50, base.seconds.p50),
        "gpu_hours": ratio(plan.gpu_hours.p50, base.gpu_hours.p50),
        "usd": ratio(None if plan.usd is None else plan.usd.p50, None if base.usd is None else base.usd.p50),
    }


def comparison(plans: Sequence[tuple[str, Mapping[str, Any]]]) -> dict[str, object]:
    """Plans as `charter plan --json` writes them, side by side: totals, and every stage that any of them has."""
    names = list(dict.fromkeys(stage["name"] for _, plan in plans for stage in plan["stages"]))
    first = plans[0][1]
    return {
        "plans": [
            {
                "label": label,
                "name": plan["name"],
                "total": {measure: plan["total"][measure] for measure in MEASURES},
                "ratio": _ratio(plan["total"], first["total"]),
                "risk": _risk_of_plan(plan),
                "budget": plan["total"].get("budget"),
                "deadline": plan["total"].get("deadline"),
            }
            for label, plan in plans
        ],
        "stages": [
            {"name": name, "plans": [_stage(_find(plan, name), _find(first, name)) for _, plan in plans]}
            for name in names
        ],
    }


def _find(plan: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    return next((stage for stage in plan["stages"] if stage["name"] == name), None)


def _stage(stage: Mapping[str, Any] | None, base: Mapping[str, Any] | None) -> dict[str, object] | None:
    if stage is None:
        return None
    return {
        "accelerator": stage["accelerator"],
        "count": stage["count"],
        "infra": stage.get("infra"),
        "market": stage["market"],
        "layout": stage["layout"].get("label", ""),
        "peak_bytes": stage["peak_bytes"],
        "capacity_bytes": stage["capacity_bytes"],
        **{measure: stage[measure] for measure in MEASURES},
        "ratio": None if base is None else _ratio(stage, base),
        "risk": stage.get("risk"),
    }


def _ratio(value: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, float | None]:
    return {measure: ratio(value[measure]["p50"], base[measure]["p50"]) for measure in MEASURES}


def _risk_of_plan(plan: Mapping[str, Any]) -> dict[str, float]:
    """Return the distance from the median to the p90 of the total, in time and money."""
    total = plan["total"]
    spread = {measure: ratio(total[measure]["p90"], total[measure]["p50"]) for measure in ("seconds", "usd")}
    return {f"{measure}_p90_over_p50": value for measure, value in spread.items() if value is not None}


# -------- Plans side by side in a terminal, from what `charter plan --json` writes: saved files compare with new plans.


def saved_table(plans: Sequence[tuple[str, Mapping[str, Any]]]) -> RenderableType:
    """Stages in rows, plans in columns: hardware, layout, peak, time and cost p50-p90, risk; ratios to the first."""
    result: Any = comparison(plans)
    table = Table(box=box.SIMPLE_HEAD, show_lines=True)
    table.add_column("Stage", no_wrap=True)
    for plan in result["plans"]:
        table.add_column(Text(plan["label"]), overflow="fold")
    for stage in result["stages"]:
        table.add_row(Text(stage["name"]), *(_saved_stage(item) for item in stage["plans"]))
    table.add_section()
    table.add_row(Text("total", style="bold"), *(_total(plan) for plan in result["plans"]))
    return table


def _saved_stage(stage: Mapping[str, Any] | None) -> Text:
    if stage is None:
        return Text("-", style="dim")
    market = "" if stage["market"] == "on_demand" else f" {stage['market']}"
    count = f"{stage['count']} x " if stage["count"] else ""
    lines = [
        f"{count}{stage['accelerator']} {stage['infra'] or ''}{market}",
        f"{stage['layout']}, {stage['peak_bytes'] / max(1, stage['capacity_bytes']):.0%} full",
        *_amounts(stage, stage["ratio"]),
        *_risk(stage["risk"]),
    ]
    return Text("\n".join(lines))


def _total(plan: Mapping[str, Any]) -> Text:
    lines = _amounts(plan["total"], plan["ratio"])
    for name, sign in (("budget", "limit_usd"), ("deadline", "seconds")):
        if plan[name] is not None and sign in plan[name]:
            lines.append(f"{name} {plan[name]['verdict']}")
    return Text("\n".join(lines), style="bold")


def _amounts(of: Mapping[str, Any], ratio: Mapping[str, Any] | None) -> list[str]:
    time = seconds_range(Interval(**{name: float(of["seconds"][name]) for name in ("p10", "p50", "p90")}))
    usd = of["usd"]
    money = "unpriced" if usd["p50"] is None else f"{format_usd(usd['p50'])}-{format_usd(usd['p90'])[1:]}"
    return [time + _times(ratio, "seconds"), money + _times(ratio, "usd")]


def _times(ratio: Mapping[str, Any] | None, measure: str) -> str:
    value = None if ratio is None else ratio[measure]
    return "" if value is None or round(value, 2) == 1.0 else f" ({value:.2f} x)"


def _risk(risk: Mapping[str, Any] | None) -> list[str]:
    """Interruptions to be expected, where the plan says so."""
    interruptions = None if risk is None else risk.get("expected_interruptions")
    return [] if not interruptions else [f"{interruptions:.1f} interruptions"]
