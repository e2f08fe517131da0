import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charter.errors import UsageError
from charter.resilience.checkpoint_interval import (
    async_interval_seconds,
    daly_interval_seconds,
    young_interval_seconds,
)
from charter.resilience.expected_time import Interruptions, expected_wall_seconds

# save seconds, mean hours between failures, Young minutes, Daly minutes, true optimum minutes (numerical
# minimum of Daly's expected time, from the project's reference on resilience, section 2.2).
GOLDEN = [
    (20, 3.09, 11.1, 10.9, 10.9),
    (120, 3.09, 27.2, 25.9, 25.9),
    (300, 3.09, 43.1, 39.8, 39.8),
    (1800, 3.09, 105.5, 86.4, 86.5),
    (3600, 2.0, 120.0, 83.3, 83.8),
]
positive_seconds = st.floats(1e-3, 1e6)


@pytest.mark.parametrize(("save", "mean_hours", "young", "daly", "optimum"), GOLDEN)
def test_matches_the_reference_rows(save, mean_hours, young, daly, optimum):
    mean = mean_hours * 3600
    assert young_interval_seconds(save_seconds=save, mean_between_failures_seconds=mean) / 60 == pytest.approx(
        young, abs=0.051
    )
    found = daly_interval_seconds(save_seconds=save, mean_between_failures_seconds=mean) / 60
    assert found == pytest.approx(daly, abs=0.051)
    # Optimum of E[T] by scanning, with the printed row as the second witness.
    job = Interruptions(mean_between_failures_seconds=mean)
    scanned = min(
        (minutes / 100 for minutes in range(300, 15000)),
        key=lambda minutes: expected_wall_seconds(
            1e6, save_seconds=save, interval_seconds=minutes * 60, interruptions=job
        ),
    )
    assert scanned == pytest.approx(optimum, abs=0.06)


def test_bloom_young_interval_is_about_two_hours():
    # BLOOM-176B: a save of 40 s, one failure a week.
    seconds = young_interval_seconds(save_seconds=40, mean_between_failures_seconds=7 * 86400)
    assert seconds / 3600 == pytest.approx(1.9, abs=0.05)


def test_save_longer_than_twice_the_mean_gives_the_mean():
    assert daly_interval_seconds(save_seconds=900, mean_between_failures_seconds=400) == 400


def test_nothing_fails_means_never_save():
    assert math.isinf(daly_interval_seconds(save_seconds=10, mean_between_failures_seconds=math.inf))


def test_async_interval_never_starts_a_second_save_before_the_first_is_durable():
    assert (
        async_interval_seconds(stall_seconds=2, persist_seconds=180, mean_between_failures_seconds=11124)
        == pytest.approx(math.sqrt(2 * 2 * 11124))  # 3.5 min, reference section 2.5
    )
    assert async_interval_seconds(stall_seconds=2, persist_seconds=900, mean_between_failures_seconds=11124) == 900


@pytest.mark.parametrize(("save", "mean"), [(0, 10), (10, 0), (-1, 5)])
def test_refuses_times_that_are_not_positive(save, mean):
    with pytest.raises(UsageError, match="above zero"):
        daly_interval_seconds(save_seconds=save, mean_between_failures_seconds=mean)


@given(save=positive_seconds, mean=positive_seconds)
def test_tends_to_young_when_saves_are_cheap(save, mean):
    if save < 1e-4 * mean:
        daly = daly_interval_seconds(save_seconds=save, mean_between_failures_seconds=mean)
        young = young_interval_seconds(save_seconds=save, mean_between_failures_seconds=mean)
        assert daly == pytest.approx(young, rel=0.02)


@given(save=st.floats(1, 1000), mean=st.floats(4000, 1e6), factor=st.floats(1, 10))
def test_rarer_failures_never_shorten_the_interval(save, mean, factor):
    first = daly_interval_seconds(save_seconds=save, mean_between_failures_seconds=mean)
    assert daly_interval_seconds(save_seconds=save, mean_between_failures_seconds=mean * factor) >= first * (1 - 1e-12)
