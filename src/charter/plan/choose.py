"""One way for every stage of a plan, exactly: bounds from below, rows that nothing beats, the best whole plan."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from charter.plan.problem import (
    NO_LIMIT,
    P50,
    P90,
    TIE,
    Array,
    ChoiceProblem,
    Goal,
    Indices,
    PartialPlans,
    evaluate,
    extend,
    joined,
)

# -------- Rows of figures that no other row beats.

BLOCK = 256


def undominated(figures: NDArray[np.float64], groups: NDArray[np.intp]) -> NDArray[np.intp]:
    """Rows, in order, for which no other row of the same group is as low in every figure; of equal rows the first.

    `figures` and `groups` have one row per candidate; rows are compared only where all their groups agree.

    >>> undominated(np.array([[1.0, 2.0], [2.0, 1.0], [2.0, 2.0], [1.0, 2.0]]), np.zeros((4, 1), dtype=np.intp))
    array([0, 1])
    """
    if len(figures) < 2:
        return np.arange(len(figures))
    if groups.shape[1] == 0:
        return np.sort(_front(figures, np.arange(len(figures))))
    _, label = np.unique(groups, axis=0, return_inverse=True)
    label = label.reshape(-1)
    fronts = [_front(figures, np.flatnonzero(label == group)) for group in range(int(label.max()) + 1)]
    return np.sort(np.concatenate(fronts))


def _front(figures: NDArray[np.float64], rows: NDArray[np.intp]) -> NDArray[np.intp]:
    table = figures[rows]
    varying = table[:, np.ptp(table, axis=0) > 0]
    if varying.shape[1] == 0:
        return rows[:1]
    order = np.lexsort((np.arange(len(rows)), *varying.T[::-1]))
    table = varying[order]
    if table.shape[1] <= 2:
        return rows[order[_staircase(table[:, -1], table[:, 0])]]
    blocks: list[NDArray[np.intp]] = []
    archive = table[:0]
    for low in range(0, len(table), BLOCK):
        block = np.arange(low, min(low + BLOCK, len(table)))
        if len(archive):
            beaten = np.logical_or.reduce(np.logical_and.reduce(archive[None] <= table[block][:, None], axis=2), axis=1)
            block = block[~beaten]
        beats = np.logical_and.reduce(table[block][None] <= table[block][:, None], axis=2)
        block = block[~np.logical_or.reduce(np.tril(beats, -1), axis=1)]
        blocks.append(block)
        archive = np.concatenate([archive, table[block]])
    return rows[order[np.concatenate(blocks)]]


def _staircase(second: NDArray[np.float64], first: NDArray[np.float64]) -> NDArray[np.intp]:
    """Of rows sorted by the first figure, those whose second is lower than all before."""
    if second is first or np.array_equal(second, first):
        return np.arange(1)
    before = np.concatenate([[np.inf], np.minimum.accumulate(second)[:-1]])
    return np.flatnonzero(second < before)


# -------- The least that a partial plan can come to: bounds from below on time, money and their product.
#
# Three kinds, all admissible. The rest at its cheapest; the longest path through the rest at its fastest, as if every
# machine were free; and both together by Lagrange multipliers: the stages that are still open are divided into paths
# without a common stage, and for each path P and any price `l` of a second
#
# `usd of P >= sum over P of min(usd + l x seconds) - l x time that the limit leaves for P`.
#
# The limit is the deadline, or the time of the best plan known where a better one must be quicker.

PRICES_OF_A_SECOND = 24
"""Multipliers tried, evenly spaced in the logarithm between the slopes of the stages' fronts. Judgement."""
ROUNDS = 2
"""Of bounding the product: the bound on money limits the time, which raises the bound on money."""
MOST_SITES = 6
"""Sites for which plans that stay at one are guessed."""


@dataclass(frozen=True, kw_only=True)
class Lower:
    """Bounds from below, one row per partial plan."""

    seconds: Array
    usd: Array
    key: Array

    def may_beat(self, goal: Goal, best: Array | None) -> NDArray[np.bool_]:
        """Rows that may keep the limits and be better than `best`."""
        in_time = np.logical_and.reduce(self.seconds <= np.asarray(goal.seconds) * (1 + TIE), axis=1)
        paid = np.logical_and.reduce(self.usd <= np.asarray(goal.usd) * (1 + TIE) + TIE, axis=1)
        may: NDArray[np.bool_] = in_time & paid
        if best is not None:
            first, second = self.key[:, 0], self.key[:, 1]
            better = first < best[0] * (1 - TIE)
            may = may & (better | ((first <= best[0] * (1 + TIE)) & (second < best[1] * (1 - TIE))))
        return may


