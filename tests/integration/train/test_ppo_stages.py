"""PPO over several steps, on a very small real model: divergence, one step off, distillation, a kill."""

import math
import multiprocessing
import os
import signal
from unittest import mock

import pytest

torch = pytest.importorskip("torch")

from engine_bench import SECONDS, metrics, stage
from engine_bench import weights as published
from ppo_bench import FixedSampler, rollout_of, weights, whole_step

from charter.artifacts.checkpoints import Position
from charter.artifacts.stage_dir import StageDir
from charter.inference.generate import generate
from charter.train import ppo
from charter.train.loop import Loop
from charter.train.ppo import ppo_task
from charter.train.setup import set_up

pytestmark = pytest.mark.torch


@pytest.fixture
def taught(engine_inputs, tmp_path):
    """(changes of the spec) -> a task whose teacher is the same architecture with other weights, without any reward."""
    import tiny

    teacher, count = tmp_path / "teacher", iter(range(100))
    tiny.language_model(seed=5).save(teacher / "model")

    def make(**changes):
        settings = {"reward": None, "estimator": "distill", "teacher": str(teacher), "learning_rate": 3e-3, **changes}
        found = stage(engine_inputs, tmp_path / f"taught-{next(count)}", "ppo", **settings)
        made, _ = ppo_task(set_up(found))
        return made

    return make


def test_ppo_goes_back_and_around_the_prompts_that_made_it_diverge(engine_inputs, tmp_path):
    """Divergence in the second epoch of rollout 2 (from 0): back to rollout 1, whose prompts are those of rollout 3."""
    from charter.spec.stage_base import Guard

    guard = Guard(on_divergence="roll_back", roll_back_steps=1, skip_steps=2)
    found = stage(
        engine_inputs, tmp_path / "back", "ppo", episodes=32, checkpoint_every=1, checkpoint_epochs=True, guard=guard
    )
    task, _ = ppo_task(set_up(found))
    read, clean, update = [], task.sampler.sample, task.update.minibatch

    class Watched(FixedSampler):
        def sample(self, step, data_step, *, kl_coefficient):
            read.append((step, data_step))
            return clean(step, data_step, kl_coefficient=kl_coefficient)

    def minibatch(rollout, parts, at, guard, *, kl_coefficient):
        if (at.step, at.epoch) == (2, 1) and read[-1] == (2, 2):
            guard.allows(at.step, float("nan"), 1.0)
        return update(rollout, parts, at, guard, kl_coefficient=kl_coefficient)

    task.sampler, task.update.minibatch = Watched(task.sampler, None), minibatch
    task.train()
    assert read == [(0, 0), (1, 1), (2, 2), (1, 3), (2, 4), (3, 5)]
    assert [line["step"] for line in metrics(found)] == [1, 2, 3, 4]
    again, _ = ppo_task(set_up(found))
    Loop(again.setup, again).run()
    assert torch.equal(weights(again.models.trained.module), weights(task.models.trained.module))


def test_a_diverging_update_is_left_out_or_stops_the_stage(task):
    from charter.spec.stage_base import Guard
    from charter.train.loop import DivergedError

    skipping, stopping = task(guard=Guard(on_divergence="skip", most=100)), task()
    for found in (skipping, stopping):
        found.models.reward.normalise = lambda score: score * float("nan")
    before = weights(skipping.models.trained.module).clone()
    whole_step(skipping)
    assert torch.equal(before, weights(skipping.models.trained.module))
    assert skipping.guard.skipped == 4
    with pytest.raises(DivergedError, match="not finite"):
        whole_step(stopping)


def test_one_step_off_draws_before_the_last_update(task):
    """Rollout k + 1 is the one that the weights before update k draw, with their log-probabilities and values."""
    apart, together = (task(asynchrony="one_step_off", episodes=24) for _ in range(2))
    for step in range(3):
        for part in range(apart.parts):
            apart.run_part(Position(step, part))
            if part == 0 and step < 2:
                drawn = rollout_of(together, step + 1, kl_coefficient=together.controller.coefficient)
                expected = drawn.to_buffers(together.setup.ranks)
                held = {name[6:]: value for name, value in apart.state.buffers.items() if name.startswith("ahead.")}
                assert held.keys() == expected.keys()
                assert all(torch.equal(held[name], value) for name, value in expected.items())
            together.run_part(Position(step, part))
    assert apart.state.buffers == {}, "behind the last of three none is drawn"


def test_one_step_off_counts_how_far_the_policy_moved_since(task):
    """The ratio is 1 where the policy drew its own rollout, and holds the update in between where it did not."""
    own, older = task(minibatch=8, ppo_epochs=1), task(minibatch=8, ppo_epochs=1, asynchrony="one_step_off")
    first, second = ([whole_step(item, step).metrics for step in range(2)] for item in (own, older))
    assert "rollout_age" not in first[1]
    assert [row["rollout_age"] for row in second] == [0.0, 1.0]
    assert first[1]["update_kl"] == 0.0
    assert second[1]["update_kl"] > 0.0
    assert second[0]["update_kl"] == 0.0


