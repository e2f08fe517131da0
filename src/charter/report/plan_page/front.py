"""The options of a stage as points: time against money, what is chosen, what cannot be told from it."""

from typing import Any

from charter.plan.option import Option, near_tied, pareto
from charter.plan.stage_plan import StagePlan
from charter.report.plan_cells import full_share, hardware, layout, median_usd

MAX_POINTS = 60
"""Points of one chart beside the front; the cheapest are drawn, and the page says how many are not."""


def front_points(stage: StagePlan) -> dict[str, Any]:
    """Points of one stage's options: those that none beats, near ties of the chosen one, and the cheapest others."""
    front, tied = set(map(id, pareto(stage.options))), set(map(id, near_tied(stage.options, stage.option)))
    marked = [option for option in stage.options if id(option) in front | tied or option is stage.option]
    others = sorted(
        (option for option in stage.options if not any(option is item for item in marked)),
        key=lambda option: (median_usd(option), option.seconds.p50, option.label + option.layout_label),
    )
    shown = [*marked, *others[: max(0, MAX_POINTS - len(marked))]]
    points = [_point(option, stage.option, front=id(option) in front, tied=id(option) in tied) for option in shown]
    return {"stage": stage.name, "points": points, "left_out": len(stage.options) - len(shown)}


def _point(option: Option, chosen: Option, *, front: bool, tied: bool) -> dict[str, Any]:
    return {
        "seconds": option.seconds.p50,
        "usd": median_usd(option),
        "headroom": max(0.0, 1 - full_share(option)),
        "label": hardware(option),
        "layout": layout(option),
        "chosen": option is chosen,
        "tied": tied and option is not chosen,
        "front": front,
    }
