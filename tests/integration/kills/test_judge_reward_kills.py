"""SIGKILL in direct RLAIF: rollouts rated by a judge, by REINFORCE, end bit for bit as an undisturbed run does."""

from dataclasses import replace

import pytest
from bench import KILLED, KINDS, defects_in, result_of
from layouts import in_turn

pytestmark = [pytest.mark.torch, pytest.mark.slow]
SPEC = replace(
    KINDS["ppo"].spec,
    reward_from="judge",
    estimator="reinforce",
    episodes=32,
    minibatch=8,
    ppo_epochs=1,
    checkpoint_epochs=True,
)
PLACES = (("0-1", "before"), ("0-1", "after"), ("2", "before"), ("3-1", "after"))
"""A rollout that was rated and not kept, one that was, one that was learnt from, the last."""


def test_a_rated_rollout_survives_kills_around_its_checkpoints(bench):
    undisturbed, killed = (bench.stage("ppo", name, spec=SPEC) for name in ("rated", "rated-killed"))
    assert bench.finish(undisturbed) == 0, (undisturbed / "log.txt").read_text()
    for place, when in in_turn(PLACES):
        code = bench.finish(killed, CHARTER_KILL=f"ppo:checkpoint:{place}:{when}")
        assert code == KILLED, (place, when, (killed / "log.txt").read_text())
    assert bench.finish(killed) == 0, (killed / "log.txt").read_text()
    assert result_of(killed) == result_of(undisturbed)
    assert defects_in(killed) == []
