"""Advice on a plan that misses its deadline or budget: the nearest changes that would keep it."""

from collections.abc import Callable
from dataclasses import replace
from math import floor, log10

from charter.errors import BudgetError, InfeasibleError
from charter.plan.plan import Plan
from charter.plan.stages.stage_plan import StagePlan
from charter.spec.project import Project
from charter.spec.stage import CritiqueStage, GenerateStage, LabelStage, Optimization, PpoStage, Stage
from charter.units import format_seconds, format_usd

MORE_NODES = (2, 4)
"""Multiples of `resources.max_nodes` that are tried."""
SHRUNK = 2
"""The dearest stages whose work is proposed to shrink."""


def late_advice(plan: Plan, project: Project, quickest: Callable[[Project], Plan]) -> tuple[str, ...]:
    """Return the changes that help when nothing ends by the deadline at p90; `plan` is the earliest there is.

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
            faster = quickest(replace(project, resources=resources))
        except InfeasibleError:
            continue
        if faster.seconds.p90 < end * 0.99:
            verdict = "kept" if faster.seconds.p90 <= project.deadline else "still late"
            lines.append(f"with resources.max_nodes: {nodes} it is {format_seconds(faster.seconds.p90)} ({verdict})")
        if faster.seconds.p90 <= project.deadline:
            break
    return tuple(lines)


def budget_advice(plan: Plan, project: Project) -> tuple[str, ...]:
    """Return the changes that keep the budget at p90: less work in a dear stage, spot, a later deadline.

    Money is taken as proportional to work, so that the fixed part of a stage (starting, a first checkpoint) is missed.
    """
    if plan.usd is None or plan.budget_usd is None or plan.usd.p90 <= plan.budget_usd * 1e6:
        return ()
    limit, lines = format_usd(plan.budget_usd), []
    for stage in sorted(plan.stages, key=lambda stage: (-_p90(stage), stage.name))[:SHRUNK]:
        left = plan.budget_usd * 1e6 - (plan.usd.p90 - _p90(stage))
        smaller = _smaller(project.pipeline[stage.name], stage, left / _p90(stage)) if _p90(stage) else None
        if left > 0 and smaller is not None:
            lines.append(f"{stage.name} with {smaller} brings the plan to about {limit} at p90")
    if not lines:
        lines.append(f"{limit} pays for about {plan.budget_usd * 1e6 / plan.usd.p90:.0%} of the work at p90")
    if project.resources.use_spot is False and any(stage.option.num_accelerators for stage in plan.stages):
        lines.append("use_spot: auto, where an interruption costs less than it saves")
    if project.deadline is not None:
        lines.append("a later deadline, where it forces dearer hardware")
    return tuple(lines)


def _p90(stage: StagePlan) -> int:
    return stage.usd.p90 if stage.usd is not None else 0


def _smaller(spec: Stage, stage: StagePlan, share: float) -> str | None:
    """`num_prompts: 27_000 (planned: 42_000)`: a stage's amount of work cut to a share, two digits kept."""
    counters = stage.counters
    if isinstance(spec, PpoStage):
        episodes = int(spec.episodes * share) // spec.rollout_batch * spec.rollout_batch
        return f"episodes: {episodes:_} (planned: {spec.episodes:_})" if episodes else None
    if isinstance(spec, LabelStage) and spec.pairs and not spec.candidates:
        return _cut("pairs", spec.pairs, share)
    if isinstance(spec, CritiqueStage):
        return _cut("num_prompts", counters.records / spec.revisions, share)
    if isinstance(spec, GenerateStage):
        return _cut("num_prompts", counters.records, share)
    if isinstance(spec, Optimization):
        return _cut("steps", spec.steps, share) if spec.steps else f"epochs: {(spec.epochs or 1.0) * share:.2g}"
    return None


def _cut(name: str, now: float, share: float) -> str | None:
    unit = 10 ** max(0, floor(log10(max(1.0, now * share))) - 1)
    smaller = floor(now * share / unit) * unit
    return f"{name}: {smaller:_} (planned: {now:_.0f})" if smaller else None


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
