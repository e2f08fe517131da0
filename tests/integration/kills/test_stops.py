"""SIGTERM at random moments: the stage saves at the next part of a step, says where, and goes on to the same bits."""

import os
import random
import signal
import time

import pytest
from bench import defects_in, result_of, wait
from layouts import LAYOUTS, THOROUGH, in_turn
from processes import state_of
from waiting import eventually

from charter.artifacts.stage_process import INTERRUPTED_EXIT

pytestmark = [pytest.mark.torch, pytest.mark.slow]
STOPS = 20 if THOROUGH else 2
CASES = [("ppo", "1"), ("ppo", "2 DDP")]


@pytest.mark.parametrize(("kind", "name"), in_turn(CASES))
def test_a_stage_that_is_stopped_again_and_again_ends_with_the_same_bits(bench, undisturbed, kind, name):
    layout, draws = LAYOUTS[name], random.Random(f"stop-{kind}-{name}")
    reference, seconds = undisturbed(kind, **layout), undisturbed.seconds(kind, **layout)
    directory = bench.stage(kind, f"stops-{kind}-{name.replace(' ', '-')}", **layout)
    assert stop_at_a_boundary(bench, directory, kind) == INTERRUPTED_EXIT, (directory / "log.txt").read_text()
    for _ in range(STOPS - 1):
        before = checkpoints(directory)
        handle = bench.start(directory, CHARTER_SAVE="sync")
        wait_for_a_checkpoint(directory, handle, before)
        time.sleep(draws.uniform(0, 0.1) * seconds)
        handle.stop()
        code = wait(handle)
        assert code in (0, INTERRUPTED_EXIT), (directory / "log.txt").read_text()
        if code == 0:
            break
    assert bench.finish(directory) == 0, (directory / "log.txt").read_text()
    assert result_of(directory) == reference
    assert [line for line in defects_in(directory) if "interrupted" not in line] == []


def stop_at_a_boundary(bench, directory, kind) -> int:
    """One stop that cannot come too late: the stage has frozen itself when it is asked, and is woken then."""
    handle = bench.start(directory, CHARTER_SAVE="sync", CHARTER_KILL=f"{kind}:checkpoint:1:after:stop")

    def is_frozen() -> bool:
        assert handle.poll() is None, (directory / "log.txt").read_text()
        return handle.pid is not None and state_of(handle.pid) == "T"

    eventually(is_frozen)
    handle.stop()
    os.kill(handle.pid, signal.SIGCONT)
    return wait(handle)


def checkpoints(directory) -> int:
    return len(list((directory / "state").glob("step-*")))


def wait_for_a_checkpoint(directory, handle, before: int) -> None:
    """Until this start has made one more checkpoint than there were: then its signal handler is in place."""
    eventually(lambda: checkpoints(directory) > before or handle.poll() is not None)
