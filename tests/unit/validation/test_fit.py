"""The hierarchical fit finds constants that made the data, and stays put where the data say nothing."""

from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from charter.physics.columns import Array, array
from charter.physics.constants import constant, describe, moved
from charter.physics.fitted import Fitted
from charter.validation.score import Predict, calibrate, fit


@dataclass(frozen=True, kw_only=True)
class Machine:
    share: Array = constant(0.5, sigma=0.3, unit="share", source="test", most=1.0)
    launch_seconds: Array = constant(1e-5, sigma=0.5, unit="s", source="test")
    fixed: Array = constant(2.0, sigma=0.0, unit="none", source="test")


RNG = np.random.default_rng(7)
WORK = RNG.uniform(0.5, 5.0, 200)
OPS = RNG.uniform(1e3, 1e6, 200)
STACKS = ["a" if index % 2 else "b" for index in range(200)]


def seconds(constants: Machine, rows: NDArray[np.intp]) -> Array:
    return array(WORK[rows] / constants.share + OPS[rows] * constants.launch_seconds + 0.0 * constants.fixed)


def of_rows(first: slice) -> Predict:
    """The same of some rows."""
    return lambda constants, rows: seconds(constants, np.arange(len(WORK))[first][rows])


def truth(shifts: dict[str, dict[str, float]]) -> Array:
    return seconds(Fitted(stacks=shifts).apply(Machine(), STACKS), np.arange(len(WORK)))


def test_finds_the_constants_of_each_stack_through_noise_and_outliers() -> None:
    wanted = {"a": {"share": 0.3, "launch_seconds": -0.4}, "b": {"share": -0.2, "launch_seconds": 0.5}}
    measured = truth(wanted) * np.exp(0.03 * RNG.standard_normal(200))
    measured[::25] *= 3.0
    found = fit(seconds, Machine, measured, np.ones(200), STACKS)
    for stack, shifts in wanted.items():
        for name, shift in shifts.items():
            assert found.shift(stack)[name] == pytest.approx(shift, abs=0.08)
    assert found.noise < 0.06


def test_a_fit_to_its_own_predictions_moves_nothing() -> None:
    found = fit(seconds, Machine, truth({}), np.ones(200), STACKS)
    assert max(abs(shift) for shift in found.shift("a").values()) < 1e-6
    assert "fixed" not in found.shift("a")


def test_an_unknown_stack_gets_what_all_stacks_share() -> None:
    measured = truth({"a": {"share": 0.3}, "b": {"share": 0.3}})
    found = fit(seconds, Machine, measured, np.ones(200), STACKS)
    assert found.shift("c")["share"] > 0.1
    assert found.shift("c") == dict(found.shared)


def test_a_few_rows_move_a_stack_from_where_it_was_and_nothing_else() -> None:
    start = Fitted(shared={"share": 0.1}, stacks={"a": {"share": 0.2}}, noise=0.03)
    rows = slice(1, 10, 2)
    measured = truth({"a": {"share": 0.6}, "b": {}})[rows]
    found = calibrate(of_rows(rows), Machine, measured, ["a"] * 5, start=start)
    assert found.shared == start.shared
    assert found.shift("a")["share"] == pytest.approx(0.6, abs=0.1)


def test_a_limit_is_never_passed() -> None:
    assert float(moved(Machine(), {"share": 5.0}).share) == 1.0


def test_sets_are_described() -> None:
    assert [item.name for item in describe(Machine)] == ["share", "launch_seconds", "fixed"]


def few(shift: float, scatter: list[float], noise: float = 0.08) -> Fitted:
    """Five rows of a stack that differs by a shift of its share, each off by its scatter."""
    rows = slice(1, 2 * len(scatter), 2)
    measured = truth({"a": {"share": shift}, "b": {}})[rows] * np.exp(scatter)
    return calibrate(of_rows(rows), Machine, measured, ["a"] * len(scatter), start=Fitted(noise=noise))


def test_few_rows_that_agree_move_their_stack() -> None:
    assert few(0.5, [0.01, -0.01, 0.02, -0.02, 0.0]).shift("a")["share"] == pytest.approx(0.5, abs=0.12)


def test_few_rows_that_scatter_both_ways_move_almost_nothing() -> None:
    moved_by = few(0.0, [0.1, -0.1, 0.08, -0.09, 0.01]).shift("a")
    assert max(abs(shift) for shift in moved_by.values()) < 0.08


def test_rows_that_say_little_leave_a_stack_near_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before any row is read, staying and moving are equally likely; rows that agree move it all the way still."""
    scatter = [0.08, -0.03, 0.06, -0.05, 0.02]
    wary = few(0.05, scatter).shift("a")["share"]
    monkeypatch.setattr("charter.validation.score.STILL_ODDS", 1.0)
    assert abs(wary) < 0.8 * abs(few(0.05, scatter).shift("a")["share"])


def test_a_single_row_moves_its_stack_part_of_the_way() -> None:
    assert 0.05 < few(0.4, [0.0]).shift("a")["share"] < 0.4


def test_calibration_never_touches_other_stacks() -> None:
    start = Fitted(shared={"share": 0.1}, stacks={"b": {"share": 0.2}}, noise=0.08)
    rows = slice(1, 11, 2)
    measured = truth({"a": {"share": 0.6}, "b": {}})[rows]
    found = calibrate(of_rows(rows), Machine, measured, ["a"] * 5, start=start)
    assert found.shared == start.shared
    assert found.stacks["b"] == start.stacks["b"]


def test_the_scatter_that_a_fit_left_weighs_what_rows_say() -> None:
    rows = [0.05, -0.04, 0.03, -0.05, 0.01]
    narrow, wide = (few(0.15, rows, noise=noise).shift("a")["share"] for noise in (0.03, 0.3))
    assert 0 < wide < 0.6 * narrow


def test_one_odd_row_of_five_moves_little() -> None:
    odd = few(0.0, [0.0, 0.02, -0.02, 0.01, 0.9]).shift("a")
    assert max(abs(shift) for shift in odd.values()) < 0.05


def test_a_calibration_says_no_more_of_scatter_than_its_start() -> None:
    assert few(0.4, [0.0]).noise == few(0.4, [0.1, -0.1]).noise == 0.08


def test_five_rows_help_more_than_they_harm() -> None:
    """Synthetic stacks of 25 rows with heavy tails; half of them are as predicted, half differ."""
    draws, errors = np.random.default_rng(3), {True: [], False: []}
    for number in range(40):
        differs = number % 2 == 1
        rows = draws.choice(np.arange(1, 200, 2), 25, replace=False)
        shift = {"a": {"share": 0.2 * draws.standard_normal() * differs}, "b": {}}
        measured = truth(shift)[rows] * np.exp(0.06 * draws.standard_t(2.2, 25))
        after = calibrate(
            lambda c, chosen, r=rows: seconds(c, r[chosen]), Machine, measured[:5], ["a"] * 5, start=Fitted(noise=0.08)
        )
        missed = [
            np.median(np.abs(np.log(seconds(fit.apply(Machine(), ["a"] * 25), rows) / measured)[5:]))
            for fit in (Fitted(noise=0.08), after)
        ]
        errors[differs].append(missed)
    (before, later), (unmoved, harmed) = (np.mean(errors[differs], axis=0) for differs in (True, False))
    assert later < 0.8 * before
    assert harmed - unmoved < 0.4 * (before - later)
