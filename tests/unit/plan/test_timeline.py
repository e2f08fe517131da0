from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from serial_schedule import schedule

from charter.plan.timeline import finish_date

SECONDS = {"a": 3.0, "b": 5.0, "c": 1.0, "d": 2.0}
DIAMOND = {"b": ["a"], "c": ["a"], "d": ["b", "c"]}


def test_longest_path_decides_without_a_limit():
    line = schedule(["a", "b", "c", "d"], DIAMOND, SECONDS)
    assert line.total_seconds == 10
    assert line.critical_path == ("a", "b", "d")
    assert line.start_seconds["c"] == 3


def test_one_slot_makes_the_total_the_sum():
    assert schedule(["a", "b", "c", "d"], DIAMOND, SECONDS, max_parallel=1).total_seconds == 11


def test_stage_waits_for_a_free_slot_and_the_path_says_so():
    line = schedule(["a", "b", "c"], {}, {"a": 4.0, "b": 1.0, "c": 2.0}, max_parallel=2)
    assert line.start_seconds["c"] == 1
    assert schedule(["a", "b"], {}, {"a": 4.0, "b": 1.0}, max_parallel=1).critical_path == ("a", "b")


def test_no_stage_takes_no_time():
    assert schedule([], {}, {}).total_seconds == 0


@given(
    seconds=st.lists(st.floats(0, 1e5), min_size=1, max_size=8),
    edges=st.sets(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=12),
    slots=st.integers(1, 8),
)
def test_total_lies_between_the_longest_stage_and_the_sum(seconds, edges, slots):
    order = [f"s{index}" for index in range(len(seconds))]
    needs = {
        f"s{to}": [f"s{start}" for start, end in sorted(edges) if end == to and start < to]
        for to in range(len(seconds))
    }
    line = schedule(order, needs, dict(zip(order, seconds, strict=True)), max_parallel=slots)
    assert max(seconds) - 1e-6 <= line.total_seconds <= sum(seconds) + 1e-6
    for name, inputs in needs.items():
        assert all(line.end_seconds[item] <= line.start_seconds[name] + 1e-6 for item in inputs)
    path = [line.end_seconds[name] - line.start_seconds[name] for name in line.critical_path]
    assert sum(path) == pytest.approx(line.total_seconds)


def test_end_beyond_all_dates_is_the_last_date():
    assert finish_date(1e25, datetime(2026, 11, 20, tzinfo=UTC)).isoformat() == "9999-12-31T23:59:00+00:00"
