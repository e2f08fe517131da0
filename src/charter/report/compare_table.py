"""Several plans side by side in a terminal: stages in rows, plans in columns, each beside the first."""

from collections.abc import Sequence

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from charter.plan.plan import Plan
from charter.plan.stage_plan import MicroUsd, StagePlan
from charter.report.plan_cells import full_share, hardware, layout, seconds_range, usd_range


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
        seconds_range(option.seconds) + _ratio(option.seconds.p50, seconds),
        usd_range(stage.usd) + _usd_ratio(stage.usd, usd),
    ]
    return Text("\n".join(lines))


def _total_cell(plan: Plan, usd: MicroUsd | None, first: Plan, first_usd: MicroUsd | None) -> Text:
    fullest = max((full_share(stage.option) for stage in plan.stages), default=0.0)
    lines = [
        seconds_range(plan.seconds) + _ratio(plan.seconds.p50, first.seconds.p50),
        usd_range(usd) + _usd_ratio(usd, first_usd),
        f"fullest {fullest:.0%}",
    ]
    lines += [f"budget {plan.budget_verdict}"] if plan.budget_verdict else []
    lines += [f"deadline {plan.deadline_verdict}"] if plan.deadline_verdict else []
    return Text("\n".join(lines), style="bold")


def _ratio(value: float, base: float | None) -> str:
    """The ratio to the first plan; nothing where there is none, or no difference."""
    if not base or round(value / base, 2) == 1.0:
        return ""
    return f" ({value / base:.2f} x)"


def _usd_ratio(money: MicroUsd | None, base: MicroUsd | None) -> str:
    return "" if money is None or base is None else _ratio(money.p50, base.p50)
