import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from charter.errors import InfeasibleError, UsageError
from charter.resilience.expected_time import Interruptions, daly_interval_seconds, expected_time
from charter.resilience.simulate import SimulatedJob, SparePool, simulate
from charter.resilience.spot import Exponential, Fixed, LogNormal, Periods, SpotMarket, Weibull, heavy_tailed_market

HOUR = 3600.0
JOB = SimulatedJob(
    useful_seconds=48 * HOUR,
    interval_seconds=1800,
    save_seconds=60,
    restart_seconds=600,
    failures=Exponential(mean_seconds=4 * HOUR),
)

times = st.floats(0, 3000)
jobs = st.builds(
    SimulatedJob,
    useful_seconds=st.floats(0, 2e5),
    interval_seconds=st.floats(300, 7200),
    save_seconds=st.floats(0, 300),
    persist_seconds=st.floats(0, 300),
    restart_seconds=times,
    detection_seconds=times,
    failures=st.one_of(
        st.builds(Exponential, mean_seconds=st.floats(10_000, 1e6)),
        st.builds(Weibull, mean_seconds=st.floats(10_000, 1e6), shape=st.floats(0.7, 1)),
    ),
    capacity_wait=st.builds(Exponential, mean_seconds=times),
    spares=st.one_of(
        st.none(),
        st.builds(SparePool, spares=st.integers(0, 3), repair=st.builds(Fixed, mean_seconds=st.floats(0, 1e5))),
    ),
    spot=st.one_of(
        st.none(),
        st.builds(heavy_tailed_market, mean_up_seconds=st.floats(20_000, 1e6), availability=st.floats(0.2, 0.95)),
        st.just(Periods(starts=(0.0, 90_000.0), ends=(60_000.0, 200_000.0), length_seconds=200_000.0)),
    ),
    preemption_detection_seconds=times,
    notice_success=st.floats(0, 1),
)


@settings(max_examples=30, deadline=None)
@given(job=jobs, seed=st.integers(0, 2**32))
def test_time_is_conserved_and_all_work_is_done(job, seed):
    found = simulate(job, runs=8, seed=seed)
    parts = (
        found.useful_seconds
        + found.save_seconds
        + found.lost_seconds
        + found.detection_seconds
        + found.restart_seconds
        + found.wait_seconds
    )
    np.testing.assert_allclose(parts, found.wall_seconds, rtol=1e-9, atol=1e-6)
    np.testing.assert_array_equal(found.useful_seconds, job.useful_seconds)
    for name in ("save", "lost", "detection", "restart", "wait"):
        assert np.all(getattr(found, f"{name}_seconds") >= -1e-6), name


def test_same_seed_gives_the_same_bytes_and_another_seed_does_not():
    job = replace(JOB, spot=heavy_tailed_market(), notice_success=0.5)
    first, second, other = (simulate(job, runs=50, seed=seed) for seed in (7, 7, 8))
    for name in vars(first):
        assert getattr(first, name).tobytes() == getattr(second, name).tobytes()
    assert first.wall_seconds.tobytes() != other.wall_seconds.tobytes()


def test_without_failures_only_saves_are_added():
    found = simulate(replace(JOB, failures=Exponential(mean_seconds=math.inf)), runs=3)
    np.testing.assert_allclose(found.wall_seconds, 48 * HOUR * (1 + 60 / 1800))
    assert found.interruptions.sum() == 0


def test_closed_form_is_exact_without_failures_and_async_saves():
    never = Interruptions(mean_between_failures_seconds=math.inf)
    job = replace(JOB, save_seconds=5, persist_seconds=300, failures=Exponential(mean_seconds=math.inf))
    form = expected_time(48 * HOUR, save_seconds=5, persist_seconds=300, interval_seconds=1800, interruptions=never)
    assert simulate(job, runs=1).wall_seconds[0] == form.wall_seconds


def test_last_segment_is_shorter_and_is_saved_too():
    found = simulate(replace(JOB, useful_seconds=2000, failures=Exponential(mean_seconds=math.inf)), runs=1)
    assert found.wall_seconds[0] == 2000 + 2 * 60


def test_daly_is_at_the_minimum_of_a_sweep_of_intervals():
    # Common random numbers make neighbouring intervals comparable; a parabola through log-spaced means finds the least.
    save, mean = 300.0, 3.09 * HOUR
    daly = daly_interval_seconds(save_seconds=save, mean_between_failures_seconds=mean)
    factors = np.exp(np.linspace(-0.9, 0.9, 13))
    job = replace(JOB, useful_seconds=500 * HOUR, save_seconds=save, failures=Exponential(mean_seconds=mean))
    walls = [simulate(replace(job, interval_seconds=daly * x), runs=300, seed=2).mean_wall_seconds for x in factors]
    cubic = np.polynomial.Polynomial.fit(np.log(factors), walls, 3)
    grid = np.linspace(-0.5, 0.5, 2001)
    assert math.exp(grid[np.argmin(cubic(grid))]) == pytest.approx(1, abs=0.05)


