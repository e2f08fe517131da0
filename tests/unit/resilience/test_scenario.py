import math
from dataclasses import replace

import numpy as np
import pytest

from charter.resilience.scenario import Scenario, SpotPool, sweep
from charter.resilience.simulate import simulate
from charter.resilience.spot import Trace, find_trace, first_wait_seconds, heavy_tailed_market, spot_waits

HOUR = 3600.0
PLAIN = Scenario(
    useful_seconds=100 * HOUR,
    num_nodes=64,
    mean_between_failures_seconds=8 * HOUR,
    save_seconds=60,
    restart_seconds=300,
)


def on_spot(up_hours=2.75, availability=0.65, **changes):
    shares = {"mean_up_seconds": up_hours * HOUR, "availability": availability}
    pool = SpotPool.of_market(heavy_tailed_market(**shares), first_wait_seconds(**shares))
    never = {"mean_between_failures_seconds": math.inf}
    return replace(PLAIN, **{**never, "spot": pool, **changes})


def test_rates_add_and_delays_are_weighted_by_them():
    both = on_spot(up_hours=4, mean_between_failures_seconds=12 * HOUR, detection_seconds=400.0)
    job = both.interruptions
    assert job.mean_between_failures_seconds == pytest.approx(3 * HOUR)
    assert job.detection_seconds == pytest.approx(100)
    assert job.capacity_wait_seconds == pytest.approx(0.75 * 4 * HOUR * 0.35 / 0.65)


def test_chosen_interval_is_the_best_of_a_sweep():
    found = sweep(PLAIN, PLAIN.best_interval_seconds, runs=100, seed=1)
    assert [point.interval_seconds for point in found] == sorted({point.interval_seconds for point in found})
    best = max(found, key=lambda point: point.closed_form)
    assert best.interval_seconds == pytest.approx(PLAIN.best_interval_seconds)
    assert all(point.ettr == pytest.approx(point.closed_form, abs=0.01) for point in found)


def test_sweep_marks_intervals_at_which_nothing_is_finished():
    rough = replace(PLAIN, useful_seconds=5 * HOUR, mean_between_failures_seconds=600, restart_seconds=60)
    found = sweep(rough, rough.best_interval_seconds * 3, runs=4, seed=1)
    assert found[-1].ettr is None
    assert found[0].ettr > 0.3


@pytest.mark.parametrize(("up", "availability"), [(2.75, 0.65), (8.5, 0.7), (1.0, 0.4), (10.0, 0.9)])
@pytest.mark.parametrize("work", [24, 168])
def test_waits_from_histories_are_those_of_the_simulation(up, availability, work):
    scenario = on_spot(up, availability, useful_seconds=work * HOUR, preemption_detection_seconds=30)
    interval = scenario.best_interval_seconds
    found = simulate(scenario.job(interval), runs=1200, seed=3)
    form = scenario.closed_form(interval)
    waits = spot_waits(form.billed_seconds, mean_up_seconds=up * HOUR, availability=availability)
    p10, p50, p90 = np.quantile(found.wall_seconds, (0.1, 0.5, 0.9))
    assert form.billed_seconds + waits.p50 == pytest.approx(p50, rel=0.06)
    assert form.billed_seconds + waits.p90 == pytest.approx(p90, rel=0.12)
    assert form.billed_seconds + waits.p10 == pytest.approx(p10, rel=0.20)
    assert found.mean_billed_seconds == pytest.approx(form.billed_seconds, rel=0.05)
    assert found.mean_wall_seconds == pytest.approx(form.wall_seconds, rel=0.10)


def test_waits_grow_with_the_job_and_vanish_with_a_constant_pool():
    waits = [spot_waits(hours * HOUR, mean_up_seconds=2.75 * HOUR, availability=0.65) for hours in (1, 10, 100, 1000)]
    assert [wait.p50 for wait in waits] == sorted(wait.p50 for wait in waits)
    assert all(wait.p10 <= wait.p50 <= wait.p90 for wait in waits)
    assert spot_waits(1e6, mean_up_seconds=1e4, availability=1.0).p90 == 0


def test_recorded_pool_by_hand():
    # Up 2 of 6 ticks from tick 1, and from tick 5 over the end to tick 0: windows of 20 s and 20 s.
    pool = SpotPool.of_periods(Trace(name="t", gap_seconds=10, available=(1, 0, 1, 1, 0, 1)).periods())
    assert (pool.mean_up_seconds, pool.mean_down_seconds) == (20, 10)
    # Half of 10^2 for each outage, over 60 s.
    assert pool.first_wait_seconds == pytest.approx(2 * 50 / 60)
    always = SpotPool.of_periods(Trace(name="t", gap_seconds=10, available=(1, 1)).periods())
    assert (always.mean_up_seconds, always.mean_down_seconds) == (math.inf, 0)


@pytest.mark.parametrize("name", ["synthetic-steady", "synthetic-usual", "synthetic-scarce"])
def test_bills_of_replays_are_near_the_closed_form(name):
    # Replays of ten public traces, 24 h jobs: billed hours within -6 to +9 % of the exponential form.
    pool = SpotPool.of_periods(find_trace(name).periods())
    scenario = on_spot(useful_seconds=24 * HOUR, spot=pool)
    interval = scenario.best_interval_seconds
    found = simulate(scenario.job(interval), runs=300, seed=2)
    assert -0.06 < found.mean_billed_seconds / scenario.closed_form(interval).billed_seconds - 1 < 0.09
