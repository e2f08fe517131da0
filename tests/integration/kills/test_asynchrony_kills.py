"""SIGKILL where rollouts are drawn a step ahead: the same bits as undisturbed, before, inside and after every part.

A rollout that is drawn ahead cannot be drawn again once its policy has moved: it has to come from the checkpoint.
`make chaos` kills at every boundary, CI at one.
"""

import json
from dataclasses import replace

import pytest
from bench import KILLED, KINDS, boundaries, chain_of, defects_in, result_of
from layouts import in_turn

pytestmark = [pytest.mark.torch, pytest.mark.slow]
SPEC = replace(KINDS["ppo"].spec, episodes=4 * 8, ppo_epochs=2, asynchrony="one_step_off")


@pytest.fixture(scope="module")
def calm(bench):
    directory = bench.stage("ppo", "ahead", spec=SPEC)
    assert bench.finish(directory) == 0, (directory / "log.txt").read_text()
    return directory


def test_killed_at_every_boundary_ends_in_the_same_bits(bench, calm):
    killed = bench.stage("ppo", "ahead-killed", spec=SPEC)
    for place, when in in_turn(boundaries("ppo", SPEC)):
        code = bench.finish(killed, CHARTER_KILL=f"ppo:checkpoint:{place}:{when}")
        assert code == KILLED, (place, when, (killed / "log.txt").read_text())
    assert bench.finish(killed) == 0, (killed / "log.txt").read_text()
    assert result_of(killed) == result_of(calm)
    assert defects_in(killed) == []


def test_each_rollout_is_one_update_old(calm):
    ages = [json.loads(line)["rollout_age"] for line in (calm / "metrics.jsonl").read_text().splitlines()]
    assert ages == [0.0, 1.0, 1.0, 1.0]
    assert len(chain_of(calm)) == 12
