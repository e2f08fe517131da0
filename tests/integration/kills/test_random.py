"""SIGKILL at random moments, several in a run, on one process of a group or on all; the bits are the undisturbed ones.

CHARTER_CHAOS_KILLS (make chaos N=...) sets how many kills each layout gets; the seed of the draws is printed.
"""

import os
import random
import time

import pytest
from bench import result_of, wait_then_kill

pytestmark = [pytest.mark.torch, pytest.mark.slow]
KILLS = int(os.environ.get("CHARTER_CHAOS_KILLS", "60"))
SEED = int(os.environ.get("CHARTER_CHAOS_SEED", "1"))
LAYOUTS = {
    "1": {},
    "2-ddp": {"world_size": 2},
    "2-fsdp": {"world_size": 2, "zero": 3},
    "4-ddp": {"world_size": 4},
    "4-fsdp": {"world_size": 4, "zero": 3},
}
SHARE = {"1": 0.5, "2-ddp": 0.125, "2-fsdp": 0.125, "4-ddp": 0.125, "4-fsdp": 0.125}
CASES = [(kind, layout) for layout in LAYOUTS for kind in ("sft", "preference_model", "ppo")]


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_random_kills_change_no_bit(bench, undisturbed, kind, name):
    wanted = max(1, round(KILLS * SHARE[name] / 3))
    reference, draws = undisturbed(kind, **LAYOUTS[name]), random.Random(f"{SEED}-{kind}-{name}")
    kills = runs = 0
    while kills < wanted:
        runs += 1
        directory = bench.stage(kind, f"random-{kind}-{name}", **LAYOUTS[name])
        kills += _disturb(bench, directory, draws, most=min(10, wanted - kills))
        assert result_of(directory) == reference, f"seed {SEED}, {kind} {name}, run {runs}, {kills} kills so far"
    print(f"{kind} {name}: {kills} kills in {runs} runs, seed {SEED}, all bit-identical")


def _disturb(bench, directory, draws, *, most) -> int:
    """Kill a run up to `most` times, then let it finish; how often it was hit before its end."""
    kills = 0
    for _ in range(most):
        began = time.monotonic()
        handle = bench.start(directory)
        if not wait_then_kill(handle, draws.uniform(0.05, 1.5), draws):
            assert handle.poll() == 0, (directory / "log.txt").read_text()
            return kills
        kills += 1
        assert time.monotonic() - began < 120
    assert bench.finish(directory) == 0, (directory / "log.txt").read_text()
    return kills
