"""Steps become processes, with their times; seconds of a step are found by the best that a log tells."""

import pytest

from charter.engines.common.adapter import LoggedStep
from charter.run.imports.logs import FoundAttempt, FoundRun, attempts_of, seconds_per_step


def steps(numbers, **fields):
    """Steps with their fields side by side, a list per field."""
    columns = [dict(zip(fields, values, strict=True)) for values in zip(*fields.values(), strict=True)]
    return [LoggedStep(step=number, **(columns[place] if fields else {})) for place, number in enumerate(numbers)]


def run(attempts, **fields):
    return FoundRun(format="verl", source="log", content="00", attempts=tuple(attempts), **fields)


def test_a_step_that_comes_again_begins_another_process():
    made = attempts_of(steps([1, 2, 3, 4, 3, 4, 5, 5]))
    assert [(item.first_step, item.last_step) for item in made] == [(0, 4), (2, 5), (4, 5)]
    assert [len(item.steps) for item in made] == [4, 3, 1]


def test_logs_of_every_tenth_step_begin_before_their_first_line():
    (first, second) = attempts_of(steps([10, 20, 30, 30, 40]))
    assert (first.first_step, second.first_step) == (0, 20)


def test_nothing_is_no_process():
    assert attempts_of([]) == ()


def test_clocks_give_start_and_seconds():
    (found,) = attempts_of(steps([1, 2, 3], time=[110.0, 112.0, 114.0], seconds=[10.0, 2.0, 2.0]))
    assert (found.started_at, found.seconds) == (100.0, 14.0)
    (found,) = attempts_of(steps([1, 2, 3], time=[110.0, 112.0, 116.0]))
    assert (found.started_at, found.seconds) == (107.0, 9.0), "the first step took as long as the median of the others"
    (found,) = attempts_of(steps([1], time=[110.0]))
    assert (found.started_at, found.seconds) == (110.0, 0.0)


def test_step_times_add_up_where_there_is_no_clock_and_all_are_known():
    (found,) = attempts_of(steps([1, 2], seconds=[3.0, 4.0], tokens=[5, None]))
    assert (found.started_at, found.seconds, found.tokens) == (None, 7.0, 5)
    (found,) = attempts_of(steps([1, 2], seconds=[3.0, None]))
    assert found.seconds is None


def test_seconds_of_a_step_leave_the_warm_up_out():
    (found,) = attempts_of(steps([1, 2, 3, 4, 5, 6], seconds=[90.0, 30.0, 1.0, 2.0, 3.0, 4.0]))
    assert seconds_per_step(run([found])) == (2.5, "median of the logged step times, 4 of them")
    (short,) = attempts_of(steps([1, 2, 3], seconds=[9.0, 1.0, 1.0]))
    assert seconds_per_step(run([short]))[0] == 1.0


def test_lines_of_every_tenth_step_stand_for_ten():
    (found,) = attempts_of(steps([10, 20], seconds=[5.0, 3.0]))
    assert seconds_per_step(run([found]))[0] == 4.0
    assert (found.first_step, found.seconds) == (0, 80.0)
    (found,) = attempts_of(steps([10, 20], seconds=[5.0, 3.0], time=[1000.0, 1030.0]))
    assert (found.started_at, found.seconds) == (950.0, 80.0)


def test_seconds_of_a_step_by_the_clock_and_by_the_whole():
    (found,) = attempts_of(steps([1, 2, 3, 4, 5, 6], time=[0.0, 9.0, 10.0, 11.0, 12.0, 13.0]))
    assert seconds_per_step(run([found])) == (1.0, "median between logged steps, 4 of them")
    whole = FoundAttempt(first_step=5, steps=tuple(steps([10, 15])), seconds=20.0)
    unknown = FoundAttempt(first_step=0, steps=tuple(steps([5])))
    assert seconds_per_step(run([unknown, whole])) == (2.0, "mean over 10 steps, start and checkpoints included")
    assert seconds_per_step(run([unknown])) is None


@pytest.mark.parametrize(("target", "done"), [(None, True), (5, True), (6, False)])
def test_a_run_is_done_when_it_reached_its_target(target, done):
    assert run(attempts_of(steps([1, 5])), target_step=target).is_done is done


def test_the_identity_stays_when_the_log_grows_and_is_that_of_the_first_step():
    short = run(attempts_of(steps([1, 2], tokens=[3, 4])))
    long = run(attempts_of(steps([1, 2, 3, 2], tokens=[3, 4, 5, 6])))
    other = run(attempts_of(steps([1, 2], tokens=[4, 4])))
    assert short.identity == long.identity != other.identity