@dataclass(frozen=True, kw_only=True)
class Path:
    """Open stages that follow each other; paths of one number of placed stages share none."""

    after: int | None
    """The placed stage from whose end it is measured; None from the start of the project."""
    head: Array
    """Least seconds from there to the beginning of the path: p50, p90."""
    tail: Array
    """Least seconds from its end to the end of the project."""
    cheapest: Array
    """Least usd of its stages."""
    sums: Array
    """Least `usd + price x seconds` of its stages: [usd, seconds, price]."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Everything that bounds need, computed once for a problem."""

    problem: ChoiceProblem
    goal: Goal
    prices: Array
    rest_usd: Array
    """Least usd of the stages from a position on."""
    from_start: Array
    """Least end of the stages from a position on, if nothing were before them."""
    after: Array
    """Least seconds from the end of each stage to that of the project through stages from a position on."""
    frontier: tuple[tuple[int, ...], ...]
    """After each number of placed stages: those that an open one reads."""
    covers: tuple[tuple[tuple[Path, ...], ...], ...]
    """After each number of placed stages: the open ones, divided; once for each stage of the frontier to begin with."""

    @staticmethod
    def of(problem: ChoiceProblem, goal: Goal) -> "Bounds":
        """The bounds of a problem."""
        number = len(problem.ways)
        least = Least.of(problem)
        soonest = [
            (np.maximum(ways.waits, ways.not_before[:, None]) + ways.seconds).min(axis=0) for ways in problem.ways
        ]
        from_start = np.zeros((number + 1, 2))
        for stage in reversed(range(number)):
            from_start[stage] = np.maximum(from_start[stage + 1], soonest[stage] + least.tail[stage])
        frontier = tuple(
            tuple(s for s in range(placed) if any(reader >= placed for reader in problem.readers(s)))
            for placed in range(number + 1)
        )
        return Bounds(
            problem=problem,
            goal=goal,
            prices=least.prices,
            rest_usd=np.concatenate([np.cumsum(least.usd[::-1], axis=0)[::-1], np.zeros((1, 2))]),
            from_start=from_start,
            after=np.array([_after(problem, least, placed) for placed in range(number + 1)]),
            frontier=frontier,
            covers=tuple(
                tuple(_cover(problem, least, placed, first) for first in frontier[placed] or (None,))
                for placed in range(number + 1)
            ),
        )

    def lower(self, rows: PartialPlans, best: Array | None = None) -> Lower:
        """Bounds of partial plans of one length; with `best`, of those completions that have a lower key."""
        placed = rows.ways.shape[1]
        usd = rows.usd + self.rest_usd[placed]
        seconds = np.maximum(rows.end.max(axis=1, initial=0.0), self.from_start[placed])
        for stage in self.frontier[placed]:
            seconds = np.maximum(seconds, rows.end[:, stage] + self.after[placed, stage])
        for _ in range(ROUNDS if self.goal.minimise == "product" and best is not None else 1):
            usd = self._usd_in_time(rows, usd, self._limits(usd, best))
        return Lower(seconds=seconds, usd=usd, key=self.goal.key(seconds[:, P50], usd[:, P50]))

    def _limits(self, usd: Array, best: Array | None) -> Array:
        """Seconds that a plan may take, p50 and p90: the deadline, or what a better plan than `best` may take."""
        limits = np.tile(np.asarray(self.goal.seconds), (len(usd), 1))
        if best is not None and self.goal.minimise == "seconds":
            limits[:, P50] = np.minimum(limits[:, P50], best[0] * (1 + TIE))
        if best is not None and self.goal.minimise == "product":
            most = np.divide(best[0] * (1 + TIE), usd[:, P50], out=limits[:, P50].copy(), where=usd[:, P50] > 0)
            limits[:, P50] = np.minimum(limits[:, P50], most)
        return limits

    def _usd_in_time(self, rows: PartialPlans, usd: Array, limits: Array) -> Array:
        """The bound on money when everything ends within the limits."""
        bound = usd.copy()
        for time in (P50, P90):
            if not np.isfinite(limits[:, time]).any():
                continue
            for cover in self.covers[rows.ways.shape[1]]:
                total = rows.usd.copy()
                for path in cover:
                    start = 0.0 if path.after is None else rows.end[:, path.after, time]
                    left = limits[:, time] - start - path.head[time] - path.tail[time]
                    for money in (P50, P90) if self.goal.usd[P90] < NO_LIMIT else (P50,):
                        least = _highest(path.sums[money, time], self.prices, left)
                        total[:, money] += np.maximum(path.cheapest[money], least)
                bound = np.maximum(bound, total)
        return bound

    def open_figures(self, rows: PartialPlans) -> tuple[Array, Indices]:
        """Return the open figures of partial plans of one length (less is better), and the traits that must agree.

        Ends of stages that later ones read, the end of those that none reads, money; sites of results that move.
        Where capacity is shared, stages that may still be in the way must lie at the same times.
        """
        placed = rows.ways.shape[1]
        ends = self.frontier[placed]
        figures = [rows.usd[:, P50]] + ([rows.usd[:, P90]] if self.goal.usd[P90] < NO_LIMIT else [])
        for quantile in (P50, P90):
            if self.goal.minimise == "usd" and quantile == P50 and self.goal.seconds[P50] == NO_LIMIT:
                continue
            if quantile == P90 and self.goal.seconds[P90] == NO_LIMIT:
                continue
            figures += [rows.end[:, stage, quantile] for stage in ends]
            done = [stage for stage in range(placed) if stage not in ends]
            if done:
                figures.append(rows.end[:, done, quantile].max(axis=1))
        moving = [writer for writer, reader in self.problem.moves if writer < placed <= reader]
        groups = [rows.site[:, stage] for stage in sorted(set(moving))]
        for stage in self._in_the_way(placed) if self.problem.capacity and len(rows) else ():
            intervals = np.concatenate([rows.start[:, stage], rows.end[:, stage]], axis=1)
            groups += [np.unique(intervals, axis=0, return_inverse=True)[1].reshape(-1), rows.ways[:, stage]]
        table = np.stack(groups, axis=1) if groups else np.zeros((len(rows), 0), dtype=np.intp)
        return np.stack(figures, axis=1), table.astype(np.intp)

    def _in_the_way(self, placed: int) -> list[int]:
        """Placed stages beside which a later one may still be put: those that it does not wait for."""
        return [
            stage
            for stage in range(placed)
            if any(stage not in self.problem.before(later) for later in range(placed, len(self.problem.ways)))
        ]

    def guesses(self) -> list[list[int]]:
        """Whole plans to start from: every stage at its best for one price of a second, anywhere or at one site."""
        time = P90 if self.goal.seconds[P90] < NO_LIMIT else P50
        lists = [ways.site for ways in self.problem.ways]
        shared = sorted(set.intersection(*({int(site) for site in sites} for sites in lists)))[:MOST_SITES]
        plans: dict[tuple[int, ...], None] = {}
        for site in (None, *(shared if self.problem.moves else ())):
            for price in (0.0, *self.prices, self.prices[-1] * 1e6):
                plan = []
                for ways in self.problem.ways:
                    value = ways.usd[:, P50] + price * (ways.seconds + ways.waits)[:, time]
                    allowed = value if site is None else np.where(ways.site == site, value, np.inf)
                    plan.append(int(np.argmin(allowed)))
                plans[tuple(plan)] = None
        return [list(plan) for plan in plans]


