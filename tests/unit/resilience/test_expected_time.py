import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charter.resilience.expected_time import (
    NEVER,
    Interruptions,
    best_interval_seconds,
    expected_billed_seconds,
    expected_wall_seconds,
)

HOUR = 3600.0
# W h, delta s, R s, M h, Q h, tau min | closed-form wall h, billed h, simulated wall h, 95 % half-width
# (reference on resilience, section 2.5; the interval is printed to 0.1 min, hence 0.1 % on the form).
SIMULATED = [
    (240, 20, 600, 3.09, 0.0, 10.9, 269.12, 269.12, 269.17, 0.20),
    (168, 60, 300, 7.9, 0.0, 30.1, 181.31, 181.31, 181.38, 0.14),
    (48, 120, 360, 4.0, 0.5, 29.7, 63.18, 56.16, 63.19, 0.21),
    (12, 180, 360, 0.5, 0.25, 11.4, 35.64, 23.76, 35.79, 0.24),
]


@pytest.mark.parametrize(
    ("work", "save", "restart", "mean", "wait", "interval", "wall", "billed", "simulated", "half"), SIMULATED
)
def test_matches_the_closed_form_rows(work, save, restart, mean, wait, interval, wall, billed, simulated, half):
    job = Interruptions(
        mean_between_failures_seconds=mean * HOUR,
        restart_seconds=restart,
        capacity_wait_seconds=wait * HOUR,
    )
    arguments = {"save_seconds": save, "interval_seconds": interval * 60, "interruptions": job}
    found = expected_wall_seconds(work * HOUR, **arguments) / HOUR
    assert found == pytest.approx(wall, rel=1e-3)
    assert expected_billed_seconds(work * HOUR, **arguments) / HOUR == pytest.approx(billed, rel=1e-3)
    assert abs(found - simulated) < 1.5 * half


def test_without_failures_only_saves_are_added():
    seconds = expected_wall_seconds(1000, save_seconds=5, interval_seconds=100, interruptions=NEVER)
    assert seconds == 1050


def test_rare_failures_tend_to_no_failures():
    rare = Interruptions(mean_between_failures_seconds=1e12, restart_seconds=300, capacity_wait_seconds=60)
    found = expected_wall_seconds(1e5, save_seconds=10, interval_seconds=1000, interruptions=rare)
    assert found == pytest.approx(101_000, rel=1e-6)


def test_hopeless_job_never_ends():
    job = Interruptions(mean_between_failures_seconds=1, restart_seconds=1)
    assert math.isinf(expected_wall_seconds(1e6, save_seconds=1, interval_seconds=1e4, interruptions=job))


def test_interval_is_never_longer_than_the_work():
    assert best_interval_seconds(60, save_seconds=30, interruptions=NEVER) == 60
    rare = Interruptions(mean_between_failures_seconds=1e9)
    assert best_interval_seconds(60, save_seconds=30, interruptions=rare) == 60


jobs = st.builds(
    Interruptions,
    mean_between_failures_seconds=st.floats(600, 1e6),
    restart_seconds=st.floats(0, 600),
    capacity_wait_seconds=st.floats(0, 7200),
)


@given(work=st.floats(1e3, 1e6), save=st.floats(1, 300), interval=st.floats(60, 7200), job=jobs)
def test_bill_never_exceeds_wall_and_neither_is_below_the_work(work, save, interval, job):
    arguments = {"save_seconds": save, "interval_seconds": interval, "interruptions": job}
    wall, billed = expected_wall_seconds(work, **arguments), expected_billed_seconds(work, **arguments)
    assert work < billed <= wall


@given(interval=st.floats(60, 3000), factor=st.floats(1, 5), job=jobs)
def test_longer_interval_never_shrinks_the_work_lost_to_failures(interval, factor, job):
    # With free saves, all that is added to the work is lost work and restarts.
    def lost(seconds: float) -> float:
        return expected_billed_seconds(1e6, save_seconds=0, interval_seconds=seconds, interruptions=job) - 1e6

    assert lost(interval * factor) >= lost(interval) - 1e-6
