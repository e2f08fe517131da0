"""SIGKILL at random moments, several in a run, on one process of a group or on all; the bits are the undisturbed ones.

CHARTER_CHAOS_KILLS (make chaos N=...) sets how many kills there are in all; seven tenths hit stages of one process. CI
disturbs one run of one kind in one layout.
"""

import math
import os
import random

import pytest
from bench import defects_in, result_of, wait_then_kill
from layouts import KINDS_TOGETHER, LAYOUTS, MAKE_RECORDS, THOROUGH, TOGETHER, in_turn
from results import Case, lost_and_doubled, record

pytestmark = [pytest.mark.torch, pytest.mark.slow]
KILLS = int(os.environ.get("CHARTER_CHAOS_KILLS", "60"))
SEED = int(os.environ.get("CHARTER_CHAOS_SEED", "1"))
MOST_IN_A_RUN = 10
FEW = 3
"""Kills of the one case that CI disturbs."""
ALONE = [(kind, "1") for kind in (*KINDS_TOGETHER, *MAKE_RECORDS)]
SHARE = {**dict.fromkeys(ALONE, 0.7 / len(ALONE)), **dict.fromkeys(TOGETHER, 0.3 / len(TOGETHER))}
LATEST_SHARE = 0.35
"""A kill comes at latest after this share of the time that an undisturbed run takes."""


def test_all_kills_are_shared_out():
    assert sum(SHARE.values()) == pytest.approx(1)


@pytest.mark.parametrize(("kind", "name"), in_turn(list(SHARE)))
def test_random_kills_change_no_bit(bench, undisturbed, kind, name):
    reference, draws = undisturbed(kind, **LAYOUTS[name]), random.Random(f"{SEED}-{kind}-{name}")
    latest_seconds = LATEST_SHARE * undisturbed.seconds(kind, **LAYOUTS[name])
    kills = runs = mismatches = lost = doubled = 0
    told: list[str] = []
    while kills < (most := wanted(kind, name)):
        runs += 1
        directory = bench.stage(kind, f"random-{kind}-{name.replace(' ', '-')}", **LAYOUTS[name])
        kills += _disturb(bench, directory, draws, latest_seconds, most=min(MOST_IN_A_RUN, most - kills))
        found = result_of(directory)
        mismatches += found != reference
        told += found.differences(reference)
        assert defects_in(directory) == []
        missing, twice = lost_and_doubled(found.metrics, reference.metrics)
        lost, doubled = lost + missing, doubled + twice
    record(
        Case(
            test="random", kind=kind, layout=name, kills=kills, runs=runs,
            mismatches=mismatches, lost=lost, doubled=doubled, seed=SEED,
        )
    )  # fmt: skip
    assert mismatches == lost == doubled == 0, (
        f"seed {SEED}: {mismatches} of {runs} runs with {kills} kills differ: {told[:5]}"
    )


def wanted(kind: str, name: str) -> int:
    """How many kills a kind of stage in a layout gets."""
    return math.ceil(KILLS * SHARE[kind, name]) if THOROUGH else FEW


def _disturb(bench, directory, draws, latest_seconds, *, most) -> int:
    """Kill a run up to `most` times, then let it finish; how often it was hit before its end."""
    for kills in range(most):
        handle = bench.start(directory)
        if not wait_then_kill(handle, draws.uniform(0, latest_seconds), draws):
            assert handle.poll() == 0, (directory / "log.txt").read_text()
            return kills
    assert bench.finish(directory) == 0, (directory / "log.txt").read_text()
    return most
