"""The choice of a whole plan against trying everything, on small random graphs."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serial_schedule import schedule

from charter.plan.choose import Bounds, best, undominated, useful
from charter.plan.decision import Limits, decide, earliest_p90
from charter.plan.problem import NO_LIMIT, ChoiceProblem, Goal, Move, PartialPlans, Ways, evaluate, extend
from charter.plan.timeline import Sharing

FIGURE = st.integers(1, 12).map(float)


@st.composite
def ways(draw, *, pools):
    number = draw(st.integers(1, 4))
    rows = range(number)
    p50 = np.array([[draw(FIGURE) for _ in range(2)] for _ in rows])
    return Ways(
        seconds=np.stack([p50[:, 0], p50[:, 0] * draw(st.sampled_from([1.0, 1.5]))], axis=1),
        usd=np.stack([p50[:, 1], p50[:, 1] * 1.25], axis=1),
        waits=np.array([[draw(st.sampled_from([0.0, 2.0]))] * 2 for _ in rows]),
        not_before=np.array([draw(st.sampled_from([0.0, 0.0, 7.0])) for _ in rows]),
        site=np.array([draw(st.integers(0, 1)) for _ in rows]),
        demand=np.array([[float(draw(st.integers(0, 3))) for _ in range(pools)] for _ in rows]).reshape(number, pools),
        family=np.arange(number),
    )


@st.composite
def problems(draw, *, pools=0):
    number = draw(st.integers(1, 4))
    inputs = tuple(
        tuple(other for other in range(stage) if draw(st.booleans())) for stage in range(number)
    )  # fmt: skip
    edges = [(writer, reader) for reader, writers in enumerate(inputs) for writer in writers]
    moving = [edge for edge in edges if draw(st.booleans())]
    return ChoiceProblem(
        inputs=inputs,
        ways=tuple(draw(ways(pools=pools)) for _ in range(number)),
        capacity=(4.0,) * pools,
        moves={
            edge: Move(usd=np.array([[0.0, 3.0], [2.0, 0.0]]), seconds=np.array([[0.0, 1.0], [4.0, 0.0]]))
            for edge in moving
        },
    )


def timed(problem, chosen, quantile):
    """The end of a plan by `serial_schedule.schedule`, which knows nothing of `choose`."""
    rows = {str(stage): (row, problem.ways[stage]) for stage, row in enumerate(chosen)}
    pools = range(len(problem.capacity))
    line = schedule(
        list(rows),
        {str(stage): [str(other) for other in inputs] for stage, inputs in enumerate(problem.inputs)},
        {name: columns.seconds[row, quantile] for name, (row, columns) in rows.items()},
        lags={
            (str(writer), str(reader)): moved(problem, chosen, writer, reader).seconds
            for writer, reader in problem.moves
        },
        waits={name: columns.waits[row, quantile] for name, (row, columns) in rows.items()},
        not_before={name: columns.not_before[row] for name, (row, columns) in rows.items()},
        sharing=Sharing(
            capacity={str(pool): problem.capacity[pool] for pool in pools},
            demand={
                name: {str(pool): columns.demand[row, pool] for pool in pools} for name, (row, columns) in rows.items()
            },
        ),
    )
    return line.total_seconds


def moved(problem, chosen, writer, reader):
    move = problem.moves.get((writer, reader))
    if move is None:
        return Move(usd=0.0, seconds=0.0)
    at = problem.ways[writer].site[chosen[writer]], problem.ways[reader].site[chosen[reader]]
    return Move(usd=move.usd[at], seconds=move.seconds[at])


def money(problem, chosen, quantile):
    own = sum(columns.usd[row, quantile] for row, columns in zip(chosen, problem.ways, strict=True))
    pairs = [(writer, reader) for reader, writers in enumerate(problem.inputs) for writer in writers]
    return own + sum(moved(problem, chosen, *pair).usd for pair in pairs)


def brute_force(problem, goal, rows):
    """The best key over every combination of `rows`, or None."""
    found = None
    for chosen in product(*rows):
        seconds = [timed(problem, chosen, quantile) for quantile in (0, 1)]
        usd = [money(problem, chosen, quantile) for quantile in (0, 1)]
        limits = zip([*seconds, *usd], [*goal.seconds, *goal.usd], strict=True)
        if any(value > limit * (1 + 1e-9) for value, limit in limits):
            continue
        key = tuple(goal.key(np.array(seconds[0]), np.array(usd[0])))
        found = key if found is None else min(found, key)
    return found


def key_of(goal, choice):
    return tuple(goal.key(np.array(choice.seconds[0]), np.array(choice.usd[0])))


LIMIT = st.sampled_from([NO_LIMIT, 12.0, 25.0, 40.0])
GOALS = st.builds(
    Goal,
    minimise=st.sampled_from(["usd", "seconds", "product"]),
    seconds=st.tuples(LIMIT, LIMIT),
    usd=st.tuples(LIMIT, LIMIT),
)


def check(problem, goal, rows):
    wanted, found = brute_force(problem, goal, rows), best(problem, goal)
    if wanted is None:
        assert found is None
        return
    assert found is not None
    assert found.proven == (not problem.capacity or not problem.moves)
    assert key_of(goal, found)[0] == pytest.approx(wanted[0])
    if goal.minimise != "usd":
        assert key_of(goal, found) == pytest.approx(wanted)
    assert found.seconds == pytest.approx([timed(problem, found.ways, quantile) for quantile in (0, 1)])
    assert found.usd == pytest.approx([money(problem, found.ways, quantile) for quantile in (0, 1)])


@settings(max_examples=60, deadline=None)
@given(problem=problems(), goal=GOALS)
def test_as_good_as_trying_everything(problem, goal):
    check(problem, goal, [range(len(columns)) for columns in problem.ways])


@settings(max_examples=40, deadline=None)
@given(problem=problems(pools=1), goal=GOALS)
def test_as_good_as_trying_everything_with_shared_capacity(problem, goal):
    check(problem, goal, [[int(row) for row in useful(problem, stage)] for stage in range(len(problem.ways))])


@settings(max_examples=60, deadline=None)
@given(problem=problems(), goal=GOALS, data=st.data())
def test_bounds_are_below_every_completion(problem, goal, data):
    whole = [data.draw(st.integers(0, len(columns) - 1)) for columns in problem.ways]
    done = evaluate(problem, [whole])
    seconds, usd = done.end.max(axis=1)[0], done.usd[0]
    kept = all(seconds <= np.array(goal.seconds)) and all(usd <= np.array(goal.usd))
    rows, bounds = PartialPlans.empty(), Bounds.of(problem, goal)
    for way in whole:
        rows = extend(problem, rows, np.array([0]), np.array([way]))
        lower = bounds.lower(rows)
        if kept:
            assert (lower.seconds[0] <= seconds * (1 + 1e-9) + 1e-9).all()
            assert (lower.usd[0] <= usd * (1 + 1e-9) + 1e-9).all()
            key = goal.key(seconds[0], usd[0])
            assert lower.key[0, 0] <= key[0] * (1 + 1e-9) + 1e-9
            assert bounds.lower(rows, key * 1.01).may_beat(goal, key * 1.01).all()


@given(st.lists(st.tuples(*[st.integers(0, 3).map(float)] * 3), min_size=1, max_size=30))
def test_front_is_what_no_row_beats(rows):
    table = np.array(rows)
    kept = {tuple(row) for row in table[undominated(table, np.zeros((len(table), 0), dtype=np.intp))]}
    for row in set(rows):
        beaten = any(other != row and all(a <= b for a, b in zip(other, row, strict=True)) for other in set(rows))
        assert (row in kept) != beaten


def test_a_chain_pays_for_speed_where_a_second_is_cheapest():
    """Ten seconds must go: the first stage sells a second for $1, the second for $3."""

    def stage(slow, fast, price):
        return Ways(
            seconds=np.array([[slow, slow], [fast, fast]]), usd=np.array([[0.0, 0.0], [price, price]]),
            waits=np.zeros((2, 2)), not_before=np.zeros(2), site=np.zeros(2, dtype=int), demand=np.zeros((2, 0)),
            family=np.zeros(2, dtype=int),
        )  # fmt: skip

    chain = ChoiceProblem(inputs=((), (0,)), ways=(stage(20.0, 10.0, 10.0), stage(20.0, 10.0, 30.0)), moves={})
    found = best(chain, Goal(minimise="usd", seconds=(NO_LIMIT, 30.0)))
    assert (found.ways, found.usd[0], found.seconds[0]) == ((1, 0), 10.0, 30.0)


@settings(max_examples=40, deadline=None)
@given(problem=problems(), deadline=st.sampled_from([None, 15.0, 30.0]), budget=st.sampled_from([None, 20.0, 40.0]))
def test_each_objective_is_what_it_says(problem, deadline, budget):
    limits = Limits(deadline_seconds=deadline, budget_usd=budget)
    plans, ends = [], []
    for chosen in product(*(range(len(columns)) for columns in problem.ways)):
        seconds, usd = (tuple(part(problem, chosen, quantile) for quantile in (0, 1)) for part in (timed, money))
        ends.append(seconds[1])
        if seconds[1] <= limits.seconds[1] * (1 + 1e-9):
            plans.append((seconds[0], usd[0], usd[1]))
    least = min((usd for _, usd, _ in plans), default=None)
    near = [(seconds, usd) for seconds, usd, _ in plans if usd <= 1.05 * least]
    cheapest = decide(problem, "cheapest", limits)
    assert (cheapest is None) == (not plans)
    assert cheapest is None or (cheapest.seconds[0], cheapest.usd[0]) == pytest.approx(min(near))
    paid = [(seconds, usd) for seconds, usd, high in plans if high <= limits.usd[1] * (1 + 1e-9)]
    fastest, balanced = decide(problem, "fastest", limits), decide(problem, "balanced", limits)
    assert (fastest is None) == (balanced is None) == (not paid)
    if paid:
        assert (fastest.seconds[0], fastest.usd[0]) == pytest.approx(min(paid))
        assert balanced.seconds[0] * balanced.usd[0] == pytest.approx(min(seconds * usd for seconds, usd in paid))
    assert earliest_p90(problem).seconds[1] == pytest.approx(min(ends))


def crowded(rng, *, sites=1, contend=True):
    """Stages of few dependencies that contend for a pool, with tails that are not in proportion to the middle."""
    number = int(rng.integers(2, 5))

    def pair(low, high, rows):
        middle = rng.integers(low, high, rows).astype(float)
        return np.stack([middle, middle * rng.choice([1.0, 1.5, 3.0], rows)], axis=1)

    def columns():
        rows = int(rng.integers(2, 5))
        return Ways(
            seconds=pair(1, 9, rows),
            usd=pair(1, 13, rows),
            waits=pair(0, 3, rows),
            not_before=rng.choice([0.0, 0.0, 5.0], rows),
            site=rng.integers(0, sites, rows),
            demand=rng.choice([0.0, 1.0, 2.0, 3.0], (rows, int(contend))),
            family=np.arange(rows),
        )

    inputs = tuple(tuple(other for other in range(stage) if rng.random() < 0.3) for stage in range(number))
    moves = {
        (writer, reader): Move(
            usd=rng.integers(1, 9, (sites, sites)) * (1.0 - np.eye(sites)),
            seconds=rng.integers(1, 9, (sites, sites)) * (1.0 - np.eye(sites)),
        )
        for reader, writers in enumerate(inputs)
        for writer in writers
        if sites > 1
    }
    return ChoiceProblem(
        inputs=inputs, ways=tuple(columns() for _ in range(number)), capacity=(3.0,) * contend, moves=moves
    )


def test_many_plans_at_once_end_when_the_timeline_says():
    rng = np.random.default_rng(1)
    for _ in range(60):
        problem = crowded(rng, sites=2)
        plans = [[int(rng.integers(0, len(columns))) for columns in problem.ways] for _ in range(4)]
        ends = evaluate(problem, plans).end.max(axis=1)
        assert ends.tolist() == [[timed(problem, plan, quantile) for quantile in (0, 1)] for plan in plans]


@pytest.mark.parametrize("minimise", ["usd", "seconds", "product"])
@pytest.mark.parametrize(("sites", "contend"), [(1, True), (3, True), (3, False)])
def test_no_plan_of_crowded_stages_is_better_than_the_best(minimise, sites, contend):
    """Beside the small graphs above: dropping a partial plan must look at what later stages meet, at p90 too.

    Where stages contend, of the ways that `useful` leaves: there a longer stage can let another start sooner.
    """
    rng = np.random.default_rng(2)
    for _ in range(settings.default.max_examples):
        problem = crowded(rng, sites=sites, contend=contend)
        every = [useful(problem, n) if contend else range(len(columns)) for n, columns in enumerate(problem.ways)]
        plans = np.array(list(product(*every)))
        whole = evaluate(problem, plans)
        ends = whole.end.max(axis=1)
        deadline, budget = ends[rng.integers(0, len(plans)), 1], float(np.median(whole.usd[:, 1]))
        goal = Goal(minimise=minimise, seconds=(NO_LIMIT, deadline), usd=(NO_LIMIT, budget))
        kept = (ends <= np.array(goal.seconds)).all(axis=1) & (whole.usd <= np.array(goal.usd)).all(axis=1)
        found = best(problem, goal)
        assert (found is not None) == bool(kept.any())
        if found is not None:
            assert key_of(goal, found)[0] == pytest.approx(goal.key(ends[kept, 0], whole.usd[kept, 0])[:, 0].min())
