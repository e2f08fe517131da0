import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spot_traces
from charter.errors import UsageError
from charter.resilience.simulate import SimulatedJob, simulate
from charter.resilience.spot import (
    DATA,
    Exponential,
    Trace,
    find_trace,
    read_trace,
    shipped,
    trace_of,
    trace_statistics,
)


@pytest.mark.parametrize("target", spot_traces.TARGETS, ids=lambda target: target.name)
def test_shipped_traces_match_the_script_and_resemble_public(target):
    assert (DATA / f"{target.name}.json").read_text() == spot_traces.text(target)
    found = trace_statistics(find_trace(target.name), target.machines)
    # Public traces: availability 0.12 to 0.94, mean up 0.7 to 10.5 h, medians 0.2 to 2.6 h, always below the mean.
    assert 0.12 <= found.availability <= 0.94
    assert 0.7 * 3600 <= found.mean_up_seconds <= 10.5 * 3600
    assert found.median_up_seconds < 0.6 * found.mean_up_seconds
    assert found.median_down_seconds < found.mean_down_seconds


def test_all_shipped_traces_come_from_the_script():
    assert set(shipped()) == {target.name for target in spot_traces.TARGETS}


def test_spans_and_statistics_by_hand():
    trace = Trace(name="t", gap_seconds=10, available=(0, 2, 3, 1, 0, 4))
    assert trace.periods(1).starts == (10, 50)
    assert trace.periods(1).ends == (40, 60)
    assert trace.periods(3).starts == (20, 50)
    found = trace_statistics(trace, 2)
    assert (found.preemptions, found.mean_up_seconds, found.mean_down_seconds) == (1, 15, 15)
    with pytest.raises(UsageError, match="the most is 4"):
        trace.periods(5)


@settings(max_examples=40, deadline=None)
@given(
    counts=st.lists(st.integers(0, 3), min_size=2, max_size=30).filter(lambda found: max(found) == 3),
    now=st.floats(0, 5000),
    seed=st.integers(0, 1000),
)
def test_replay_agrees_with_walking_the_ticks(counts, now, seed):
    trace = Trace(name="t", gap_seconds=100, available=tuple(counts))
    windows = trace.periods(2).open(1, np.random.Generator(np.random.Philox(seed)))
    offset = np.random.Generator(np.random.Philox(seed)).random(1)[0] * trace.length_seconds
    (wait,), (left,) = windows.next_up(np.array([now]), np.array([0]))

    def up(seconds):
        return counts[int(((now + offset + seconds) % trace.length_seconds) // 100)] >= 2

    if min(counts) >= 2:
        assert (wait, left) == (0, np.inf)
        return
    for moment in np.arange(0.5, min(wait, 3000) - 0.5, 25):
        assert not up(moment)
    for moment in np.arange(wait + 0.5, wait + min(left, 3000) - 0.5, 25):
        assert up(moment)
    assert not up(wait + left + 0.5)


def test_always_available_is_never_preempted():
    trace = Trace(name="t", gap_seconds=10, available=(1, 1))
    job = SimulatedJob(useful_seconds=1000, interval_seconds=100, save_seconds=1, spot=trace.periods())
    assert simulate(job, runs=4).interruptions.sum() == 0


def test_gang_needs_all_its_machines():
    trace = find_trace("synthetic-gang-16")
    job = SimulatedJob(
        useful_seconds=40_000,
        interval_seconds=900,
        save_seconds=30,
        restart_seconds=300,
        failures=Exponential(mean_seconds=1e9),
    )
    few, all_ = (
        simulate(SimulatedJob(**{**vars(job), "spot": trace.periods(nodes)}), runs=100, seed=1) for nodes in (4, 16)
    )
    assert few.mean_wall_seconds < all_.mean_wall_seconds


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ([1, 2], "gap_seconds is None"),
        ({"metadata": {"gap_seconds": 0}, "data": [1]}, "gap_seconds is 0"),
        ({"metadata": {"gap_seconds": True}, "data": [1]}, "gap_seconds is True"),
        ({"metadata": {"gap_seconds": 5}, "data": []}, "not a list of counts"),
        ({"metadata": {"gap_seconds": 5}, "data": [1, -1]}, r"data\[1\] is -1"),
        ({"metadata": {"gap_seconds": 5}, "data": [1, 1.5]}, r"data\[1\] is 1.5"),
    ],
)
def test_wrong_traces_are_told_what_is_wrong(found, message):
    with pytest.raises(UsageError, match=message):
        trace_of(found, name="t")


def test_files_are_read_and_missing_ones_name_those_that_are_shipped(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"metadata": {"gap_seconds": 195}, "data": [1, 0, 1]}))
    assert read_trace(path) == Trace(name="mine", gap_seconds=195, available=(1, 0, 1))
    with pytest.raises(UsageError, match="synthetic-usual"):
        find_trace(str(tmp_path / "other.json"))
    path.write_text("{")
    with pytest.raises(UsageError, match="not JSON"):
        read_trace(path)
