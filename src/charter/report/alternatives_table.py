"""The next best plans in a terminal: what each does differently, and what that costs and takes."""

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from charter.plan.plan import Plan
from charter.report.plan_cells import seconds_range, usd_range

MOST_NAMED = 3


def alternatives_table(plan: Plan) -> RenderableType:
    """The plan and its alternatives in one row each, with ratios of the medians to the plan's."""
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("Plan", "Differs in", "Time p50-p90", "", "Cost p50-p90", ""):
        table.add_column(heading, justify="left" if heading in ("Plan", "Differs in") else "right")
    table.add_row("chosen", "", seconds_range(plan.seconds), "", usd_range(plan.usd), "")
    for number, other in enumerate(plan.alternatives, start=1):
        usd = "" if other.usd is None or plan.usd is None else _ratio(other.usd.p50, plan.usd.p50)
        time = _ratio(other.seconds.p50, plan.seconds.p50)
        cells = (_differs(other, plan), seconds_range(other.seconds), time, usd_range(other.usd), usd)
        table.add_row(f"{number}", *cells)
    return Group(Text(f"Alternatives for the objective {plan.objective!r}:"), table)


def _ratio(value: float, base: float) -> str:
    return f"{value / base:.2f} x" if base else ""


def _differs(other: Plan, plan: Plan) -> str:
    """`ppo, pm: H100-SXM-80GB:8 on lambda, on demand`, one line for every kind of hardware."""
    stages: dict[str, list[str]] = {}
    for name, kind in other.differences(plan).items():
        stages.setdefault(kind, []).append(name)
    return "\n".join(f"{_names(names)}: {kind}" for kind, names in stages.items())


def _names(names: list[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names) if more <= 0 else f"{', '.join(names[:MOST_NAMED])} and {more} more"
