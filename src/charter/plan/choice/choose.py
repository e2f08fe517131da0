"""One way for every stage of a plan, exactly: the best whole plan under limits on time, money and shared capacity.

The problem is stated in numbers only, so that it can be checked against trying everything.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from charter.plan.choice.bounds import Bounds
from charter.plan.choice.dominance import undominated
from charter.plan.choice.problem import P50, P90, TIE, Array, Goal, Indices, Problem, Rows, evaluate, extend, joined

ROWS_AT_ONCE = 100_000
MOST_PARTIAL_PLANS = 20_000
"""Partial plans that are kept per stage; beyond it the answer is good but not proven best. Judgement: some seconds."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A way for every stage."""

    ways: tuple[int, ...]
    seconds: tuple[float, float]
    usd: tuple[float, float]
    proven: bool = True
    """No choice of the ways that are not dropped beforehand (`useful`) is better. False where the search was cut short,
    and where a pool is scarce and results move: there a way that is dropped for one elsewhere might be better."""
    considered: int = 0
    """Partial plans that were evaluated."""


def best(problem: Problem, goal: Goal, *, known: Sequence[Sequence[int]] = ()) -> Choice | None:
    """The best whole plan, or None when none keeps the limits; `known` are plans to start from.

    Branch and bound over the stages in execution order: partial plans are extended stage by stage; one is dropped
    when the least that it can come to (`bounds`) exceeds a limit or the best plan known, or when another with the
    same open ends is no worse in every figure. Both rules are exact.
    """
    selected = [useful(problem, stage) for stage in range(len(problem.ways))]
    small = replace(problem, ways=tuple(ways.take(rows) for ways, rows in zip(problem.ways, selected, strict=True)))
    bounds = Bounds.of(small, goal)
    back = [{int(row): index for index, row in enumerate(rows)} for rows in selected]
    starts = [[back[stage].get(way, 0) for stage, way in enumerate(plan)] for plan in known]
    top = _improved(small, goal, _top(small, goal, evaluate(small, [*bounds.guesses(), *starts]), None))
    rows, considered, proven = Rows.empty(), 0, not (problem.capacity and problem.moves)
    for stage, ways in enumerate(small.ways):
        considered += len(rows) * len(ways)
        rows = _promising(small, bounds, rows, len(ways), None if top is None else top[0])
        if stage + 1 < len(small.ways):
            rows = rows.take(undominated(*bounds.open_figures(rows)))
        if len(rows) > MOST_PARTIAL_PLANS:
            order = np.lexsort(bounds.lower(rows).key.T[::-1])
            rows, proven = rows.take(np.sort(order[:MOST_PARTIAL_PLANS])), False
    top = _top(small, goal, rows, top)
    if top is None:
        return None
    _, winner = top
    return Choice(
        ways=tuple(int(selected[stage][way]) for stage, way in enumerate(winner.ways[0])),
        seconds=(float(winner.end[0, :, P50].max()), float(winner.end[0, :, P90].max())),
        usd=(float(winner.usd[0, P50]), float(winner.usd[0, P90])),
        proven=proven,
        considered=considered,
    )


def _promising(problem: Problem, bounds: Bounds, rows: Rows, number: int, best_key: Array | None) -> Rows:
    """Every extension of partial plans by one of `number` ways whose bound is better than the best plan known.

    So many parents at a time that memory stays small.
    """
    step = max(1, ROWS_AT_ONCE // number)
    batches = []
    for low in range(0, max(1, len(rows)), step):
        parents = np.arange(low, min(low + step, len(rows)))
        extended = extend(problem, rows, np.repeat(parents, number), np.tile(np.arange(number), len(parents)))
        batches.append(extended.take(np.flatnonzero(bounds.lower(extended, best_key).may_beat(bounds.goal, best_key))))
    return joined(batches)


def _improved(problem: Problem, goal: Goal, top: tuple[Array, Rows] | None) -> tuple[Array, Rows] | None:
    """A plan that no change of one stage makes better: a good first bound."""
    while top is not None:
        plan = top[1].ways[0]
        tried = []
        for stage, ways in enumerate(problem.ways):
            one = np.tile(plan, (len(ways), 1))
            one[:, stage] = np.arange(len(ways))
            tried.append(one)
        better = _top(problem, goal, evaluate(problem, np.concatenate(tried)), top)
        if better is top:
            break
        top = better
    return top


def _top(problem: Problem, goal: Goal, rows: Rows, so_far: tuple[Array, Rows] | None) -> tuple[Array, Rows] | None:
    """The best row that keeps the limits, if it beats what is known; of equal ones the first."""
    if len(rows) == 0:
        return so_far
    seconds = rows.end.max(axis=1)
    allowed = (seconds <= np.asarray(goal.seconds) * (1 + TIE)).all(axis=1)
    allowed &= (rows.usd <= np.asarray(goal.usd) * (1 + TIE) + TIE).all(axis=1)
    matches = np.flatnonzero(allowed)
    if len(matches) == 0:
        return so_far
    key = goal.key(seconds[matches, P50], rows.usd[matches, P50])
    first = int(np.lexsort((key[:, 1], key[:, 0]))[0])
    if so_far is not None and tuple(so_far[0]) <= tuple(key[first]):
        return so_far
    return key[first], rows.take(matches[first : first + 1])


def useful(problem: Problem, stage: int) -> Indices:
    """The ways of a stage that can be in a best plan: at each site, and over all sites less what a move can save.

    A way is dropped when another is no worse in time, wait, money and what it holds, at the same site, or at another
    although every transfer to and from that one were the dearest. Exact where no pool is scarce; where one is, stages
    are placed in order, and a longer stage can let another start sooner (Graham 1966), which is not looked for.
    """
    ways = problem.ways[stage]
    figures = np.concatenate([ways.seconds, ways.waits, ways.not_before[:, None], ways.usd, ways.demand], axis=1)
    front = undominated(figures, ways.site[:, None])
    moves = [move for pair, move in problem.moves.items() if stage in pair]
    if not moves:
        return front[undominated(figures[front], np.zeros((len(front), 1), dtype=np.intp))]
    usd_swing = sum(float(np.ptp(move.usd)) for move in moves)
    seconds_swing = sum(float(np.ptp(move.seconds)) for move in moves)
    worse = figures[front].copy()
    # A move later than the stage delays its readers, so the time swing is charged to the stage itself.
    worse[:, 0:2] += seconds_swing
    worse[:, 5:7] += usd_swing
    beaten = np.array([(worse <= row).all(axis=1).any() for row in figures[front]])
    left: Indices = front[~beaten]
    return left
