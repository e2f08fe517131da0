"""Idle: only what is known decides. Advice: only what was measured, with its saving."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charter.cost.advice import LEAST_SECONDS, Evidence, Use, advice, idle_verdict

shares = st.none() | st.floats(0, 1)


def verdict(since=3600.0, activity=None, no_process=None, window=1800.0, busy=0.05):
    evidence = Evidence(seconds_without_progress=since, gpu_activity=activity, no_process=no_process)
    return idle_verdict(evidence, window_seconds=window, busy_share=busy)


@pytest.mark.parametrize(
    ("given_", "idle"),
    [
        (dict(activity=0.0), True),
        (dict(activity=0.04), True),
        (dict(activity=0.05), False),
        (dict(activity=None), False),
        (dict(activity=None, no_process=True), True),
        (dict(activity=0.9, no_process=True), True),
        (dict(activity=None, no_process=False), False),
        (dict(activity=0.0, since=1799.0), False),
        (dict(activity=0.0, since=1800.0), True),
        (dict(no_process=True, since=0.0), False),
    ],
)
def test_what_is_idle(given_, idle):
    found = verdict(**given_)
    assert found.idle == idle
    assert found.reason


@given(st.floats(0, 1e6), shares, st.none() | st.booleans())
def test_progress_and_what_is_unknown_never_count_as_idle(since, activity, no_process):
    found = verdict(since=since, activity=activity, no_process=no_process)
    if since < 1800 or (activity is None and not no_process):
        assert not found.idle


def use(**changes):
    values = dict(
        stage="label", accelerator="H100", count=8, market="on_demand", seconds=7200.0, usd=40.0, activity=0.9,
        memory_peak_share=0.9, idle_usd=0.0, lost_usd=0.0, checkpoints=False, remaining_usd=0.0,
    )  # fmt: skip
    return Use(**(values | changes))


def test_a_stage_that_uses_what_it_has_gets_no_advice():
    assert advice(use()) == ()
    assert advice(use(activity=None, memory_peak_share=None, usd=None)) == ()


def test_each_advice_names_its_saving_the_largest_first():
    found = advice(use(activity=0.2, memory_peak_share=0.1, idle_usd=5.0, checkpoints=True))
    assert [(item.kind, item.saving_usd) for item in found] == [
        ("fewer_accelerators", 20.0), ("spot", 20.0), ("idle", 5.0), ("smaller_accelerator", None),
    ]  # fmt: skip


def test_what_is_still_to_come_is_what_can_be_saved():
    (found,) = advice(use(activity=0.2, remaining_usd=100.0))
    assert (found.saving_usd, found.of) == (50.0, "remaining")


def test_a_short_look_one_accelerator_or_spot_already_says_nothing():
    assert advice(use(activity=0.2, memory_peak_share=0.1, seconds=LEAST_SECONDS - 1)) == ()
    assert advice(use(activity=0.2, count=1)) == ()
    assert advice(use(activity=0.5, memory_peak_share=0.4)) == ()
    assert advice(use(checkpoints=True, market="spot")) == ()


@given(shares, shares, st.none() | st.floats(0, 1e6), st.integers(1, 64))
def test_no_saving_is_more_than_the_cost(activity, memory, usd, count):
    for item in advice(use(activity=activity, memory_peak_share=memory, usd=usd, count=count, checkpoints=True)):
        assert item.saving_usd is None or 0 <= item.saving_usd <= (usd or 0)
