"""Decisions of the choice over all stages: what of a wait counts, and which options may be left out beforehand."""

from dataclasses import replace
from math import log

import numpy as np
import pytest

from charter.catalog.price_book import PriceBook
from charter.plan.choose import best, useful
from charter.plan.decision import whole_problem
from charter.plan.gather import Facts, gather
from charter.plan.knowledge import shipped
from charter.plan.problem import ChoiceProblem, Goal, Move, Ways, evaluate
from charter.spec.project import Resources
from charter.spec.stage import SftStage


def columns(seconds, usd, site, demand=None):
    """The ways of one stage without waits; p90 is p50."""
    rows = len(seconds)
    return Ways(
        seconds=np.array([[one, one] for one in seconds], dtype=float),
        usd=np.array([[one, one] for one in usd], dtype=float),
        waits=np.zeros((rows, 2)),
        not_before=np.zeros(rows),
        site=np.array(site),
        demand=np.zeros((rows, 0)) if demand is None else np.array(demand, dtype=float)[:, None],
        family=np.arange(rows),
    )


def apart(*, usd=0.0, seconds=0.0):
    """A transfer that is free at one site and costs the same both ways between two."""
    away = 1.0 - np.eye(2)
    return Move(usd=usd * away, seconds=seconds * away)


def test_a_queue_counts_with_the_p90_of_an_exponential_wait(lab):
    stage = SftStage(init="base", data=("chat",), steps=100)
    made = lab.project(Resources(infra="aws", accelerators=("H100:8",), num_nodes=1), pipeline={"stage": stage})
    facts = Facts(
        architectures={"base": lab.LLAMA_8B}, stored={}, data={}, machine=lab.MACHINE, knowledge=shipped(), prices=None
    )
    found = gather(made, facts)
    (item,) = found.candidates
    option = item.options[0]
    queued = replace(option, place=replace(option.place, queue_seconds=1000.0))
    problem = whole_problem(
        made, [replace(item, options=(queued,))], found.freights, PriceBook.bundled()
    ).problem  # fmt: skip
    middle, late = problem.ways[0].waits[0]
    assert middle == 1000.0
    assert late == pytest.approx(1000.0 * log(10) / log(2), rel=1e-3)


@pytest.mark.parametrize("unit", ["usd", "seconds"])
def test_an_option_is_left_out_only_where_no_transfer_can_make_up_for_it(unit):
    """The middle of three stages at another place is better by `gain`; two transfers of 3 can take back 6."""

    def left(gain):
        figures = {"usd": [10.0, 10.0], "seconds": [10.0, 10.0]}
        figures[unit][1] -= gain
        fixed = columns([1.0], [1.0], [0])
        middle = columns(figures["seconds"], figures["usd"], [0, 1])
        move = apart(**{unit: 3.0})
        chain = ChoiceProblem(inputs=((), (0,), (1,)), ways=(fixed, middle, fixed), moves={(0, 1): move, (1, 2): move})
        return useful(chain, 1).tolist(), best(chain, Goal(minimise=unit)).ways[1]

    # At 5 both are kept, and staying is better; at 7 the other place is better whatever is moved.
    assert left(5.0) == ([0, 1], 0)
    assert left(7.0) == ([1], 1)


def test_nothing_is_called_proven_where_an_option_was_dropped_for_one_elsewhere_that_lets_others_wait():
    """Graham's anomaly over two places: three machines, and stage 0 takes 3 at one place or 5 at the other.

    Ended at 3, it lets stage 2 (10) take the machines that stage 3 (1) needs, and stage 4 (10) waits for stage 3: the
    end is 24. Ended at 5 and moved in 1, stage 2 starts at 6, stage 3 fits before it, and the end is 16.
    """
    first = columns([3.0, 5.0], [1.0, 1.0], [0, 1], [2, 2])
    fixed = [columns([time], [1.0], [0], [held]) for time, held in ((4.0, 1), (10.0, 2), (1.0, 2), (10.0, 0))]
    inputs = ((), (), (0,), (1,), (3,))
    short = ChoiceProblem(inputs=inputs, ways=(first, *fixed), capacity=(3.0,), moves={(0, 2): apart(seconds=1.0)})
    found = best(short, Goal(minimise="seconds"))
    assert evaluate(short, [[0] * 5, [1, 0, 0, 0, 0]]).end.max(axis=1)[:, 0].tolist() == [24.0, 16.0]
    assert (found.seconds[0], found.proven) == (24.0, False)
    roomy = replace(short, capacity=(), ways=tuple(replace(one, demand=one.demand[:, :0]) for one in short.ways))
    assert (best(roomy, Goal(minimise="seconds")).seconds[0], best(roomy, Goal(minimise="seconds")).proven) == (
        15,
        True,
    )
    assert best(replace(short, moves={}), Goal(minimise="seconds")).proven
