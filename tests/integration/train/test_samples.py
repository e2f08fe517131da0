"""Answers at checkpoints: the same prompts at each, in time, and the bits of training as without them."""

import json
from itertools import count

import pytest

torch = pytest.importorskip("torch")

from engine_bench import run, run_in_two, stage, weights

from charter.artifacts.sample_prompts import (
    ROLLOUTS_FILE,
    SAMPLES_FILE,
    SamplePrompts,
    sample_seconds,
    write_sample_prompts,
)
from charter.train import ppo, samples, sft

pytestmark = pytest.mark.torch
ASKED = tuple((f"p{number}", ({"role": "user", "content": f"What is {number}?"},)) for number in range(3))
MODULES = {"sft": sft, "ppo": ppo}


def prompts(share):
    return SamplePrompts(prompts=ASKED, seed=3, max_new_tokens=4, share=share)


def rows(found):
    return [json.loads(line) for line in (found.path / SAMPLES_FILE).read_text().splitlines()]


@pytest.mark.parametrize("kind", MODULES)
def test_checkpoints_answer_and_bits_stay(kind, engine_inputs, tmp_path):
    plain = run(stage(engine_inputs, tmp_path / "plain", kind, checkpoint_every=1), MODULES[kind])
    sampled = stage(engine_inputs, tmp_path / "sampled", kind, checkpoint_every=1)
    write_sample_prompts(sampled.path, prompts(1.0))
    run_in_two(sampled, MODULES[kind], parts=2)
    torch.testing.assert_close(weights(sampled), weights(plain), rtol=0, atol=0)
    answered = rows(sampled)
    assert {row["id"] for row in answered} == {name for name, _ in ASKED}
    last = max(row["step"] for row in answered)
    assert last > min(row["step"] for row in answered)
    assert len({row["answer"] for row in answered if row["step"] == last}) > 1
    assert not (plain.path / SAMPLES_FILE).exists()
    assert (kind == "ppo") is (sampled.path / ROLLOUTS_FILE).exists()
    if kind == "ppo":
        rolled = [json.loads(line) for line in (sampled.path / ROLLOUTS_FILE).read_text().splitlines()]
        assert all(isinstance(row["score"], float) and row["answer"] is not None for row in rolled)
        assert len({row["step"] for row in rolled}) > 1
    assert sample_seconds(sampled.path) > 0 == sample_seconds(plain.path)


@pytest.mark.parametrize("layout", [{"zero": 2}, pytest.param({"tensor": 2}, marks=pytest.mark.thorough)])
def test_a_model_of_two_processes_answers_too(layout, engine_inputs, tmp_path):
    frozen = {"world_size": 2, "micro_batch": 2, **layout}
    plain, sampled = (
        stage(engine_inputs, tmp_path / name, "sft", checkpoint_every=1, steps=2, frozen=frozen)
        for name in ("plain", "sampled")
    )
    write_sample_prompts(sampled.path, prompts(1.0))
    run(plain, sft)
    run(sampled, sft)
    torch.testing.assert_close(weights(sampled), weights(plain), rtol=0, atol=0)
    asked = {(row["step"], row["id"]) for row in rows(sampled)}
    assert asked == {(step, name) for step in (1, 2) for name, _ in ASKED}
    assert len(rows(sampled)) == len(asked) + 1, "the first answer shows what one takes; one process writes them down"
    assert sample_seconds(sampled.path) > 0


def test_answers_stop_where_their_time_is_used_up(engine_inputs, tmp_path, monkeypatch):
    clock = count()
    monkeypatch.setattr(samples, "monotonic", lambda: float(next(clock)))
    found = stage(engine_inputs, tmp_path / "stage", "sft", checkpoint_every=1)
    write_sample_prompts(found.path, prompts(0.01))
    run(found, sft)
    assert len(rows(found)) == 1, "what one takes is measured once, and is more than a hundredth"


def test_a_failure_to_answer_stops_no_stage(engine_inputs, tmp_path, monkeypatch, capfd):
    def fail(*_, **__):
        raise RuntimeError("out of memory\nby far")

    monkeypatch.setattr(samples, "generate", fail)
    found = stage(engine_inputs, tmp_path / "stage", "sft", checkpoint_every=1)
    write_sample_prompts(found.path, prompts(1.0))
    run(found, sft)
    assert "no samples from here on: out of memory" in capfd.readouterr().err
    assert not (found.path / SAMPLES_FILE).exists()
    assert (found.outputs / "model").is_dir()
