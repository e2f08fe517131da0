"""Objectives of a plan: cheapest, fastest or balanced, within deadline and budget."""

from dataclasses import dataclass, replace
from typing import Literal

from charter.plan.choice.choose import Choice, best
from charter.plan.choice.problem import NO_LIMIT, P50, Goal, Problem
from charter.plan.options.option import NEAR

Objective = Literal["cheapest", "fastest", "balanced"]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits at p90; None is no limit."""

    deadline_seconds: float | None = None
    budget_usd: float | None = None
    """Of objectives other than `cheapest`."""

    @property
    def seconds(self) -> tuple[float, float]:
        """p50 and p90."""
        return NO_LIMIT, NO_LIMIT if self.deadline_seconds is None else self.deadline_seconds

    @property
    def usd(self) -> tuple[float, float]:
        """p50 and p90."""
        return NO_LIMIT, NO_LIMIT if self.budget_usd is None else self.budget_usd


def decide(problem: Problem, objective: Objective, limits: Limits) -> Choice | None:
    """The plan that the objective asks for, or None when none keeps the limits.

    `cheapest`: the fastest of the plans that cost at most 5 % more than the cheapest, since the estimate cannot tell
    those apart. `fastest`: the earliest p50 finish, of those the cheapest. `balanced`: the least `log(time / shortest)
    + log(cost / lowest)`, which is the least product of both: a plan may cost 10 % more where it takes 10 % less.
    """
    if objective == "cheapest":
        return _nearly_cheapest(problem, limits)
    minimise: Literal["seconds", "product"] = "seconds" if objective == "fastest" else "product"
    return best(problem, Goal(minimise=minimise, seconds=limits.seconds, usd=limits.usd))


def ranked(problem: Problem, objective: Objective, limits: Limits) -> Choice | None:
    """The plan that is first in what the objective minimises, without the 5 % of `cheapest`."""
    if objective == "cheapest":
        return best(problem, Goal(minimise="usd", seconds=limits.seconds))
    return decide(problem, objective, limits)


def _nearly_cheapest(problem: Problem, limits: Limits) -> Choice | None:
    cheapest = best(problem, Goal(minimise="usd", seconds=limits.seconds))
    if cheapest is None:
        return None
    near = (NEAR * cheapest.usd[P50], NO_LIMIT)
    quickest = best(problem, Goal(minimise="seconds", seconds=limits.seconds, usd=near), known=[cheapest.ways])
    return quickest or cheapest


def earliest_p90(problem: Problem) -> Choice:
    """The plan with the earliest p90 finish, whatever it costs; of equal ones the cheapest."""
    swapped = tuple(replace(ways, seconds=ways.seconds[:, ::-1], waits=ways.waits[:, ::-1]) for ways in problem.ways)
    choice = best(replace(problem, ways=swapped), Goal(minimise="seconds"))
    assert choice is not None, "without limits every problem has an answer"
    return replace(choice, seconds=(choice.seconds[1], choice.seconds[0]))


def lowest_p90(problem: Problem) -> Choice:
    """The plan with the lowest p90 cost, whatever it takes."""
    swapped = tuple(replace(ways, usd=ways.usd[:, ::-1]) for ways in problem.ways)
    choice = best(replace(problem, ways=swapped), Goal(minimise="usd"))
    assert choice is not None, "without limits every problem has an answer"
    return replace(choice, usd=(choice.usd[1], choice.usd[0]))