def test_clustered_failures_cost_less_than_spread_of_same_mean():
    # Shape below 1: more failures right after a restart, when little work is open, and longer quiet stretches.
    spread = simulate(JOB, runs=800, seed=4)
    clustered = simulate(replace(JOB, failures=Weibull(mean_seconds=4 * HOUR, shape=0.7)), runs=800, seed=4)
    assert clustered.lost_seconds.mean() < spread.lost_seconds.mean()
    ages = Weibull(mean_seconds=100, shape=0.7).draw(np.random.default_rng(0), 100_000)
    assert ages.mean() == pytest.approx(100, rel=0.02)


def test_exponential_spot_pool_obeys_closed_form_of_mean_outage():
    market = SpotMarket(up=Exponential(mean_seconds=4 * HOUR), down=Exponential(mean_seconds=HOUR))
    job = replace(JOB, failures=Exponential(mean_seconds=math.inf), spot=market)
    found = simulate(job, runs=2500, seed=9)
    form = expected_time(
        48 * HOUR,
        save_seconds=60,
        interval_seconds=1800,
        interruptions=Interruptions(
            mean_between_failures_seconds=4 * HOUR, restart_seconds=600, capacity_wait_seconds=HOUR
        ),
    )
    assert found.mean_billed_seconds == pytest.approx(form.billed_seconds, rel=0.005)
    # A run starts at a random moment: with probability 0.2 it waits for the rest of an outage, 1 h on average.
    assert found.wait_seconds.mean() == pytest.approx(form.wait_seconds + 0.2 * HOUR, rel=0.02)


def test_heavy_tails_leave_the_bill_and_widen_the_wall_time():
    # Bills within the -6 to +9 % of replayed public traces (24 h jobs), p90 of the wall time far beyond the mean.
    job = replace(JOB, useful_seconds=24 * HOUR, interval_seconds=1100, restart_seconds=300)
    job = replace(job, failures=Exponential(mean_seconds=math.inf), spot=heavy_tailed_market())
    found = simulate(job, runs=2000, seed=1)
    form = expected_time(
        24 * HOUR,
        save_seconds=60,
        interval_seconds=1100,
        interruptions=Interruptions(mean_between_failures_seconds=2.75 * HOUR, restart_seconds=300),
    )
    assert -0.06 < found.mean_billed_seconds / form.billed_seconds - 1 < 0.09
    assert found.quantiles(found.wall_seconds)["p90"] > 1.4 * found.mean_wall_seconds


def test_notice_saves_the_open_segment():
    market = SpotMarket(up=Exponential(mean_seconds=3 * HOUR), down=Fixed(mean_seconds=600))
    job = replace(JOB, failures=Exponential(mean_seconds=math.inf), spot=market)
    blind, warned = (simulate(replace(job, notice_success=share), runs=1500, seed=6) for share in (0.0, 0.9))
    assert warned.lost_seconds.mean() == pytest.approx(0.1 * blind.lost_seconds.mean(), rel=0.15)
    form = expected_time(
        48 * HOUR,
        save_seconds=60,
        interval_seconds=1800,
        interruptions=Interruptions(
            mean_between_failures_seconds=3 * HOUR, restart_seconds=600, capacity_wait_seconds=600, notice_success=0.9
        ),
    )
    assert warned.mean_billed_seconds == pytest.approx(form.billed_seconds, rel=0.005)


def test_spares_take_the_place_of_repairs():
    # 20 failures in 80 h, 30 h in repair: 7.5 nodes at once on average.
    job = replace(JOB, useful_seconds=80 * HOUR)
    waits = [
        simulate(
            replace(job, spares=SparePool(spares=count, repair=Fixed(mean_seconds=30 * HOUR))), runs=200, seed=3
        ).wait_seconds.mean()
        for count in (0, 1, 4, 16, 40)
    ]
    assert waits == sorted(waits, reverse=True)
    none = simulate(replace(job, spares=SparePool(spares=0, repair=Fixed(mean_seconds=30 * HOUR))), runs=200, seed=3)
    np.testing.assert_allclose(none.wait_seconds, none.interruptions * 30 * HOUR)
    assert waits[-1] == 0


def test_hopeless_job_is_refused_with_advice():
    hopeless = replace(JOB, interval_seconds=10 * HOUR, failures=Exponential(mean_seconds=600))
    with pytest.raises(InfeasibleError, match=r"0\.0% of the work is done"):
        simulate(hopeless, runs=2)


def test_overlapping_saves_are_refused():
    with pytest.raises(UsageError, match="at least 5000 s"):
        replace(JOB, persist_seconds=5000)


def test_lognormal_has_its_mean_and_median():
    drawn = LogNormal(mean_seconds=300, median_seconds=60).draw(np.random.default_rng(1), 400_000)
    assert np.median(drawn) == pytest.approx(60, rel=0.02)
    assert drawn.mean() == pytest.approx(300, rel=0.05)
