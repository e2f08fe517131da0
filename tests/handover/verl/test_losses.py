"""verl's own losses and advantages on random tensors against ours."""

import json
import math
from pathlib import Path

import pytest
import torch
from engine_case import ask_engine
from loss_case import HIGH, LOW, assert_equal, ours, plain, rollout

from charter.train.ppo_math import mismatch_weights

TENSORS = rollout(holes=True)
OURS = ours(TENSORS)


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    weights = mismatch_weights(TENSORS["old"], TENSORS["generator"], TENSORS["mask"], low=LOW, high=HIGH)
    file = tmp_path_factory.mktemp("losses") / "tensors.json"
    file.write_text(json.dumps(plain({**TENSORS, "tis": weights})))
    return json.loads(ask_engine("verl", Path(__file__).with_name("probe_losses.py"), str(file)).splitlines()[-1])


@pytest.mark.parametrize(
    "formula",
    [
        *("ppo.token", "ppo.sequence", "ppo.constant", "ppo.dual", "ppo.tis", "gspo", "gspo.token", "cispo", "sapo"),
        *("value", "kl.k1", "kl.k2", "kl.k3", "grpo", "grpo.none", "rloo", "gae.returns"),
    ],
)
def test_a_formula_is_the_same(theirs, formula):
    assert_equal(OURS[formula], theirs[formula])


@pytest.mark.parametrize("formula", ["gae.whitened", "reinforce.whitened"])
def test_its_batches_are_whitened_with_one_less(theirs, formula):
    count = int(TENSORS["mask"].sum())
    assert_equal((torch.tensor(OURS[formula]) * math.sqrt((count - 1) / count)).tolist(), theirs[formula])
