"""Signs of life of real stages: a stage that is busy for long must never look like one that hangs."""

from itertools import groupby

import pytest

torch = pytest.importorskip("torch")

from engine_bench import run, stage

from charter.artifacts.group import (
    PUBLISH,
    SAVE,
    Heartbeat,
)
from charter.train import (
    ppo,
    preference_model,
    sft,
)

pytestmark = pytest.mark.torch


@pytest.fixture
def signs(monkeypatch):
    """What a stage says of itself, in order: the beginning of something, or that it is still at it."""
    found: list[str] = []
    begin, still = Heartbeat.beat, Heartbeat.alive
    monkeypatch.setattr(Heartbeat, "beat", lambda self, what: (found.append(what), begin(self, what))[1])
    monkeypatch.setattr(Heartbeat, "alive", lambda self: (found.append(""), still(self))[1])
    return found


def phases(signs):
    """(what was begun, how often it was said to go on)"""
    found: list[tuple[str, int]] = []
    for is_still, group in groupby(signs, key=lambda what: what == ""):
        items = list(group)
        found = [*found[:-1], (found[-1][0], len(items))] if is_still and found else found + [(w, 0) for w in items]
    return found


def test_every_micro_batch_is_a_sign(engine_inputs, tmp_path, signs):
    run(stage(engine_inputs, tmp_path / "stage", "sft", steps=2, frozen={"micro_batch": 2}), sft)
    steps = [count for what, count in phases(signs) if what in ("step 1", "step 2")]
    assert max(steps) >= 4, "eight rows by twos"


def test_every_token_and_every_micro_batch_of_a_rollout_is_a_sign(engine_inputs, tmp_path, signs):
    changes = {"episodes": 8, "min_new_tokens": 6, "frozen": {"micro_batch": 2}}
    run(stage(engine_inputs, tmp_path / "stage", "ppo", **changes), ppo)
    tokens, scored, trained = 6, 4, 2 * 4
    assert dict(phases(signs))["rollout 1"] >= tokens + scored + trained


def test_scoring_all_pairs_after_training_is_publishing_which_may_take_long(engine_inputs, tmp_path, signs):
    run(stage(engine_inputs, tmp_path / "stage", "preference_model", steps=1), preference_model)
    after = signs[max(index for index, what in enumerate(signs) if what == SAVE) :]
    begun = [what for what in after if what not in ("", SAVE) and not what.startswith("after checkpoint")]
    assert set(begun) == {PUBLISH}
    assert "" in after[after.index(PUBLISH) :], "each batch that is scored"


def test_gathering_the_weights_is_publishing(engine_inputs, tmp_path, signs):
    run(stage(engine_inputs, tmp_path / "stage", "sft", steps=1), sft)
    assert [what for what in signs if what == PUBLISH] == [PUBLISH] * 2, "before the weights, and before the files"
