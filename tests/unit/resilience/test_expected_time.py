import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charter.errors import UsageError
from charter.resilience.expected_time import (
    NEVER,
    Interruptions,
    best_interval_seconds,
    daly_interval_seconds,
    expected_time,
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
    expected = expected_time(work * HOUR, **arguments)
    assert expected.wall_seconds / HOUR == pytest.approx(wall, rel=1e-3)
    assert expected.billed_seconds / HOUR == pytest.approx(billed, rel=1e-3)
    assert abs(expected.wall_seconds / HOUR - simulated) < 1.5 * half


def test_without_failures_only_saves_are_added():
    expected = expected_time(1000, save_seconds=5, interval_seconds=100, interruptions=NEVER)
    assert expected.wall_seconds == expected.billed_seconds == 1050


def test_rare_failures_tend_to_no_failures():
    rare = Interruptions(mean_between_failures_seconds=1e12, restart_seconds=300, capacity_wait_seconds=60)
    expected = expected_time(1e5, save_seconds=10, interval_seconds=1000, interruptions=rare)
    assert expected.wall_seconds == pytest.approx(101_000, rel=1e-6)


def test_hopeless_job_never_ends():
    job = Interruptions(mean_between_failures_seconds=1, restart_seconds=1)
    expected = expected_time(1e6, save_seconds=1, interval_seconds=1e4, interruptions=job)
    assert math.isinf(expected.wall_seconds)


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
    expected = expected_time(work, save_seconds=save, interval_seconds=interval, interruptions=job)
    assert work < expected.billed_seconds <= expected.wall_seconds


@given(interval=st.floats(60, 3000), factor=st.floats(1, 5), job=jobs)
def test_longer_interval_never_shrinks_the_work_lost_to_failures(interval, factor, job):
    # With free saves, all that is added to the work is lost work and restarts.
    def lost(seconds: float) -> float:
        expected = expected_time(1e6, save_seconds=0, interval_seconds=seconds, interruptions=job)
        return expected.billed_seconds - 1e6

    assert lost(interval * factor) >= lost(interval) - 1e-6


# save seconds, mean hours between failures, Daly minutes, true optimum minutes (numerical
# minimum of Daly's expected time, from the project's reference on resilience, section 2.2).
INTERVALS = [
    (20, 3.09, 10.9, 10.9),
    (120, 3.09, 25.9, 25.9),
    (300, 3.09, 39.8, 39.8),
    (1800, 3.09, 86.4, 86.5),
    (3600, 2.0, 83.3, 83.8),
]
positive_seconds = st.floats(1e-3, 1e6)


@pytest.mark.parametrize(("save", "mean_hours", "daly", "optimum"), INTERVALS)
def test_daly_interval_matches_reference_rows(save, mean_hours, daly, optimum):
    mean = mean_hours * 3600
    found = daly_interval_seconds(save_seconds=save, mean_between_failures_seconds=mean) / 60
    assert found == pytest.approx(daly, abs=0.051)
    # Optimum of E[T] by scanning, with the printed row as the second witness.
    job = Interruptions(mean_between_failures_seconds=mean)
    scanned = min(
        (minutes / 100 for minutes in range(300, 15000)),
        key=lambda minutes: (
            expected_time(1e6, save_seconds=save, interval_seconds=minutes * 60, interruptions=job).wall_seconds
        ),
    )
    assert scanned == pytest.approx(optimum, abs=0.06)


def test_bloom_saves_about_every_two_hours():
    # BLOOM-176B: a save of 40 s, one failure a week; Young's interval, which Daly's tends to, is 1.9 h.
    seconds = daly_interval_seconds(save_seconds=40, mean_between_failures_seconds=7 * 86400)
    assert seconds / 3600 == pytest.approx(1.9, abs=0.05)


def test_save_longer_than_twice_the_mean_gives_the_mean():
    assert daly_interval_seconds(save_seconds=900, mean_between_failures_seconds=400) == 400


def test_nothing_fails_means_never_save():
    assert math.isinf(daly_interval_seconds(save_seconds=10, mean_between_failures_seconds=math.inf))


def test_asynchronous_saves_never_overlap():
    job = Interruptions(mean_between_failures_seconds=11124)
    short = best_interval_seconds(1e6, save_seconds=2, persist_seconds=180, interruptions=job)
    assert short == pytest.approx(math.sqrt(2 * 2 * 11124), rel=0.01)  # 3.5 min: Young's interval of the stall
    assert best_interval_seconds(1e6, save_seconds=2, persist_seconds=900, interruptions=job) == 900


@pytest.mark.parametrize(("save", "mean"), [(0, 10), (10, 0), (-1, 5)])
def test_refuses_times_that_are_not_positive(save, mean):
    with pytest.raises(UsageError, match="above zero"):
        daly_interval_seconds(save_seconds=save, mean_between_failures_seconds=mean)


@given(save=positive_seconds, mean=positive_seconds)
def test_tends_to_young_when_saves_are_cheap(save, mean):
    if save < 1e-4 * mean:
        daly = daly_interval_seconds(save_seconds=save, mean_between_failures_seconds=mean)
        assert daly == pytest.approx(math.sqrt(2 * save * mean), rel=0.02)  # Young 1974


@given(save=st.floats(1, 1000), mean=st.floats(4000, 1e6), factor=st.floats(1, 10))
def test_rarer_failures_never_shorten_the_interval(save, mean, factor):
    first = daly_interval_seconds(save_seconds=save, mean_between_failures_seconds=mean)
    assert daly_interval_seconds(save_seconds=save, mean_between_failures_seconds=mean * factor) >= first * (1 - 1e-12)
