"""Steps, learning rate and data order are functions of the step alone."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charter.train.schedule import batch_rows, learning_rate_factor, total_steps


def settings(schedule="cosine", warmup=10, floor=0.1):
    return SimpleNamespace(schedule=schedule, warmup_steps=warmup, min_learning_rate_ratio=floor)


def test_warm_up_is_linear_and_reaches_the_peak():
    assert [learning_rate_factor(step, 100, settings(warmup=4)) for step in range(4)] == [0.25, 0.5, 0.75, 1.0]


@pytest.mark.parametrize(("schedule", "half"), [("constant", 1.0), ("linear", 0.55), ("cosine", 0.55)])
def test_half_way_through_the_decay(schedule, half):
    assert learning_rate_factor(60, 110, settings(schedule)) == pytest.approx(half)


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_decay_ends_at_the_floor(schedule):
    assert learning_rate_factor(110, 110, settings(schedule)) == pytest.approx(0.1)


@given(st.integers(0, 500), st.sampled_from(["constant", "linear", "cosine"]))
def test_the_factor_stays_between_nothing_and_the_peak(step, schedule):
    assert 0 < learning_rate_factor(step, 500, settings(schedule)) <= 1


def test_epochs_are_rounded_up_to_whole_steps():
    assert total_steps(epochs=1.5, steps=None, rows=100, global_batch=64) == 3
    assert total_steps(epochs=1, steps=None, rows=1, global_batch=64) == 1


@pytest.mark.parametrize(("rows", "batch"), [(300, 64), (1001, 500), (257, 1000)])
def test_batches_of_many_rows_run_on_over_the_end_of_an_epoch(rows, batch):
    stream = [row for step in range(-(-3 * rows // batch)) for row in batch_rows(step, rows=rows, batch=batch, seed=4)]
    epochs = [stream[epoch * rows : (epoch + 1) * rows] for epoch in range(3)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(rows))] * 3
    assert epochs[0] != epochs[1] != epochs[2]


def test_any_step_of_any_epoch_is_found_without_the_rows_before_it():
    found = batch_rows(10**9, rows=10**10 + 19, batch=4, seed=4)
    assert len({*found}) == 4
    assert max(found) < 10**10 + 19


@given(st.integers(1, 60), st.integers(1, 16), st.integers(0, 9))
def test_every_row_comes_once_per_epoch(rows, batch, seed):
    steps = -(-3 * rows // batch)
    stream = [row for step in range(steps) for row in batch_rows(step, rows=rows, batch=batch, seed=seed)]
    for epoch in range(3):
        assert sorted(stream[epoch * rows : (epoch + 1) * rows]) == list(range(rows))


def test_the_order_depends_on_seed_and_epoch():
    first = batch_rows(0, rows=50, batch=50, seed=1)
    assert first != batch_rows(0, rows=50, batch=50, seed=2)
    assert first != batch_rows(1, rows=50, batch=50, seed=1)
    assert first == batch_rows(0, rows=50, batch=50, seed=1)
