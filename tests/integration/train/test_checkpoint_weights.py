"""The policy is read out of checkpoints without the engine that wrote them, however it was spread."""

import pytest

torch = pytest.importorskip("torch")

from engine_bench import run, stage

from charter.errors import DataError
from charter.evaluate.goodhart import policy_of_checkpoint
from charter.models.language_model import load_language_model
from charter.spec.layout import Adapter
from charter.train import ppo

pytestmark = pytest.mark.torch


def weights_of(model):
    return model.model.state_dict()


def test_shards_of_two_processes_are_one_policy(tmp_path, engine_inputs):
    trained = stage(
        engine_inputs, tmp_path / "ppo", "ppo", frozen={"world_size": 2, "zero": 3}, checkpoint_every=1, ppo_epochs=1
    )
    run(trained, ppo)
    published = trained.outputs / "model"
    before, last = (policy_of_checkpoint(published, path) for path in sorted((trained.path / "state").iterdir())[-2:])
    whole = weights_of(load_language_model(published))
    assert all(torch.equal(value, whole[name]) for name, value in weights_of(last).items())
    assert any(not torch.equal(value, whole[name]) for name, value in weights_of(before).items())


def test_a_checkpoint_of_an_adapter_is_refused_in_words(tmp_path, engine_inputs):
    pytest.importorskip("peft")
    trained = stage(engine_inputs, tmp_path / "ppo", "ppo", adapter=Adapter(rank=2), ppo_epochs=1)
    run(trained, ppo)
    path = sorted((trained.path / "state").iterdir())[-1]
    with pytest.raises(DataError, match="holds an adapter"):
        policy_of_checkpoint(trained.outputs / "model", path)
