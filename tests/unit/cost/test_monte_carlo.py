from dataclasses import replace

import numpy as np
import pytest

from charter.cost.monte_carlo import (
    CostTerm,
    Duration,
    Factor,
    Idle,
    Lognormal,
    LogUniform,
    Noise,
    ThreePoint,
    Uniform,
    simulate,
)
from charter.errors import UsageError

# Reference on cost, 4.8: one run, all spreads independent, provider fixed or open between 1.90 and 6.88 usd.
FIXED = {"answer length": 0.36, "rework": 0.35, "efficiency": 0.22, "idle time": 0.02, "failures": 0.01}
OPEN = {"price": 0.45, "rework": 0.21, "answer length": 0.20, "efficiency": 0.12}


def run_factors(low_usd=None, high_usd=None):
    """One run of which nothing but the usual spreads is known; with two prices the provider is open."""
    price = Lognormal(sigma=0.05) if low_usd is None else LogUniform(low=low_usd, high=high_usd)
    return (
        Factor(cause="efficiency", distribution=Lognormal(sigma=0.20)),
        Factor(cause="answer length", distribution=Lognormal(sigma=0.25)),
        Factor(cause="rework", distribution=Lognormal(median=1.3, sigma=0.25)),
        Factor(cause="failures", distribution=Uniform(low=1.02, high=1.12)),
        Factor(cause="idle time", distribution=Idle(low=0.05, high=0.25)),
        Factor(cause="price", distribution=price),
    )


def one_run(**prices):
    return simulate([CostTerm(stage="run", usd=1000.0, factors=run_factors(**prices))], [], draws=40_000, seed=1)


@pytest.mark.parametrize(
    ("prices", "high", "low", "shares"),
    [({}, 1.69, 0.59, FIXED), ({"low_usd": 1.9, "high_usd": 6.88}, 2.06, 0.48, OPEN)],
)
def test_matches_the_reference_distribution(prices, high, low, shares):
    found = one_run(**prices)
    # Two draws of 10,000 differ by about 2 %; shares are printed in whole per cent.
    assert found.usd.p90 / found.usd.p50 == pytest.approx(high, rel=0.03)
    assert found.usd.p10 / found.usd.p50 == pytest.approx(low, rel=0.03)
    causes = {item.cause: item.share for item in found.causes}
    for cause, share in shares.items():
        assert causes[cause] == pytest.approx(share, abs=0.02), cause
    assert sum(causes.values()) == pytest.approx(1, abs=0.03)


def test_three_drivers_are_named():
    assert one_run(low_usd=1.9, high_usd=6.88).drivers[0].cause == "price"
    assert {item.cause for item in one_run().drivers} == {"answer length", "rework", "efficiency"}


def test_the_same_seed_gives_the_same_figures_and_another_does_not():
    assert one_run() == one_run()
    amounts = [CostTerm(stage="run", usd=1.0, factors=run_factors())]
    assert simulate(amounts, [], seed=1).usd != simulate(amounts, [], seed=2).usd


def test_a_cause_draws_the_same_numbers_whatever_else_is_drawn():
    alone, among = Noise(seed=3, size=500), Noise(seed=3, size=500)
    among.normal("another")
    among.uniform("a third")
    assert np.array_equal(alone.normal("speed"), among.normal("speed"))


SPEED = Factor(cause="speed", distribution=Lognormal(sigma=0.3))


def spread(amounts):
    found = simulate(amounts, [], draws=4000).usd
    return np.log(found.p90 / found.p10)


def test_a_shared_cause_keeps_its_width_and_separate_causes_average_out():
    shared = [CostTerm(stage=name, usd=1.0, factors=(SPEED,)) for name in "abcd"]
    apart = [
        CostTerm(stage=name, usd=1.0, factors=(Factor(cause=name, distribution=Lognormal(sigma=0.3)),))
        for name in "abcd"
    ]
    assert spread(shared) == pytest.approx(spread(shared[:1]))
    assert spread(apart) == pytest.approx(spread(shared) / 2, rel=0.1)


def test_parallel_stages_take_the_maximum_serial_ones_the_sum():
    durations = [
        Duration(stage="a", seconds=10.0),
        Duration(stage="b", seconds=30.0, not_before_seconds=5.0),
        Duration(stage="c", seconds=2.0, after=("a", "b")),
    ]
    assert simulate([], durations, draws=100).seconds.p50 == pytest.approx(37.0)
    in_turn = [durations[0], replace(durations[1], after=("a",)), durations[2]]
    assert simulate([], in_turn, draws=100).seconds.p50 == pytest.approx(42.0)


def test_what_is_paid_by_the_month_grows_with_the_finish():
    durations = [Duration(stage="a", seconds=1000.0, factors=(SPEED,))]
    found = simulate([CostTerm(stage="", usd_per_second=2.0)], durations)
    assert found.usd.p90 == pytest.approx(2.0 * found.seconds.p90)


def test_uniform_factors_stay_within_their_ends():
    drawn = Uniform(low=1.02, high=1.12).draws(Noise(seed=0, size=1000), "failures")
    assert 1.02 <= drawn.min() < 1.03 < 1.11 < drawn.max() <= 1.12


def test_three_quantiles_are_met():
    drawn = ThreePoint(p10=1.0, p50=2.0, p90=8.0).draws(Noise(seed=0, size=40_000), "wait")
    assert np.quantile(drawn, (0.1, 0.5, 0.9)) == pytest.approx((1.0, 2.0, 8.0), rel=0.05)
    assert drawn.min() >= 0


def test_waits_are_added_to_the_time_of_a_stage():
    wait = Factor(cause="pool", distribution=ThreePoint(p10=1.0, p50=2.0, p90=8.0))
    found = simulate([], [Duration(stage="a", seconds=10.0, waits=(wait,), not_before_seconds=100.0)])
    assert found.seconds.p50 == pytest.approx(112.0, rel=0.01)
    assert found.seconds.p90 == pytest.approx(118.0, rel=0.01)


def test_refuses_too_few_draws():
    with pytest.raises(UsageError, match="at least 100"):
        simulate([], [], draws=10)
