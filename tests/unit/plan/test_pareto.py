"""What nothing dominates."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from charter.plan.option import front, front_of_two, pareto

tables = st.lists(st.tuples(*[st.integers(0, 4)] * 3), min_size=1, max_size=30)


def dominated(one: tuple[float, ...], table: list[tuple[float, ...]]) -> bool:
    return any(all(a <= b for a, b in zip(other, one, strict=True)) and other != one for other in table)


@given(tables)
def test_the_front_is_what_brute_force_keeps(rows):
    kept = front(np.array(rows, dtype=float))
    assert kept.tolist() == [not dominated(row, rows) for row in rows]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=40))
def test_two_objectives_give_the_same_points(rows):
    table = np.array(rows, dtype=float)
    found = front_of_two(table[:, 0], table[:, 1])
    assert {tuple(table[row]) for row in found} == {tuple(row) for row in table[front(table)]}
    assert len(found) == len({tuple(table[row]) for row in found})


def test_nothing_has_no_front():
    assert pareto(()) == ()