def test_one_step_off_goes_back_behind_what_it_read(engine_inputs, tmp_path):
    """Rollout 1 was drawn during rollout 0, by prompts that the roll-back leaves out: it is drawn anew from there."""
    from charter.spec.stage_base import Guard

    guard = Guard(on_divergence="roll_back", roll_back_steps=1, skip_steps=2)
    found = stage(
        engine_inputs, tmp_path / "back", "ppo", episodes=40, checkpoint_every=1, checkpoint_epochs=True,
        guard=guard, asynchrony="one_step_off",
    )  # fmt: skip
    task, _ = ppo_task(set_up(found))
    read, clean, update = [], task.sampler.sample, task.update.minibatch

    class Watched(FixedSampler):
        def sample(self, step, data_step, *, kl_coefficient):
            read.append((step, data_step))
            return clean(step, data_step, kl_coefficient=kl_coefficient)

    def minibatch(rollout, parts, at, guard, *, kl_coefficient):
        if (at.step, at.epoch) == (3, 1) and read[-1] == (4, 4):
            guard.allows(at.step, float("nan"), 1.0)
        return update(rollout, parts, at, guard, kl_coefficient=kl_coefficient)

    task.sampler, task.update.minibatch = Watched(task.sampler, None), minibatch
    task.train()
    assert read == [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4), (2, 4), (3, 5), (4, 6)]
    again, _ = ppo_task(set_up(found))
    Loop(again.setup, again).run()
    assert torch.equal(weights(again.models.trained.module), weights(task.models.trained.module))


def test_distillation_learns_from_its_own_answers(taught):
    """A token's advantage is the teacher's log-probability less the policy's; the reverse KL falls."""
    found = taught(episodes=96, minibatch=8, ppo_epochs=1)
    Loop(found.setup, found)
    assert found.models.reward is None
    assert found.models.reference is None
    rollout = rollout_of(found)
    own, teacher = rollout.log_probability_BR, rollout.teacher_BR
    assert torch.equal(rollout.advantage_BR, torch.where(rollout.mask_BR, teacher - own, 0.0))
    before = weights(found.models.teacher.module).clone()
    reports = [whole_step(found, step) for step in range(12)]
    gaps = [report.metrics["teacher_kl"] for report in reports]
    assert sum(gaps[-3:]) < 0.8 * sum(gaps[:3])
    assert reports[0].score == -gaps[0]
    assert torch.equal(weights(found.models.teacher.module), before)


@pytest.mark.parametrize("divergence", ["reverse", "forward", "jsd"])
def test_distributions_are_learnt_from_as_a_whole(taught, divergence):
    """The loss falls, in nats of a token, and so does the estimate from sampled tokens; no ratio is clipped."""
    found = taught(episodes=96, minibatch=8, ppo_epochs=1, divergence=divergence, divergence_words=20)
    Loop(found.setup, found)
    reports = [whole_step(found, step) for step in range(12)]
    loss, gaps = ([report.metrics[name] for report in reports] for name in ("policy_loss", "teacher_kl"))
    assert all(value > 0 for value in loss)
    assert sum(loss[-3:]) < 0.8 * sum(loss[:3])
    assert sum(gaps[-3:]) < 0.9 * sum(gaps[:3])
    assert "clip_fraction" not in reports[0].metrics
    assert all(math.isfinite(report.metrics["entropy"]) for report in reports)


@pytest.mark.parametrize("divergence", [None, "jsd"])
def test_a_stopped_distillation_ends_in_the_same_bits(taught, divergence):
    """Two rollouts at once, and one, a checkpoint and one in a new process's objects: the same weights."""
    whole, first = (taught(episodes=16, divergence=divergence) for _ in range(2))
    whole.train()
    loop = Loop(first.setup, first)
    whole_step(first, 0)
    loop.checkpoints.save(Position(1), None)
    loop.checkpoints.finish()
    again, _ = ppo_task(set_up(first.setup.stage))
    again.train()
    assert torch.equal(weights(again.models.trained.module), weights(whole.models.trained.module))


def test_a_teacher_with_other_tokens_is_refused(engine_inputs, tmp_path):
    import tiny

    from charter.errors import DataError
    from charter.models.chat import train_tokenizer
    from charter.models.language_model import new_language_model

    other = new_language_model(tiny.ARCHITECTURE, train_tokenizer(["other words entirely"] * 9, vocab_size=300), seed=1)
    other.save(tmp_path / "teacher" / "model")
    settings = {"reward": None, "estimator": "distill", "teacher": str(tmp_path / "teacher")}
    found = stage(engine_inputs, tmp_path / "taught", "ppo", **settings)
    with pytest.raises(DataError, match="another tokenizer"):
        ppo_task(set_up(found))


def kill_in_a_later_part(path):
    """Run a stage in this process until the second part of its third rollout, and end it there."""
    drawn, real = [], generate

    def killing(*arguments, **more):
        drawn.append(1)
        if len(drawn) == 3 * 3 - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **more)

    with mock.patch("charter.inference.generator.generate", killing):
        ppo.run(StageDir(path))


def test_a_stage_killed_between_parts_of_a_rollout_ends_the_same(engine_inputs, tmp_path):
    """Parts of 3, 3 and 2 answers: their size is among the frozen values, and so each part is drawn again as it was."""
    given = {"frozen": {"decode_batch": 3}, "episodes": 32, "checkpoint_every": 1}
    calm, killed = (stage(engine_inputs, tmp_path / name, "ppo", **given) for name in ("calm", "killed"))
    ppo.run(calm)
    process = multiprocessing.get_context("fork").Process(target=kill_in_a_later_part, args=(killed.path,))
    process.start()
    process.join(SECONDS)
    assert process.exitcode == -signal.SIGKILL
    assert [line["step"] for line in metrics(killed)] == [1, 2]
    ppo.run(killed)
    assert published(killed).keys() == published(calm).keys()
    assert all(torch.equal(value, published(calm)[name]) for name, value in published(killed).items())
