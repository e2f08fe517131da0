"""Plans side by side in a terminal, from what `charter plan --json` writes: saved files compare with new plans."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from charter.physics.terms import Interval
from charter.report.compare_totals import comparison
from charter.report.plan_cells import seconds_range
from charter.units import format_usd


def saved_table(plans: Sequence[tuple[str, Mapping[str, Any]]]) -> RenderableType:
    """Stages in rows, plans in columns: hardware, layout, peak, time and cost p50-p90, risk; ratios to the first."""
    result: Any = comparison(plans)
    table = Table(box=box.SIMPLE_HEAD, show_lines=True)
    table.add_column("Stage", no_wrap=True)
    for plan in result["plans"]:
        table.add_column(Text(plan["label"]), overflow="fold")
    for stage in result["stages"]:
        table.add_row(Text(stage["name"]), *(_stage(item) for item in stage["plans"]))
    table.add_section()
    table.add_row(Text("total", style="bold"), *(_total(plan) for plan in result["plans"]))
    return table


def _stage(stage: Mapping[str, Any] | None) -> Text:
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
