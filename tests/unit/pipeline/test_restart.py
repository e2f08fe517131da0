import pytest
from hypothesis import given
from hypothesis import strategies as st

from charter.artifacts.checkpoints import Position
from charter.run.attempt import classify
from charter.run.restart import (
    LONGEST_WAIT_SECONDS,
    MAX_RESTARTS_WITHOUT_PROGRESS,
    NEVER_AGAIN,
    TWICE_AT_A_STEP,
    Ending,
    decide,
)

CLASSES = ["lost", "crashed", "hung", "timeout", "out_of_memory", *NEVER_AGAIN, "error", "begin_again"]


def ending(failure, *, step=0, checkpoint=0, part=0):
    return Ending(failure=failure, exit_code=5, step=step, checkpoint=Position(checkpoint, part))


def class_of(code, *, label="", hung=False, timed_out=False, oom=False):
    return classify(code, label=label, hung=hung, timed_out=timed_out, oom=oom)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        *((code, "permanent") for code in (2, 3, 4, 7, 8)),
        *((code, "error") for code in (0, 1, 5)),
        *((code, "lost") for code in (-9, 137, -15, 143, -1, 9)),
        *((code, "crashed") for code in (-11, -7, -6, -8, -4)),
        (6, "stopped"),
    ],
)
def test_every_ending_has_a_class(code, expected):
    assert class_of(code) == expected


def test_what_the_stage_or_the_kernel_says_makes_it_clearer():
    assert class_of(5, label="out_of_memory") == "out_of_memory"
    assert class_of(8, label="disk_full") == "disk_full"
    assert class_of(5, label="diverged") == "not_finite"
    assert class_of(5, label="begin_again") == "begin_again"
    assert class_of(-9, oom=True) == class_of(137, oom=True) == "out_of_memory"
    assert class_of(-11, oom=True) == "crashed"
    assert class_of(5, oom=True) == "error"
    assert class_of(0, label="diverged") == "error", "left by an earlier attempt"
    assert class_of(-9, hung=True, oom=True) == "hung"
    assert class_of(-9, timed_out=True) == "timeout"


@pytest.mark.parametrize("failure", sorted(NEVER_AGAIN))
def test_what_would_only_repeat_is_not_tried_again(failure):
    assert not decide([ending(failure)]).restart


@pytest.mark.parametrize(("failure", "words"), [("error", "failed"), ("crashed", "crashed"), ("hung", "hung")])
def test_what_comes_from_the_work_is_tried_once_more_and_given_up_at_the_same_step(failure, words):
    assert failure in TWICE_AT_A_STEP
    assert decide([ending(failure, step=4)]).restart
    decision = decide([ending(failure, step=4), ending(failure, step=4)])
    assert (decision.restart, decision.reason) == (False, f"{words} twice at step 4")


def test_an_error_at_another_step_is_another_error():
    assert decide([ending("error", step=4), ending("error", step=9, checkpoint=8)]).restart
    assert decide([ending("error", step=4), ending("hung", step=4)]).restart


def test_a_hang_after_another_checkpoint_is_another_hang():
    assert decide([ending("hung", step=4, checkpoint=4), ending("hung", step=4, checkpoint=4, part=1)]).restart


def test_kills_are_survived_while_checkpoints_advance_even_within_a_step():
    assert decide([ending("lost", step=10 * n + 3, checkpoint=10 * n) for n in range(1000)]).restart
    assert decide([ending("lost", step=10, checkpoint=10, part=n) for n in range(10)]).restart


def test_kills_without_progress_stop_after_three_restarts():
    assert decide([ending("lost", checkpoint=10, part=1)] * MAX_RESTARTS_WITHOUT_PROGRESS).restart
    decision = decide([ending("lost", checkpoint=10, part=1)] * (MAX_RESTARTS_WITHOUT_PROGRESS + 1))
    assert (decision.restart, decision.reason) == (False, "4 attempts ended without a new checkpoint after step 10-1")


def test_out_of_memory_is_not_tried_a_third_time():
    assert decide([ending("out_of_memory", checkpoint=1)]).restart
    assert not decide([ending("out_of_memory", checkpoint=1), ending("out_of_memory", checkpoint=2)]).restart


@given(st.sampled_from(["lost", "timeout", "hung", "crashed", "error"]), st.lists(st.integers(0, 5), min_size=24))
def test_there_is_always_an_end_since_there_is_a_last_checkpoint(failure, checkpoints):
    endings = [ending(failure, step=place, checkpoint=place) for place in sorted(checkpoints)]
    assert not all(decide(endings[:count]).restart for count in range(1, len(endings) + 1))


@given(
    st.lists(
        st.builds(
            Ending,
            failure=st.sampled_from(CLASSES),
            exit_code=st.just(5),
            step=st.integers(0, 9),
            checkpoint=st.builds(Position, st.integers(0, 9), st.integers(0, 2)),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_waits_are_bounded_and_only_before_restarts(endings):
    decision = decide(endings)
    assert decision.wait_seconds == 0 if not decision.restart else 0 < decision.wait_seconds <= LONGEST_WAIT_SECONDS


def test_back_off_doubles_without_progress():
    waits = [decide([ending("lost", checkpoint=2)] * count).wait_seconds for count in (1, 2, 3)]
    assert waits == [0.25, 0.5, 1.0]
