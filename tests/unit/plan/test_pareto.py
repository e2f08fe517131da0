"""What nothing dominates."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from charter.plan.option import front, pareto

tables = st.lists(st.tuples(*[st.integers(0, 4)] * 3), min_size=1, max_size=30)


def dominated(one: tuple[float, ...], table: list[tuple[float, ...]]) -> bool:
    return any(all(a <= b for a, b in zip(other, one, strict=True)) and other != one for other in table)


@given(tables)
def test_the_front_is_what_brute_force_keeps(rows):
    kept = front(np.array(rows, dtype=float))
    assert kept.tolist() == [not dominated(row, rows) for row in rows]


def test_nothing_has_no_front():
    assert pareto(()) == ()
