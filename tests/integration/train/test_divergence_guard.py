"""The divergence guard: what it lets pass, what it leaves out, where it goes back to."""

import math

import pytest

from charter.errors import DataError, StageError
from charter.spec.stage_base import Guard
from charter.train.loop import (
    FIRST_STEPS,
    ROLL_BACKS,
    DivergedError,
    DivergenceGuard,
    RollBack,
    RollBackError,
    read_roll_backs,
    write_roll_backs,
)

NAN, INFINITE = math.nan, math.inf


@pytest.mark.parametrize(("loss", "norm"), [(NAN, 1.0), (1.0, NAN), (INFINITE, 1.0), (1.0, INFINITE)])
def test_what_is_not_finite_stops_the_stage_by_default(loss, norm):
    guard = DivergenceGuard()
    assert guard.allows(0, 1.0, 1.0)
    with pytest.raises(DivergedError, match=r"step 2: the loss or its gradient is not finite .*\n.*learning_rate"):
        guard.allows(1, loss, norm)
    assert issubclass(DivergedError, StageError)


def test_a_jump_is_one_only_when_asked_and_only_when_the_mean_is_known():
    assert DivergenceGuard().allows(0, 1e9, 1.0)
    guard = DivergenceGuard(Guard(spike_ratio=2.0))
    for step in range(FIRST_STEPS):
        assert guard.allows(step, 1.0 if step else 50.0, 1.0), "early losses are high and fall"
    guard = DivergenceGuard(Guard(spike_ratio=2.0))
    for step in range(FIRST_STEPS):
        guard.allows(step, 1.0, 1.0)
    assert guard.allows(FIRST_STEPS, 1.99, 1.0)
    with pytest.raises(DivergedError, match="jumped to 9"):
        guard.allows(FIRST_STEPS + 1, 9.0, 1.0)


def test_skipped_updates_are_counted_bounded_and_keep_the_mean():
    guard = DivergenceGuard(Guard(on_divergence="skip", most=2))
    guard.allows(0, 2.0, 1.0)
    assert not guard.allows(1, NAN, 1.0)
    assert not guard.allows(2, NAN, 1.0)
    assert (guard.mean, guard.steps, guard.skipped) == (2.0, 1, 2)
    with pytest.raises(DivergedError, match="divergence 3 of at most 2"):
        guard.allows(3, NAN, 1.0)


def test_roll_back_skips_data_and_path_is_a_function_of_the_step():
    guard = DivergenceGuard(Guard(on_divergence="roll_back", roll_back_steps=10, skip_steps=30))
    with pytest.raises(RollBackError) as asked:
        guard.allows(25, NAN, 1.0)
    back = asked.value.roll_back
    assert back == RollBack(diverged_at=25, resume_from=15, skip_steps=30)
    guard.roll_backs = (back,)
    assert [guard.data_step(step) for step in (0, 14, 15, 16)] == [0, 14, 45, 46]
    assert [guard.seen_at(step) for step in (0, 15, 16, 40)] == [0, 0, 1, 1]


def test_going_back_never_goes_before_the_beginning_and_is_bounded():
    guard = DivergenceGuard(Guard(on_divergence="roll_back", roll_back_steps=100, most=1))
    with pytest.raises(RollBackError) as asked:
        guard.allows(3, NAN, 1.0)
    assert asked.value.roll_back.resume_from == 0
    guard.roll_backs = (asked.value.roll_back,)
    with pytest.raises(DivergedError, match="divergence 2 of at most 1"):
        guard.allows(4, NAN, 1.0)


def test_state_is_all_that_a_step_changes():
    guard = DivergenceGuard(Guard(on_divergence="skip"))
    before = vars(guard).copy()
    guard.allows(0, 3.0, 1.0)
    guard.allows(1, NAN, 1.0)
    changed = {name for name, value in vars(guard).items() if value != before[name]}
    assert changed == set(DivergenceGuard.STATE)
    other = DivergenceGuard(Guard(on_divergence="skip"))
    other.load_state_dict(guard.state_dict())
    assert vars(other) == vars(guard)


def test_roll_backs_are_read_as_they_were_written(tmp_path):
    backs = (RollBack(diverged_at=9, resume_from=4, skip_steps=2), RollBack(diverged_at=7, resume_from=3, skip_steps=2))
    assert read_roll_backs(tmp_path) == ()
    write_roll_backs(tmp_path, backs)
    assert read_roll_backs(tmp_path) == backs


def test_damaged_roll_backs_are_refused_since_the_path_taken_hangs_on_them(tmp_path):
    write_roll_backs(tmp_path, (RollBack(diverged_at=9, resume_from=4, skip_steps=2),))
    path = tmp_path / ROLL_BACKS
    path.write_text(path.read_text().replace('"resume_from": 4', '"resume_from": 5'))
    with pytest.raises(DataError, match=r"roll_backs.json .* damaged"):
        read_roll_backs(tmp_path)
