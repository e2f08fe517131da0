"""`make_plan`: from a project and facts to a plan; within its deadline or with advice, and the next best plans."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from math import floor, log10
from typing import TYPE_CHECKING

import numpy as np

from charter.catalog.price_book import PriceBook
from charter.errors import BudgetError, InfeasibleError
from charter.plan.assemble import full_plan, short_plan
from charter.plan.choose import PlanChoice
from charter.plan.decision import Limits, Objective, Whole, decide, earliest_p90, lowest_p90, ranked, whole_problem
from charter.plan.gather import Facts, Gathered, gather
from charter.plan.knowledge import Knowledge, shipped
from charter.plan.machine import Machine
from charter.plan.plan import Plan
from charter.plan.problem import ChoiceProblem, Goal, Indices
from charter.plan.stage_plan import StagePlan
from charter.spec.architecture import Architecture
from charter.spec.project import Project
from charter.spec.stage_base import Stage
from charter.units import format_seconds, format_usd

if TYPE_CHECKING:
    from charter.data.dataset import DataFacts

# -------- The best plan whose finish, drawn at random, keeps a deadline.
#
# The search adds p90s of stages, which is not the p90 of their sum: mostly more, where waits are independent. So its
# limit is not the deadline: it is moved until the plan it gives keeps the deadline in the draws.

TRIES = 6
"""Searches with a limit between one that is too tight and one that is too wide. Judgement: some tenths of a second."""
CLOSE = 0.005
"""Limits nearer than this share are not told apart: less than the estimate can tell."""


@dataclass(frozen=True, kw_only=True)
class InTime:
    """A choice, and the limit on the search's sum of p90s that gave it; None without a limit."""

    choice: PlanChoice
    limit_seconds: float | None


def in_time(
    decide: Callable[[float | None], PlanChoice | None],
    drawn_p90: Callable[[PlanChoice], float],
    deadline: float | None,
    earliest: Callable[[], PlanChoice],
) -> InTime | None:
    """Return the choice of `decide` under the widest limit with which `drawn_p90` keeps the deadline, or None.

    `decide(limit)` is the best choice whose sum of p90s keeps a limit; `earliest` the one with the least such sum.
    Where the best choice of all keeps the deadline, it is exact. Else the limit is found by bisection after a first
    guess in proportion, to 0.5 %: a plan with a larger sum of p90s and yet an earlier drawn p90 can be missed.
    """
    free = decide(None)
    if free is None or deadline is None:
        return None if free is None else InTime(choice=free, limit_seconds=None)
    end = drawn_p90(free)
    if end <= deadline:
        return InTime(choice=free, limit_seconds=free.seconds[1] * deadline / end)
    least = earliest()
    low, high = least.seconds[1], free.seconds[1]
    closest: InTime | None = None
    limit = deadline / end * high
    for _ in range(TRIES):
        if not low <= limit < high:
            limit = (low + high) / 2
        choice = decide(limit)
        if choice is not None and drawn_p90(choice) <= deadline:
            closest, low = InTime(choice=choice, limit_seconds=limit), limit
        elif choice is None:
            low = limit
        else:
            high = min(limit, choice.seconds[1])
        if high - low <= CLOSE * high:
            break
        limit = (low + high) / 2
    if closest is not None:
        return closest
    last = decide(least.seconds[1])
    return InTime(choice=last, limit_seconds=least.seconds[1]) if last and drawn_p90(last) <= deadline else None


# -------- The next best plans that differ in hardware, provider or market of some stage.


