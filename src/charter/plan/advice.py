"""When a plan does not keep its deadline or budget: the nearest changes that would."""

from collections.abc import Callable
from dataclasses import replace

from charter.errors import BudgetError, InfeasibleError
from charter.plan.plan import Plan
from charter.spec.project import Project
from charter.units import format_seconds, format_usd

MORE_NODES = (2, 4)
"""Multiples of `resources.max_nodes` that are tried."""


def late_advice(plan: Plan, project: Project, quickest: Callable[[Project], Plan]) -> tuple[str, ...]:
    """What to change when nothing that fits ends by the deadline at p90; `plan` is the earliest there is.

    `quickest` plans a changed project for its earliest p90 finish.
    """
    end = plan.seconds.p90
    if project.deadline is None or end <= project.deadline:
        return ()
    lines = [
        f"nothing that fits ends by the deadline of {format_seconds(project.deadline)}: the earliest p90 finish is "
        f"{format_seconds(end)}; feasible from deadline: {_hours(end)} on"
    ]
    for factor in MORE_NODES:
        nodes = project.resources.max_nodes * factor
        resources = replace(project.resources, max_nodes=nodes)
        try:
            found = quickest(replace(project, resources=resources))
        except InfeasibleError:
            continue
        if found.seconds.p90 < end * 0.99:
            kept = "kept" if found.seconds.p90 <= project.deadline else "still late"
            lines.append(f"with resources.max_nodes: {nodes} it is {format_seconds(found.seconds.p90)} ({kept})")
        if found.seconds.p90 <= project.deadline:
            break
    return tuple(lines)


def _hours(seconds: float) -> str:
    """A duration that `deadline` reads, rounded up to a tenth of an hour or a minute."""
    hours = seconds / 3600
    return f"{-(-hours * 10 // 1) / 10:g}h" if hours >= 1 else f"{-(-seconds // 60):.0f}min"


def over_budget(project: Project, cheapest: Plan, *, in_time: bool) -> BudgetError:
    """The error when no plan keeps the budget and `fastest` or `balanced` was asked for."""
    assert project.budget is not None
    usd = cheapest.usd
    price = "not known" if usd is None else f"{format_usd(usd.p90 / 1e6)} at p90"
    stages: dict[str, list[str]] = {}
    for stage in cheapest.stages:
        stages.setdefault(stage.option.label, []).append(stage.name)
    hardware = "; ".join(f"{', '.join(names)} on {label}" for label, names in stages.items())
    late = "" if in_time else f" within the deadline of {format_seconds(project.deadline or 0.0)}"
    return BudgetError(
        f"no plan of {project.name!r} keeps the budget of {format_usd(project.budget.limit)}{late}, which objective: "
        f"{project.objective} must\n"
        f"  cheapest possible is {price}, in {format_seconds(cheapest.seconds.p90)} at p90, with {hardware}\n"
        "  raise budget.limit to that, allow use_spot: auto or more providers, or plan with objective: cheapest"
    )
