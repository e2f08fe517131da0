"""PPO whose answers another program samples: stored at once, replayed by a resume, sent whole weights."""

import os
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from engine_bench import farthest, run, run_in_two, stage, weights

from charter.inference import generator
from charter.spec.layout import Adapter
from charter.train import ppo

pytestmark = pytest.mark.torch
FAKE = Path(__file__).with_name("fake_vllm.py")
SETTINGS = {"generator": "vllm", "mismatch_clip": 2.0, "episodes": 16, "ppo_epochs": 1}


@pytest.fixture
def spoken(monkeypatch):
    """The fake program in vLLM's place: policy versions that were sampled from, and the weights that were sent."""
    found = {"sampled": [], "sent": {}}
    vllm = generator.VllmGenerator
    sample, update = vllm.sample, vllm.update_weights

    def sampling(self, prompts, **settings):
        found["sampled"].append((settings["version"], len(prompts)))
        return sample(self, prompts, **settings)

    def updating(self, weights, *, version):
        found["sent"][version] = {name: value.clone() for name, value in dict(weights).items()}
        update(self, found["sent"][version].items(), version=version)

    monkeypatch.setattr(vllm, "sample", sampling)
    monkeypatch.setattr(vllm, "update_weights", updating)
    monkeypatch.setattr(generator, "vllm_command", lambda: [sys.executable, str(FAKE), "none", str(os.getpid())])
    return found


def test_a_resume_replays_the_stored_answers(engine_inputs, tmp_path, spoken):
    whole = run(stage(engine_inputs, tmp_path / "whole", "ppo", **SETTINGS), ppo)
    assert spoken["sampled"] == [(0, 8), (1, 8)]
    spoken["sampled"].clear()
    stopped = run_in_two(stage(engine_inputs, tmp_path / "stopped", "ppo", **SETTINGS), ppo, parts=1)
    assert spoken["sampled"] == [(0, 8), (1, 8)], "the first rollout was sampled before the stop, the second after it"
    assert farthest(weights(whole), weights(stopped)) == 0.0


def test_a_rollout_is_durable_before_its_first_update(engine_inputs, tmp_path, spoken, monkeypatch):
    from charter.train.ppo import PpoTask

    found = stage(engine_inputs, tmp_path / "stage", "ppo", **SETTINGS)
    monkeypatch.setattr(PpoTask, "_epoch", lambda *arguments: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        ppo.run(found)
    assert (found.path / "state" / "step-00000000-1" / "manifest.json").exists()


def test_what_is_sent_has_the_adapter_added_in(engine_inputs, tmp_path, spoken):
    pytest.importorskip("peft")
    found = run(stage(engine_inputs, tmp_path / "stage", "ppo", adapter=Adapter(rank=4, alpha=8), **SETTINGS), ppo)
    first, second = spoken["sent"][0], spoken["sent"][1]
    assert weights(found).keys() <= first.keys()
    assert not any("lora" in name or "base_layer" in name for name in first)
    moved = {name for name in first if not torch.equal(first[name], second[name])}
    assert moved == {name for name in first if "_proj" in name}


@pytest.mark.parametrize(
    "layout", [{}, pytest.param({"tensor": 2}, marks=pytest.mark.thorough)], ids=["data", "tensor"]
)
def test_rank_0_samples_for_all(engine_inputs, tmp_path, spoken, layout):
    """Each process gets its own share: as many answers in all, and the same ones as one process gets."""
    from engine_bench import metrics

    settings = SETTINGS | {"episodes": 8, "minibatch": 8}
    one = run(stage(engine_inputs, tmp_path / "one", "ppo", **settings), ppo)
    two = run(stage(engine_inputs, tmp_path / "two", "ppo", frozen={"world_size": 2, **layout}, **settings), ppo)
    for name in ("reward_mean", "response_tokens", "tokens", "policy_loss"):
        assert metrics(two)[0][name] == pytest.approx(metrics(one)[0][name], rel=1e-3, abs=1e-5), name