def next_best(
    problem: ChoiceProblem, first: PlanChoice, number: int, objective: Objective, limits: Limits
) -> list[PlanChoice]:
    """The `number` best plans after `first` by what the objective minimises, no two alike in kind, best first.

    Two plans are alike when every stage has the same hardware, provider and market in both; node counts and layouts
    are chosen anew for each. What is left of the space after a plan is divided by the first stage that differs, and
    the best of each part is found exactly. Source: Lawler 1972, Murty 1968.
    """
    everything = [np.arange(len(ways)) for ways in problem.ways]
    parts = _parts(problem, everything, first, objective, limits)
    choices: list[PlanChoice] = []
    while parts and len(choices) < number:
        index = min(range(len(parts)), key=lambda part: _rank(parts[part][1], objective))
        allowed, choice = parts.pop(index)
        choices.append(choice)
        parts += _parts(problem, allowed, choice, objective, limits)
    return [_settled(problem, choice, objective, limits) for choice in choices]


Part = tuple[list[Indices], PlanChoice]


def _parts(
    problem: ChoiceProblem, allowed: list[Indices], choice: PlanChoice, objective: Objective, limits: Limits
) -> list[Part]:
    """Everything in `allowed` but plans of the kind of `choice`, in disjoint parts, each with its best plan."""
    parts: list[Part] = []
    for stage, ways in enumerate(problem.ways):
        kind = ways.family[choice.ways[stage]]
        part = list(allowed)
        for earlier in range(stage):
            part[earlier] = _of_kind(problem, earlier, allowed, choice)
        part[stage] = allowed[stage][ways.family[allowed[stage]] != kind]
        if len(part[stage]):
            best = _within(problem, part, objective, limits)
            parts += [] if best is None else [(part, best)]
    return parts


def _of_kind(problem: ChoiceProblem, stage: int, allowed: list[Indices], choice: PlanChoice) -> Indices:
    family = problem.ways[stage].family
    matches: Indices = allowed[stage][family[allowed[stage]] == family[choice.ways[stage]]]
    return matches


def _within(problem: ChoiceProblem, rows: list[Indices], objective: Objective, limits: Limits) -> PlanChoice | None:
    choice = ranked(_restricted(problem, rows), objective, limits)
    return None if choice is None else _translated(choice, rows)


def _settled(problem: ChoiceProblem, choice: PlanChoice, objective: Objective, limits: Limits) -> PlanChoice:
    """The plan that the objective takes among those of the same kind."""
    everything = [np.arange(len(ways)) for ways in problem.ways]
    rows = [_of_kind(problem, stage, everything, choice) for stage in range(len(problem.ways))]
    settled = decide(_restricted(problem, rows), objective, limits)
    return choice if settled is None else _translated(settled, rows)


def _restricted(problem: ChoiceProblem, rows: list[Indices]) -> ChoiceProblem:
    return replace(problem, ways=tuple(ways.take(indices) for ways, indices in zip(problem.ways, rows, strict=True)))


def _translated(choice: PlanChoice, rows: list[Indices]) -> PlanChoice:
    return replace(choice, ways=tuple(int(indices[way]) for indices, way in zip(rows, choice.ways, strict=True)))


def _rank(choice: PlanChoice, objective: Objective) -> tuple[float, ...]:
    minimise = {"cheapest": "usd", "fastest": "seconds", "balanced": "product"}[objective]
    key = Goal(minimise=minimise).key(np.array(choice.seconds[0]), np.array(choice.usd[0]))  # type: ignore[arg-type]
    return (*(float(value) for value in key), *choice.ways)


# -------- Advice on a plan that misses its deadline or budget: the nearest changes that would keep it.

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
    amount = spec.amount_of(stage.counters.records)
    if amount is None:
        return None
    if amount.field == "epochs":
        return f"epochs: {amount.value * share:.2g}"
    left = amount.value * share
    unit = amount.multiple if amount.multiple > 1 else 10 ** max(0, floor(log10(max(1.0, left))) - 1)
    smaller = floor(left / unit) * unit
    return f"{amount.field}: {smaller:_} (planned: {amount.value:_.0f})" if smaller else None


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


# -------- `make_plan`: from a project and facts to a plan. Pure; the machine, the prices and the facts come in as
# values.


