"""Answers at checkpoints: the same prompts at each, in time, and the bits of training as without them."""

import json
import os
from itertools import count
from time import monotonic

import pytest

torch = pytest.importorskip("torch")

from engine_bench import run, run_in_two, stage, weights

from charter.artifacts.sample_prompts import (
    ROLLOUTS_FILE,
    SAMPLES_FILE,
    SamplePrompts,
    sample_seconds,
    was_answering,
    write_sample_prompts,
)
from charter.train import ppo, samples, sft

pytestmark = pytest.mark.torch
PLENTY = 1000.0
"""Share of the time that lets every round be answered, however quick the machine trains."""
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


def sft_stage(inputs, path, *, shows=True, **frozen):
    """Two steps of two checkpoints, with prompts to answer or without."""
    found = stage(inputs, path, "sft", checkpoint_every=1, steps=2, frozen={"micro_batch": 2, **frozen})
    if shows:
        write_sample_prompts(found.path, prompts(PLENTY))
    return found


SHARDED = {"world_size": 2, "zero": 3}
LAYOUTS = {
    "zero-2": {"world_size": 2, "zero": 2},
    "zero-3": SHARDED,
    "tensor": {"world_size": 2, "tensor": 2},
    "hybrid": {"world_size": 4, "zero": 3, "replicas": 2},
    "tensor-zero-3": {"world_size": 4, "tensor": 2, "zero": 3},
}
QUICK = ("zero-2", "zero-3")


@pytest.mark.parametrize(
    "layout", [name if name in QUICK else pytest.param(name, marks=pytest.mark.thorough) for name in LAYOUTS]
)
def test_a_model_of_several_processes_answers_as_one(layout, engine_inputs, tmp_path):
    alone = run(sft_stage(engine_inputs, tmp_path / "alone"), sft)
    plain = run(sft_stage(engine_inputs, tmp_path / "plain", shows=False, **LAYOUTS[layout]), sft)
    sampled = run(sft_stage(engine_inputs, tmp_path / "sampled", **LAYOUTS[layout]), sft)
    torch.testing.assert_close(weights(sampled), weights(plain), rtol=0, atol=0)
    assert [(row["step"], row["id"]) for row in rows(alone)] == [(step, name) for step in (1, 2) for name, _ in ASKED]
    assert rows(sampled) == rows(alone), "each once: one process writes them down"
    assert len({len(row["answer"]) for row in rows(alone)}) > 1, "some end before others"
    assert sample_seconds(sampled.path) > 0


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_stage_killed_in_an_answer_writes_each_once(mode, engine_inputs, tmp_path, monkeypatch):
    """The checkpoint of the step is there, and the answers are made up; or it is not, and the step comes again."""
    monkeypatch.setenv("CHARTER_SAVE", mode)
    undisturbed = run(sft_stage(engine_inputs, tmp_path / "undisturbed", **SHARDED), sft)
    killed = sft_stage(engine_inputs, tmp_path / "killed", **SHARDED)
    generate, begun = samples.generate, count(1)

    def dies_at_the_second_step(*given, agree, **settings):
        number, passes = next(begun), count(1)

        def agreed(token_L):
            if number == 2 and next(passes) == 2:
                os._exit(9)
            return agree(token_L)

        return generate(*given, agree=agreed, **settings)

    monkeypatch.setattr(samples, "generate", dies_at_the_second_step)
    with pytest.raises(AssertionError):
        run(killed, sft)
    assert {row["step"] for row in rows(killed)} == {1}
    assert was_answering(killed.path)
    monkeypatch.setattr(samples, "generate", generate)
    run(killed, sft)
    assert rows(killed) == rows(undisturbed)
    torch.testing.assert_close(weights(killed), weights(undisturbed), rtol=0, atol=0)
    assert not was_answering(killed.path)


def test_answers_of_steps_that_come_again_are_cut_off(engine_inputs, tmp_path):
    found = sft_stage(engine_inputs, tmp_path / "stage")
    (found.path / SAMPLES_FILE).write_text(
        '{"id": "p0", "step": 2, "answer": "of an attempt before"}\n{"id": "p0", "st'
    )
    run(found, sft)
    assert [(row["step"], row["id"]) for row in rows(found)] == [(step, name) for step in (1, 2) for name, _ in ASKED]


def test_a_round_that_takes_too_long_ends_everywhere(engine_inputs, tmp_path, monkeypatch):
    monkeypatch.setattr(samples.SampleDrawer, "_end", lambda _: monotonic())
    found = run(sft_stage(engine_inputs, tmp_path / "stage", **SHARDED), sft)
    assert not (found.path / SAMPLES_FILE).exists()
    assert not was_answering(found.path)
    assert (found.outputs / "model").is_dir()


def test_a_failure_between_shards_ends_the_attempt(engine_inputs, tmp_path, monkeypatch):
    generate = samples.generate

    def fail(*given, **settings):
        if os.environ["RANK"] == "1":
            raise MemoryError("for this process alone")
        return generate(*given, **settings)

    monkeypatch.setattr(samples, "generate", fail)
    found = sft_stage(engine_inputs, tmp_path / "stage", **SHARDED)
    with pytest.raises(AssertionError, match="for this process alone"):
        run(found, sft)
    assert was_answering(found.path), "whoever starts it again takes the prompts away"


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


@pytest.mark.thorough
def test_a_sharded_policy_answers_where_it_generates(engine_inputs, tmp_path):
    plain, sampled = (
        stage(engine_inputs, tmp_path / name, "ppo", checkpoint_every=1, frozen={"micro_batch": 2, **SHARDED})
        for name in ("plain", "sampled")
    )
    write_sample_prompts(sampled.path, prompts(PLENTY))
    run(plain, ppo)
    run(sampled, ppo)
    torch.testing.assert_close(weights(sampled), weights(plain), rtol=0, atol=0)
    answered = [(row["step"], row["id"]) for row in rows(sampled)]
    assert answered == [(step, name) for step in (1, 2) for name, _ in ASKED]
