"""Joint draws of a network of stages: sums, shared causes, scarce pools."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serial_schedule import schedule

from charter.cost.monte_carlo import Duration, Factor, Lognormal, Noise, ThreePoint, drawn_finish, quantiles
from charter.plan.timeline import Sharing

Z90 = 1.2815515655446004
NOISE = Noise(seed=0, size=10_000)


def chain(number, sigma, *, shared):
    """Stages one after another, each a lognormal of median 100 s."""
    return [
        Duration(
            stage=str(index),
            seconds=100.0,
            factors=(Factor(cause="speed" if shared else f"speed {index}", distribution=Lognormal(sigma=sigma)),),
            after=(str(index - 1),) if index else (),
        )
        for index in range(number)
    ]


def test_one_stage_has_its_own_interval():
    found = quantiles(drawn_finish(chain(1, 0.4, shared=False), NOISE).total)
    expected = (100 * math.exp(-Z90 * 0.4), 100.0, 100 * math.exp(Z90 * 0.4))
    assert (found.p10, found.p50, found.p90) == pytest.approx(expected, rel=1e-3)


def test_quantiles_of_stages_that_err_together_add():
    found = quantiles(drawn_finish(chain(6, 0.4, shared=True), NOISE).total)
    expected = (600 * math.exp(-Z90 * 0.4), 600.0, 600 * math.exp(Z90 * 0.4))
    assert (found.p10, found.p50, found.p90) == pytest.approx(expected, rel=1e-3)


def test_quantiles_of_stages_with_luck_of_their_own_do_not_add():
    """60 independent lognormals: by the central limit theorem mean 60 m, variance 60 s2, with their moments."""
    found = quantiles(drawn_finish(chain(60, 0.5, shared=False), NOISE).total)
    mean = 100 * math.exp(0.125)
    deviation = mean * math.sqrt(math.expm1(0.25))
    assert found.p50 == pytest.approx(60 * mean, rel=0.01)
    assert found.p90 - found.p50 == pytest.approx(Z90 * deviation * math.sqrt(60), rel=0.06)
    assert found.p50 > 1.1 * 6000
    assert found.p90 < 60 * 100 * math.exp(Z90 * 0.5)


def test_two_normals_known_exactly():
    """Medians of lognormals with one cause each: log of a product, here of two factors of one stage, is normal."""
    both = (
        Factor(cause="a", distribution=Lognormal(sigma=0.3)),
        Factor(cause="b", distribution=Lognormal(sigma=0.4)),
    )
    found = quantiles(drawn_finish([Duration(stage="x", seconds=10.0, factors=both)], NOISE).total)
    assert found.p90 == pytest.approx(10 * math.exp(Z90 * 0.5), rel=0.01)


def test_waits_that_are_mostly_nothing_add_up_to_their_means():
    wait = {"p10": 0.0, "p50": 10.0, "p90": 5000.0}
    durations = [
        Duration(
            stage=str(index),
            seconds=100.0,
            waits=(Factor(cause=f"pool {index}", distribution=ThreePoint(**wait)),),
            after=(str(index - 1),) if index else (),
        )
        for index in range(8)
    ]
    mean = 100 + float(np.mean(ThreePoint(**wait).draws(Noise(seed=5, size=10_000), "any")))
    found = quantiles(drawn_finish(durations, NOISE).total)
    assert found.p50 == pytest.approx(8 * mean, rel=0.08)
    assert 0.2 * found.p50 > 8 * 110
    assert found.p90 < 8 * 5100


@given(data=st.data(), number=st.integers(1, 6), slots=st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_every_draw_is_the_schedule_of_its_durations(data, number, slots):
    """Against list scheduling of one draw at a time."""
    names = [f"s{index}" for index in range(number)]
    after = {
        name: tuple(data.draw(st.sets(st.sampled_from(names[:index]), max_size=2)) if index else ())
        for index, name in enumerate(names)
    }
    holds = {name: {"nodes": float(data.draw(st.integers(0, slots)))} for name in names}
    lags = {(other, name): data.draw(st.sampled_from((0.0, 3.0))) for name in names for other in after[name]}
    early = {name: data.draw(st.sampled_from((0.0, 0.0, 40.0))) for name in names}
    noise = Noise(seed=1, size=100)
    durations = [
        Duration(
            stage=name,
            seconds=data.draw(st.sampled_from((5.0, 10.0, 20.0))),
            factors=(Factor(cause=name, distribution=Lognormal(sigma=0.7)),),
            after=after[name],
            lags={other: lags[other, name] for other in after[name]},
            not_before_seconds=early[name],
            holds=holds[name],
        )
        for name in names
    ]
    found = drawn_finish(durations, noise, capacity={"nodes": float(slots)})
    for draw in (0, 37, 99):
        line = schedule(
            names,
            after,
            {item.stage: item.seconds * math.exp(0.7 * noise.normal(item.stage)[draw]) for item in durations},
            lags=lags,
            not_before=early,
            sharing=Sharing(capacity={"nodes": float(slots)}, demand=holds),
        )
        assert found.total[draw] == pytest.approx(line.total_seconds)
        assert found.starts[:, draw] == pytest.approx([line.start_seconds[name] for name in names])


def test_the_critical_path_is_the_chain_that_decides_most_draws():
    speed = Lognormal(sigma=0.5)
    durations = [
        Duration(stage="a", seconds=10.0),
        Duration(stage="often", seconds=30.0, factors=(Factor(cause="b", distribution=speed),), after=("a",)),
        Duration(stage="seldom", seconds=20.0, factors=(Factor(cause="c", distribution=speed),), after=("a",)),
        Duration(stage="last", seconds=5.0, after=("often", "seldom")),
    ]
    assert drawn_finish(durations, NOISE).critical_path == ("a", "often", "last")
    assert drawn_finish([], NOISE).critical_path == ()
    slot = [Duration(stage=name, seconds=9.0, holds={"slot": 1.0}) for name in "xy"]
    assert drawn_finish(slot, NOISE, capacity={"slot": 1.0}).critical_path == ("x", "y")
