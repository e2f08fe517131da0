"""SIGTERM at random moments: the stage saves at the next part of a step, says where, and goes on to the same bits."""

import random
import time

import pytest
from bench import defects_in, result_of, wait
from layouts import LAYOUTS, THOROUGH

from charter.artifacts.stage_process import INTERRUPTED_EXIT

pytestmark = [pytest.mark.torch, pytest.mark.slow]
STOPS = 20 if THOROUGH else 4
CASES = [("ppo", "1"), ("ppo", "2 DDP")]


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_a_stage_that_is_stopped_again_and_again_ends_with_the_same_bits(bench, undisturbed, kind, name):
    layout, draws = LAYOUTS[name], random.Random(f"stop-{kind}-{name}")
    reference, seconds = undisturbed(kind, **layout), undisturbed.seconds(kind, **layout)
    directory = bench.stage(kind, f"stops-{kind}-{name.replace(' ', '-')}", **layout)
    stopped = 0
    for _ in range(STOPS):
        handle = bench.start(directory, CHARTER_SAVE="sync")
        wait_for_a_checkpoint(directory, handle)
        time.sleep(draws.uniform(0, 0.1) * seconds)
        handle.stop()
        code = wait(handle)
        assert code in (0, INTERRUPTED_EXIT), (directory / "log.txt").read_text()
        if code == 0:
            break
        stopped += 1
    assert stopped
    assert bench.finish(directory) == 0, (directory / "log.txt").read_text()
    assert result_of(directory) == reference
    assert [line for line in defects_in(directory) if "interrupted" not in line] == []


def wait_for_a_checkpoint(directory, handle) -> None:
    """Until this start has made one more checkpoint than there were: then its signal handler is in place."""
    before = len(list((directory / "state").glob("step-*")))
    while len(list((directory / "state").glob("step-*"))) == before and handle.poll() is None:
        time.sleep(0.005)
