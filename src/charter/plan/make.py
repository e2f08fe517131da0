"""`make_plan`: from a project and facts to a plan. Pure; the machine, the prices and the facts come in as values."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from charter.catalog.prices import PriceBook
from charter.plan.advice import late_advice, over_budget
from charter.plan.alternatives import next_best
from charter.plan.assemble import full_plan, short_plan
from charter.plan.choice.choose import Choice
from charter.plan.choice.objective import Limits, decide, earliest_p90, lowest_p90
from charter.plan.choice.whole import Whole, whole_problem
from charter.plan.gather import Facts, Gathered, gather
from charter.plan.hardware.machine import Machine
from charter.plan.physics.knowledge import Knowledge, shipped
from charter.plan.plan import Plan
from charter.spec.architecture import Architecture
from charter.spec.dataset import DataFacts
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
    whole = _whole(project, gathered)
    choice, limits = _decision(whole, facts)
    made = full_plan(whole, choice, gathered, facts)
    others = next_best(whole.problem, choice, alternatives, project.objective, limits) if alternatives else []
    return replace(
        made,
        start=start,
        alternatives=tuple(replace(short_plan(whole, other, facts), start=start) for other in others),
        advice=late_advice(made, project, lambda changed: _quickest(changed, facts)),
    )


def _whole(project: Project, gathered: Gathered) -> Whole:
    return whole_problem(project, gathered.candidates, gathered.freights)


def _decision(whole: Whole, facts: Facts) -> tuple[Choice, Limits]:
    """The choice within the limits; the earliest there is where the deadline cannot be kept, with that limit lifted."""
    project = whole.project
    priced = not any(item.unpriced for item in whole.candidates)
    limits = Limits(
        deadline_seconds=project.deadline,
        budget_usd=project.budget.limit if project.budget and priced and project.objective != "cheapest" else None,
    )
    choice = decide(whole.problem, project.objective, limits)
    if choice is not None:
        return choice, limits
    unhurried = replace(limits, deadline_seconds=None)
    cheapest = lowest_p90(whole.problem)
    if limits.budget_usd is not None and cheapest.usd[1] > limits.budget_usd:
        raise over_budget(project, short_plan(whole, cheapest, facts), in_time=True)
    if limits.budget_usd is not None and earliest_p90(whole.problem).seconds[1] <= (project.deadline or 0.0):
        in_time = decide(whole.problem, "cheapest", replace(limits, budget_usd=None))
        assert in_time is not None, "the earliest plan is in time"
        raise over_budget(project, short_plan(whole, in_time, facts), in_time=False)
    return earliest_p90(whole.problem), unhurried


def _quickest(project: Project, facts: Facts) -> Plan:
    """The plan with the earliest p90 finish."""
    whole = _whole(project, gather(project, facts))
    return short_plan(whole, earliest_p90(whole.problem), facts)
