"""The next best plans that differ in hardware, provider or market of some stage."""

from dataclasses import replace

import numpy as np

from charter.plan.choice.choose import Choice
from charter.plan.choice.objective import Limits, Objective, decide, ranked
from charter.plan.choice.problem import Goal, Indices, Problem


def next_best(problem: Problem, first: Choice, number: int, objective: Objective, limits: Limits) -> list[Choice]:
    """The `number` best plans after `first` by what the objective minimises, no two alike in kind, best first.

    Two plans are alike when every stage has the same hardware, provider and market in both; node counts and layouts
    are chosen anew for each. What is left of the space after a plan is divided by the first stage that differs, and
    the best of each part is found exactly. Source: Lawler 1972, Murty 1968.
    """
    everything = [np.arange(len(ways)) for ways in problem.ways]
    parts = _parts(problem, everything, first, objective, limits)
    choices: list[Choice] = []
    while parts and len(choices) < number:
        index = min(range(len(parts)), key=lambda part: _rank(parts[part][1], objective))
        allowed, choice = parts.pop(index)
        choices.append(choice)
        parts += _parts(problem, allowed, choice, objective, limits)
    return [_settled(problem, choice, objective, limits) for choice in choices]


Part = tuple[list[Indices], Choice]


def _parts(
    problem: Problem, allowed: list[Indices], choice: Choice, objective: Objective, limits: Limits
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


def _of_kind(problem: Problem, stage: int, allowed: list[Indices], choice: Choice) -> Indices:
    family = problem.ways[stage].family
    matches: Indices = allowed[stage][family[allowed[stage]] == family[choice.ways[stage]]]
    return matches


def _within(problem: Problem, rows: list[Indices], objective: Objective, limits: Limits) -> Choice | None:
    choice = ranked(_restricted(problem, rows), objective, limits)
    return None if choice is None else _translated(choice, rows)


def _settled(problem: Problem, choice: Choice, objective: Objective, limits: Limits) -> Choice:
    """The plan that the objective takes among those of the same kind."""
    everything = [np.arange(len(ways)) for ways in problem.ways]
    rows = [_of_kind(problem, stage, everything, choice) for stage in range(len(problem.ways))]
    settled = decide(_restricted(problem, rows), objective, limits)
    return choice if settled is None else _translated(settled, rows)


def _restricted(problem: Problem, rows: list[Indices]) -> Problem:
    return replace(problem, ways=tuple(ways.take(indices) for ways, indices in zip(problem.ways, rows, strict=True)))


def _translated(choice: Choice, rows: list[Indices]) -> Choice:
    return replace(choice, ways=tuple(int(indices[way]) for indices, way in zip(rows, choice.ways, strict=True)))


def _rank(choice: Choice, objective: Objective) -> tuple[float, ...]:
    minimise = {"cheapest": "usd", "fastest": "seconds", "balanced": "product"}[objective]
    key = Goal(minimise=minimise).key(np.array(choice.seconds[0]), np.array(choice.usd[0]))  # type: ignore[arg-type]
    return (*(float(value) for value in key), *choice.ways)
