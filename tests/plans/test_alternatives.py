"""The next best plans against trying every kind of plan."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from charter.plan.decision import Limits, ranked
from charter.plan.make import next_best
from charter.plan.problem import ChoiceProblem, Ways


@st.composite
def problems(draw):
    stages = []
    for _ in range(draw(st.integers(1, 3))):
        rows = draw(st.integers(1, 5))
        figures = np.array([[draw(st.integers(1, 20)) for _ in range(2)] for _ in range(rows)], dtype=float)
        stages.append(
            Ways(
                seconds=figures[:, :1].repeat(2, axis=1),
                usd=figures[:, 1:].repeat(2, axis=1),
                waits=np.zeros((rows, 2)),
                not_before=np.zeros(rows),
                site=np.zeros(rows, dtype=int),
                demand=np.zeros((rows, 0)),
                family=np.array([draw(st.integers(0, 2)) for _ in range(rows)]),
            )
        )
    chain = tuple((stage - 1,) if stage else () for stage in range(len(stages)))
    return ChoiceProblem(inputs=chain, ways=tuple(stages), moves={})


def kinds(problem, ways):
    return tuple(int(stage.family[row]) for stage, row in zip(problem.ways, ways, strict=True))


def figure(problem, ways, objective):
    usd = sum(stage.usd[row, 0] for stage, row in zip(problem.ways, ways, strict=True))
    seconds = sum(stage.seconds[row, 0] for stage, row in zip(problem.ways, ways, strict=True))
    return {"cheapest": usd, "fastest": seconds, "balanced": usd * seconds}[objective]


@settings(max_examples=50, deadline=None)
@given(problem=problems(), objective=st.sampled_from(["fastest", "balanced"]), number=st.integers(1, 6))
def test_every_kind_of_plan_comes_in_order_and_once(problem, objective, number):
    limits = Limits()
    best: dict[tuple[int, ...], float] = {}
    for ways in product(*(range(len(stage)) for stage in problem.ways)):
        value = figure(problem, ways, objective)
        best[kinds(problem, ways)] = min(value, best.get(kinds(problem, ways), np.inf))
    first = ranked(problem, objective, limits)
    del best[kinds(problem, first.ways)]
    found = next_best(problem, first, number, objective, limits)
    told = [kinds(problem, choice.ways) for choice in found]
    assert len(set(told)) == len(told) == min(number, len(best))
    values = [figure(problem, choice.ways, objective) for choice in found]
    assert values == pytest.approx(sorted(best.values())[: len(values)])
    assert all(best[kind] == pytest.approx(value) for kind, value in zip(told, values, strict=True))