def make_plan(
    project: Project,
    *,
    architectures: Mapping[str, Architecture],
    data_facts: "Mapping[str, DataFacts]",
    stored: Mapping[str, str] | None = None,
    machine: Machine | None = None,
    knowledge: Knowledge | None = None,
    prices: PriceBook | None = None,
    alternatives: int = 0,
    start: datetime | None = None,
) -> Plan:
    """Place, time and price all stages together, for the project's objective within its deadline and other limits.

    `architectures` of every entry of `models`, `data_facts` of every data set that is there; `stored` is the format of
    the models' files where it is not bf16; `machine` is needed for local plans; `knowledge` is the shipped calibration
    and `prices` the bundled book unless given. `alternatives` asks for so many further plans, `start` gives the plan
    dates. A deadline that nothing keeps gives the earliest plan with advice in it. Raises `InfeasibleError` when a
    stage fits nowhere, and `BudgetError` when `fastest` or `balanced` was asked for and no plan keeps the budget.
    """
    facts = Facts(
        architectures=architectures,
        stored=stored or {},
        data=data_facts,
        machine=machine,
        knowledge=replace(knowledge or shipped(), memory_risk=project.risk.out_of_memory),
        prices=prices,
    )
    gathered = gather(project, facts)
    problem = _whole(project, gathered, facts)
    choice, limits = _decision(problem, facts)
    main_plan = full_plan(problem, choice, gathered, facts)
    others = next_best(problem.problem, choice, alternatives, project.objective, limits) if alternatives else []
    plans = (replace(short_plan(problem, other, facts), start=start) for other in others)
    return replace(
        main_plan,
        start=start,
        alternatives=tuple(plan for plan in plans if plan.deadline_verdict in (None, "ok", main_plan.deadline_verdict)),
        advice=late_advice(main_plan, project, lambda changed: _quickest(changed, facts)),
        budget_advice=budget_advice(main_plan, project),
    )


def _whole(project: Project, gathered: Gathered, facts: Facts) -> Whole:
    return whole_problem(project, gathered.candidates, gathered.freights, facts.book)


def _decision(problem: Whole, facts: Facts) -> tuple[PlanChoice, Limits]:
    """The choice within the limits; the earliest there is where the deadline cannot be kept, with that limit lifted."""
    project = problem.project
    priced = not any(item.unpriced for item in problem.candidates)
    unhurried = Limits(
        budget_usd=project.budget.limit if project.budget and priced and project.objective != "cheapest" else None
    )
    decision = _in_time(problem, facts, project.objective, unhurried)
    if decision is not None:
        return decision.choice, replace(unhurried, deadline_seconds=decision.limit_seconds)
    cheapest = lowest_p90(problem.problem)
    if unhurried.budget_usd is not None and cheapest.usd[1] > unhurried.budget_usd:
        raise over_budget(project, short_plan(problem, cheapest, facts), in_time=True)
    if unhurried.budget_usd is not None:
        dearer = _in_time(problem, facts, "cheapest", Limits())
        if dearer is not None:
            raise over_budget(project, short_plan(problem, dearer.choice, facts), in_time=False)
    return earliest_p90(problem.problem), unhurried


def _in_time(problem: Whole, facts: Facts, objective: Objective, limits: Limits) -> InTime | None:
    """The choice within the project's deadline, which the draws of the plan decide."""
    p90_seconds: dict[tuple[int, ...], float] = {}

    def drawn_p90(choice: PlanChoice) -> float:
        if choice.ways not in p90_seconds:
            p90_seconds[choice.ways] = short_plan(problem, choice, facts).seconds.p90
        return p90_seconds[choice.ways]

    return in_time(
        lambda limit: decide(problem.problem, objective, replace(limits, deadline_seconds=limit)),
        drawn_p90,
        problem.project.deadline,
        lambda: earliest_p90(problem.problem),
    )


def _quickest(project: Project, facts: Facts) -> Plan:
    """The plan with the earliest p90 finish."""
    problem = _whole(project, gather(project, facts), facts)
    return short_plan(problem, earliest_p90(problem.problem), facts)
