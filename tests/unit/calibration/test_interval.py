"""Intervals: a quantile over sources, wider the less is known."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from charter.calibration.interval import (
    CHOSEN_BY_EYE,
    FLOORS,
    NARROWEST,
    Spread,
    group_of,
    half_width,
    scatter_factor,
    spreads,
)
from charter.calibration.rows.measurement import Measurement
from charter.calibration.score import Scored


def scored(source: str, number: int, error: float, *, used: bool = False) -> Scored:
    row = Measurement(id=f"{source}-{number}", metric="step_time_s", value=1.0, config_id=f"{source}{number}")
    return Scored(row=row, stack="s", predicted=float(np.exp(error)), used=used)


def test_every_source_has_one_vote() -> None:
    """A hundred good rows of one source do not outvote two sources of ten that are off."""
    rows = [scored("AAA", number, 0.01) for number in range(100)]
    rows += [scored(name, number, 0.3) for name in ("BBB", "CCC") for number in range(10)]
    assert half_width(rows) == pytest.approx(0.3)
    assert half_width(rows[:100]) == pytest.approx(0.02)  # the floor: nobody repeats a measurement better


def test_eight_of_ten_rows_of_a_like_source_fall_inside() -> None:
    rng = np.random.default_rng(3)
    rows = [scored(f"S{name:02}", number, rng.normal(0, 0.2)) for name in range(20) for number in range(40)]
    width = half_width(rows)
    new = rng.normal(0, 0.2, 5000)
    assert np.mean(np.abs(new) <= width) == pytest.approx(0.8, abs=0.03)


def test_rows_that_calibrated_do_not_vote() -> None:
    rows = [scored("AAA", number, 0.1) for number in range(20)] + [scored("AAA", 99, 1.0, used=True)]
    assert half_width(rows) == pytest.approx(0.1)


def test_more_knowledge_never_widens() -> None:
    off, near = ([scored("AAA", n, e) for n in range(20)] for e in (0.5, 0.1))
    found = spreads({"unseen": near, "seen": off, "calibrated": near})
    assert found.half_width("training dense", "seen") == found.half_width("training dense", "unseen")
    assert found.half_width("training dense", "calibrated") < found.half_width("training dense", "unseen")
    measured = 0.1 * CHOSEN_BY_EYE["unseen"]
    assert found.half_width("a group nobody measured", "unseen") == pytest.approx(measured)


@given(st.floats(1e-6, 1e12), st.floats(0.05, 1.0))
def test_an_interval_holds_its_median(predicted: float, width: float) -> None:
    interval = Spread(half_widths={"*": {"unseen": width}}).interval(predicted, "x", "unseen")
    assert interval.p10 < interval.p50 == predicted < interval.p90


def test_scatter_of_the_calibrating_rows_widens_or_narrows() -> None:
    calm = [scored("AAA", n, 0.001, used=True) for n in range(5)]
    wild = [scored("AAA", n, 0.6, used=True) for n in range(5)]
    assert scatter_factor(calm, 0.2) == pytest.approx(0.7071, abs=1e-3)
    assert scatter_factor(wild, 0.2) > 2
    assert scatter_factor([], 0.2) == 1.0


def test_groups() -> None:
    def row(**cells: object) -> Measurement:
        return Measurement(id="A-1", value=1.0, **cells)  # type: ignore[arg-type]

    assert group_of(row(metric="step_time_s", kind="lora")) == "training adapter"
    assert group_of(row(metric="peak_mem_gb", kind="sft")) == "training memory"
    assert group_of(row(metric="wall_hours", kind="sft")) == "totals"
    assert group_of(row(metric="out_tokens_per_s", kind="inference")) == "inference time"
    assert group_of(row(metric="step_time_s", kind="ppo")) == "rl time"


@pytest.mark.parametrize("knowledge", list(FLOORS))
def test_a_source_that_was_hit_exactly_still_gets_the_least_width(knowledge: str) -> None:
    found = spreads({knowledge: [scored("AAA", number, 0.0) for number in range(20)]})  # type: ignore[dict-item]
    least = max(FLOORS[knowledge], NARROWEST * CHOSEN_BY_EYE[knowledge])
    assert found.half_widths["training dense"][knowledge] == pytest.approx(least)