@dataclass(frozen=True, kw_only=True)
class Least:
    """The least that each stage can take, by itself and after it."""

    prices: Array
    usd: Array
    seconds: Array
    tail: Array
    """Of everything that follows a stage."""
    sums: Array
    """Least `usd + price x seconds`: [stage, usd, seconds, price]."""

    @staticmethod
    def of(problem: ChoiceProblem) -> "Least":
        """Columns over the stages of a problem."""
        prices = _prices(problem)
        lengths = [ways.seconds + ways.waits for ways in problem.ways]
        seconds = np.array([length.min(axis=0) for length in lengths])
        sums = [
            (ways.usd[:, :, None, None] + length[:, None, :, None] * prices).min(axis=0)
            for ways, length in zip(problem.ways, lengths, strict=True)
        ]
        tail = np.zeros_like(seconds)
        for stage in reversed(range(len(seconds))):
            for reader in problem.readers(stage):
                tail[stage] = np.maximum(tail[stage], seconds[reader] + tail[reader])
        usd = np.array([ways.usd.min(axis=0) for ways in problem.ways])
        return Least(prices=prices, usd=usd, seconds=seconds, tail=tail, sums=np.array(sums))


def _after(problem: ChoiceProblem, least: Least, placed: int) -> Array:
    """Least seconds from the end of each stage through readers from `placed` on."""
    seconds = np.zeros_like(least.seconds)
    for stage in range(placed):
        for reader in problem.readers(stage):
            if reader >= placed:
                seconds[stage] = np.maximum(seconds[stage], least.seconds[reader] + least.tail[reader])
    return seconds


