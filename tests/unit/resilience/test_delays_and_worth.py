from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charter.errors import UsageError
from charter.resilience.expected_time import Interruptions, best_interval_seconds, expected_time
from charter.resilience.failures import (
    PUBLISHED,
    best_spares,
    detection,
    notice_success,
    spare_nodes,
    spare_worth,
    waiting_share,
)
from charter.resilience.simulate import SimulatedJob, SparePool, simulate
from charter.resilience.spot import Exponential
from charter.units import HOURS_PER_MONTH


@pytest.mark.parametrize(("name", "seconds"), [("slurm", 300), ("kubernetes", 380), ("nccl", 600)])
def test_default_delays(name, seconds):
    # SlurmdTimeout; 50 s + 300 s + 30 s (KEP-6757 gives the same sum, 6.3 min); kProcessGroupNCCLDefaultTimeout.
    assert detection(name).seconds == seconds


def test_unknown_detection_is_refused():
    with pytest.raises(UsageError, match="slurm, ray, kubernetes"):
        detection("pager")


# Per 1,000 node-days, as published or counted.
@pytest.mark.parametrize(
    ("name", "rate"), [("llama3", 3.79), ("rsc1", 6.50), ("rsc2", 2.34), ("opt", 15.6), ("bloom", 1000 / 7 / 48)]
)
def test_published_rates(name, rate):
    assert PUBLISHED[name].per_node_day * 1000 == pytest.approx(rate, rel=0.003)


def test_notice_helps_only_when_a_save_fits():
    assert notice_success(save_seconds=120, notice_seconds=120) == 0.9
    assert notice_success(save_seconds=121, notice_seconds=120) == 0


def test_notice_lowers_expected_time_by_its_first_order_saving():
    job = Interruptions(mean_between_failures_seconds=40_000, restart_seconds=300)
    fixed = {"save_seconds": 20, "interval_seconds": 1200}
    blind = expected_time(1e6, **fixed, interruptions=job)
    warned = expected_time(1e6, **fixed, interruptions=replace(job, notice_success=0.9))
    saved = 0.9 * (1200 + 20) / 2 - 0.9 * 20  # nine of ten lose no half segment, and write one save more
    assert blind.wall_seconds - warned.wall_seconds == pytest.approx(blind.interruptions * saved, rel=0.05)


def test_interval_with_notice_is_near_the_best_of_a_scan():
    job = Interruptions(mean_between_failures_seconds=10_000, restart_seconds=300, notice_success=0.9)
    best = best_interval_seconds(1e6, save_seconds=60, interruptions=job)

    def wall(interval):
        return expected_time(1e6, save_seconds=60, interval_seconds=interval, interruptions=job).wall_seconds

    least = min(wall(100 * 1.02**step) for step in range(300))
    assert wall(best) < 1.005 * least
    blind = replace(job, notice_success=0.0)
    assert wall(best) < wall(best_interval_seconds(1e6, save_seconds=60, interruptions=blind))


@given(
    work=st.floats(1e4, 1e6),
    save=st.floats(0.1, 300),
    interval=st.floats(300, 7200),
    persist=st.floats(0, 300),
    job=st.builds(
        Interruptions,
        mean_between_failures_seconds=st.floats(3000, 1e7),
        restart_seconds=st.floats(0, 900),
        detection_seconds=st.floats(0, 900),
        capacity_wait_seconds=st.floats(0, 9000),
        notice_success=st.floats(0, 1),
    ),
)
def test_buckets_are_not_negative_bill_plus_wait_is_wall_time(work, save, interval, persist, job):
    spent = expected_time(
        work, save_seconds=save, interval_seconds=interval, persist_seconds=persist, interruptions=job
    )
    assert all(value >= -1e-9 * work for value in vars(spent).values())
    assert spent.wall_seconds == pytest.approx(spent.billed_seconds + spent.wait_seconds)
    assert 0 < spent.useful_share <= 1


@given(save=st.floats(1, 60), mean=st.floats(1e5, 1e7), factor=st.floats(0.2, 5))
def test_expected_time_is_least_at_the_best_interval(save, mean, factor):
    job = Interruptions(mean_between_failures_seconds=mean, restart_seconds=300)
    best = best_interval_seconds(1e9, save_seconds=save, interruptions=job)

    def wall(interval):
        return expected_time(1e9, save_seconds=save, interval_seconds=interval, interruptions=job).wall_seconds

    assert wall(best) <= wall(best * factor) * (1 + 1e-5)


FLEET = {"failures_per_node_day": 6.5e-3, "repair_days": 3.0}


def test_first_spares_pay_on_a_large_job_and_none_on_a_small_one():
    assert best_spares(num_nodes=4, **FLEET) == 0
    assert best_spares(num_nodes=128, **FLEET) == 6
    worth = spare_worth(num_nodes=128, spares=7, **FLEET)
    # Without spares the job waits 71 % of the time (mu / (1 + mu), mu = 2.5), with 7 hardly ever.
    assert worth.hours_saved == pytest.approx(720 * 2.496 / 3.496, rel=0.01)
    assert worth.node_hours_cost == 7 * HOURS_PER_MONTH


@given(nodes=st.integers(1, 1000), spares=st.integers(0, 40))
def test_spares_never_lengthen_waits_and_best_is_within_quantile(nodes, spares):
    share = waiting_share(num_nodes=nodes, spares=spares, **FLEET)
    assert 0 <= waiting_share(num_nodes=nodes, spares=spares + 1, **FLEET) <= share < 1
    assert best_spares(num_nodes=nodes, **FLEET) <= spare_nodes(num_nodes=nodes, **FLEET)


@pytest.mark.parametrize("spares", [0, 1, 3])
def test_waiting_share_is_that_of_the_simulation(spares):
    # 20 nodes, one failure in 10 h, 25 h in repair: mu = 2.5.
    job = SimulatedJob(
        useful_seconds=8e6,
        interval_seconds=3600,
        save_seconds=1,
        failures=Exponential(mean_seconds=36_000),
        spares=SparePool(spares=spares, repair=Exponential(mean_seconds=90_000)),
    )
    found = simulate(job, runs=60, seed=2)
    form = waiting_share(num_nodes=20, failures_per_node_day=2.4 / 20, repair_days=25 / 24, spares=spares)
    assert found.wait_seconds.sum() / found.wall_seconds.sum() == pytest.approx(
        form, rel=0.05
    )  # it starts with no node in repair
