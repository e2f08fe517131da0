"""`make_plan`: from a project and facts to a plan. Pure; the machine, the prices and the facts come in as values."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from charter.catalog.price_book import PriceBook
from charter.data.dataset import DataFacts
from charter.plan.advice import budget_advice, late_advice, over_budget
from charter.plan.alternatives import next_best
from charter.plan.assemble import full_plan, short_plan
from charter.plan.choice.choose import Choice
from charter.plan.choice.deadline import InTime, in_time
from charter.plan.choice.objective import Limits, Objective, decide, earliest_p90, lowest_p90
from charter.plan.choice.whole import Whole, whole_problem
from charter.plan.gather import Facts, Gathered, gather
from charter.plan.hardware.machine import Machine
from charter.plan.physics.knowledge import Knowledge, shipped
from charter.plan.plan import Plan
from charter.spec.architecture import Architecture
from charter.spec.project import Project


def make_plan(
    project: Project,
    *,
    architectures: Mapping[str, Architecture],
    data_facts: Mapping[str, DataFacts],
    machine: Machine | None = None,
    knowledge: Knowledge | None = None,
    prices: PriceBook | None = None,
    alternatives: int = 0,
    start: datetime | None = None,
) -> Plan:
    """Place, time and price all stages together, for the project's objective within its deadline and other limits.

    `architectures` of every entry of `models`, `data_facts` of every data set that is there; `machine` is needed for
    local plans; `knowledge` is the shipped calibration and `prices` the bundled book unless given. `alternatives` asks
    for so many further plans, `start` gives the plan dates. A deadline that nothing keeps gives the earliest plan with
    advice in it. Raises `InfeasibleError` when a stage fits nowhere, and `BudgetError` when `fastest` or `balanced`
    was asked for and no plan keeps the budget.
    """
    facts = Facts(
        architectures=architectures,
        data=data_facts,
        machine=machine,
        knowledge=knowledge or shipped(),
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


def _decision(problem: Whole, facts: Facts) -> tuple[Choice, Limits]:
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

    def drawn_p90(choice: Choice) -> float:
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
