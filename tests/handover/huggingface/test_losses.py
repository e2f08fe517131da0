"""The loss of TRL's GRPOTrainer on random tensors against ours."""

import json
from pathlib import Path

import pytest
from engine_case import ask_engine
from loss_case import HIGH, LOW, assert_equal, ours, plain, rollout

from charter.train.ppo_math import mismatch_weights

TENSORS = rollout()
OURS = ours(TENSORS)


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    weights = mismatch_weights(TENSORS["old"], TENSORS["generator"], TENSORS["mask"], low=LOW, high=HIGH)
    file = tmp_path_factory.mktemp("losses") / "tensors.json"
    file.write_text(json.dumps(plain({**TENSORS, "tis": weights})))
    probe = Path(__file__).with_name("probe_losses.py")
    return json.loads(ask_engine("huggingface", probe, str(file)).splitlines()[-1])


@pytest.mark.parametrize(
    "formula", ["ppo.token", "ppo.sequence", "ppo.constant", "ppo.tis", "gspo", "cispo", "sapo", "kl.loss"]
)
def test_a_formula_is_the_same(theirs, formula):
    assert_equal(OURS[formula], theirs[formula])