def _cover(problem: ChoiceProblem, least: Least, placed: int, begin: int | None) -> tuple[Path, ...]:
    """The open stages divided into paths, each from where it can begin: one after `begin`, then the longest left."""
    open_stages = set(range(placed, len(problem.ways)))
    origin: dict[int, tuple[int | None, Array]] = {stage: (stage, np.zeros(2)) for stage in range(placed)}
    paths: list[Path] = []
    while open_stages:
        ready = [stage for stage in sorted(open_stages) if open_stages.isdisjoint(problem.inputs[stage])]
        if begin is not None and not paths:
            ready = [stage for stage in sorted(open_stages) if begin in problem.inputs[stage]]
        first = max(ready, key=lambda stage: float(least.seconds[stage, P50] + least.tail[stage, P50]))
        origins = [origin[other] for other in problem.inputs[first] if other in origin]
        latest = max(origins, key=lambda item: float(item[1][P50]), default=None)
        if begin is not None and not paths:
            latest = origin[begin]
        after, head = latest or (None, np.zeros(2))
        members, total = [first], head + least.seconds[first]
        origin[first] = (after, total)
        while following := [r for r in problem.readers(members[-1]) if r in open_stages]:
            members.append(max(following, key=lambda stage: float(least.seconds[stage, P50] + least.tail[stage, P50])))
            total = total + least.seconds[members[-1]]
            origin[members[-1]] = (after, total)
        open_stages.difference_update(members)
        paths.append(
            Path(
                after=after,
                head=head,
                tail=least.tail[members[-1]],
                cheapest=least.usd[members].sum(axis=0),
                sums=least.sums[members].sum(axis=0),
            )
        )
    return tuple(paths)


def _highest(sums: Array, slopes: Array, left: Array) -> Array:
    """The highest of the lines `sum - slope x left`."""
    highest = np.full(len(left), -np.inf)
    for total, slope in zip(sums, slopes, strict=True):
        highest = np.maximum(highest, total - slope * left)
    return highest


def _prices(problem: ChoiceProblem) -> Array:
    """Prices of a second between the flattest and the steepest exchange of money for time in any stage."""
    low, high = np.inf, 0.0
    for ways in problem.ways:
        order = np.argsort(ways.seconds[:, P50], kind="stable")
        seconds, usd = ways.seconds[order, P50], np.minimum.accumulate(ways.usd[order, P50])
        saved, paid = np.diff(seconds), -np.diff(usd)
        slopes = paid[(saved > 0) & (paid > 0)] / saved[(saved > 0) & (paid > 0)]
        if len(slopes):
            low, high = min(low, float(slopes.min())), max(high, float(slopes.max()))
    return np.geomspace(low, high, PRICES_OF_A_SECOND) if 0 < low <= high < np.inf else np.ones(1)


# -------- One way for every stage of a plan, exactly: the best whole plan under limits on time, money and shared
# capacity.
#
# The problem is stated in numbers only, so that it can be checked against trying everything.

ROWS_AT_ONCE = 100_000
MOST_PARTIAL_PLANS = 20_000
"""Partial plans that are kept per stage; beyond it the answer is good but not proven best. Judgement: some seconds."""


@dataclass(frozen=True, kw_only=True)
class PlanChoice:
    """A way for every stage."""

    ways: tuple[int, ...]
    seconds: tuple[float, float]
    usd: tuple[float, float]
    proven: bool = True
    """No choice of the ways that are not dropped beforehand (`useful`) is better. False where the search was cut short,
    and where a pool is scarce and results move: there a way that is dropped for one elsewhere might be better."""


def best(problem: ChoiceProblem, goal: Goal, *, known: Sequence[Sequence[int]] = ()) -> PlanChoice | None:
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
    rows, proven = PartialPlans.empty(), not (problem.capacity and problem.moves)
    for stage, ways in enumerate(small.ways):
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
    return PlanChoice(
        ways=tuple(int(selected[stage][way]) for stage, way in enumerate(winner.ways[0])),
        seconds=(float(winner.end[0, :, P50].max()), float(winner.end[0, :, P90].max())),
        usd=(float(winner.usd[0, P50]), float(winner.usd[0, P90])),
        proven=proven,
    )


def _promising(
    problem: ChoiceProblem, bounds: Bounds, rows: PartialPlans, number: int, best_key: Array | None
) -> PartialPlans:
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


def _improved(
    problem: ChoiceProblem, goal: Goal, top: tuple[Array, PartialPlans] | None
) -> tuple[Array, PartialPlans] | None:
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


def _top(
    problem: ChoiceProblem, goal: Goal, rows: PartialPlans, so_far: tuple[Array, PartialPlans] | None
) -> tuple[Array, PartialPlans] | None:
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


def useful(problem: ChoiceProblem, stage: int) -> Indices:
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
