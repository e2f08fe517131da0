import pytest
from hypothesis import given
from hypothesis import strategies as st

from charter.pipeline.restart import LONGEST_WAIT_SECONDS, MAX_ATTEMPTS, Ending, decide


def ending(code, *, step=0, checkpoint=0, oom=False):
    return Ending(exit_code=code, step=step, checkpoint_step=checkpoint, out_of_memory=oom)


@pytest.mark.parametrize("code", [2, 3, 4, 7, 8])
def test_what_would_only_repeat_is_not_tried_again(code):
    assert not decide([ending(code)]).restart


@pytest.mark.parametrize("code", [0, 1, 5])
def test_an_error_is_tried_once_more_and_given_up_at_the_same_step(code):
    assert decide([ending(code, step=4)]).restart
    decision = decide([ending(code, step=4), ending(code, step=4)])
    assert (decision.restart, decision.reason) == (False, "failed twice at step 4")


def test_an_error_at_another_step_is_another_error():
    assert decide([ending(5, step=4), ending(5, step=9, checkpoint=8)]).restart


def test_kills_are_survived_while_checkpoints_advance():
    endings = [ending(-9, step=10 * n + 3, checkpoint=10 * n) for n in range(1, MAX_ATTEMPTS)]
    assert decide(endings).restart


def test_kills_without_progress_stop_after_three_restarts():
    assert decide([ending(-9, checkpoint=10)] * 3).restart
    assert not decide([ending(-9, checkpoint=10)] * 4).restart


def test_a_stage_stopped_from_outside_is_started_again():
    assert decide([ending(6, checkpoint=10)]).restart


def test_out_of_memory_is_not_tried_a_third_time():
    assert decide([ending(-9, oom=True, checkpoint=1)]).restart
    assert not decide([ending(-9, oom=True, checkpoint=1), ending(-9, oom=True, checkpoint=2)]).restart


def test_there_is_always_an_end():
    endings = [ending(-9, checkpoint=n) for n in range(MAX_ATTEMPTS)]
    assert not decide(endings).restart


@given(
    st.lists(
        st.builds(
            Ending,
            exit_code=st.sampled_from([-15, -9, 0, 1, 5, 6]),
            step=st.integers(0, 9),
            checkpoint_step=st.integers(0, 9),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_waits_are_bounded_and_only_before_restarts(endings):
    decision = decide(endings)
    assert decision.wait_seconds == 0 if not decision.restart else 0 < decision.wait_seconds <= LONGEST_WAIT_SECONDS


def test_back_off_doubles_without_progress():
    waits = [decide([ending(-9, checkpoint=2)] * count).wait_seconds for count in (1, 2, 3)]
    assert waits == [0.25, 0.5, 1.0]
