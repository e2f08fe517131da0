"""Answers in flight: one version of the policy after the other draws them, and their record makes the same updates."""

import json
import shutil
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from engine_bench import metrics, run, stage

from charter.artifacts.checkpoints import Position
from charter.inference.generate import SamplingSettings
from charter.plan.rl_work import rollout_records
from charter.spec.rewards import Reward
from charter.train import ppo
from charter.train.loop import Loop
from charter.train.ppo import ppo_task
from charter.train.ppo_answers import asked_together
from charter.train.ppo_sequences import answer_log_probabilities
from charter.train.setup import set_up

pytestmark = pytest.mark.torch
STEPS = 4
FLIGHT = {
    "asynchrony": "in_flight",
    "max_age": 2,
    "max_new_tokens": 6,
    "min_new_tokens": 5,
    "episodes": STEPS * 8,
    "minibatch": 8,
    "ppo_epochs": 1,
    "learning_rate": 1e-2,
}


def flying(engine_inputs, path, **changes):
    found = stage(engine_inputs, path, "ppo", **{**FLIGHT, **changes})
    task, _ = ppo_task(set_up(found))
    return task


def rollouts(task):
    """(step, rollout, weights that go on to draw) before every update of a run."""
    Loop(task.setup, task)
    for step in range(STEPS):
        task.run_part(Position(step, 0))
        module = task.models.trained.module
        yield step, task._rollout(), {name: value.clone() for name, value in module.state_dict().items()}
        assert task.run_part(Position(step, 1)) is not None


def test_answers_of_one_generator_go_to_whom_they_belong():
    """Where some have ended, processes ask for different numbers of answers, and may ask for none."""
    few, many = SamplingSettings(max_new_tokens=2), SamplingSettings(max_new_tokens=5)
    everyone = [([[1]], [10], few), ([], [], replace(many, max_new_tokens=9)), ([[2], [3], [4]], [11, 12, 13], many)]
    own = [asked_together(everyone, rank) for rank in range(3)]
    assert {(*map(tuple, prompts), *seeds) for prompts, seeds, _, _ in own} == {
        ((1,), (2,), (3,), (4,), 10, 11, 12, 13)
    }
    assert [settings for _, _, settings, _ in own] == [many] * 3
    assert [rows for _, _, _, rows in own] == [slice(0, 1), slice(1, 1), slice(1, 4)]


def test_each_version_draws_its_share_of_an_answer(engine_inputs, tmp_path):
    task = flying(engine_inputs, tmp_path / "flight")
    seen = [rollout for _, rollout, _ in rollouts(task)]
    versions = [
        {tuple(row[mask].tolist()) for row, mask in zip(rollout.version_BR, rollout.mask_BR, strict=True)}
        for rollout in seen
    ]
    wanted = [(0,) * 6, (0, 0, 0, 0, 1, 1), (0, 0, 1, 1, 2, 2), (1, 1, 2, 2, 3, 3)]
    for drawn, full in zip(versions, wanted, strict=True):
        assert drawn <= {full, full[:5]}
        assert full in drawn or full[:5] in drawn
    assert task.state.buffers == {}, "behind the last rollout none is in flight"
    assert len({tuple(row.tolist()) for rollout in seen for row in rollout.sequences.ids_BT}) > STEPS


def test_old_log_probabilities_are_of_the_version_that_drew(engine_inputs, tmp_path):
    task, states = flying(engine_inputs, tmp_path / "flight"), {}
    probe = flying(engine_inputs, tmp_path / "probe").models.trained.module
    for step, rollout, state in rollouts(task):
        states[step] = state
        for version in set(rollout.version_BR[rollout.mask_BR].tolist()):
            probe.load_state_dict(states[version])
            with torch.no_grad():
                wanted = answer_log_probabilities(
                    probe, rollout.sequences, temperature=task.spec.temperature, dtype=task.spec.dtype
                )[0]
            drew = (rollout.version_BR == version) & rollout.mask_BR
            assert drew.any()
            assert torch.allclose(rollout.log_probability_BR[drew], wanted[drew], atol=1e-4)


def test_ages_are_counted_over_tokens(engine_inputs, tmp_path):
    task = flying(engine_inputs, tmp_path / "flight", min_new_tokens=6)
    task.train()
    ages = [line["rollout_age"] for line in metrics(task.setup.stage)]
    assert ages == pytest.approx([0.0, 1 / 3 * 2, 1.0, 1.0], abs=0.01)
    assert metrics(task.setup.stage)[0]["update_kl"] == 0.0
    assert metrics(task.setup.stage)[-1]["update_kl"] > 0.0


class Silent:
    """A generator that is never asked."""

    is_exact, version = True, None

    def sample(self, prompts, **settings):
        raise AssertionError("the record has every answer")

    def update_weights(self, weights, *, version):
        raise AssertionError("the record has every answer")


def test_a_replay_of_the_record_makes_the_same_updates(engine_inputs, tmp_path):
    task, again = (flying(engine_inputs, tmp_path / name, ppo_epochs=2) for name in ("first", "again"))
    task.train()
    record = task.setup.stage.path / "rollouts"
    lines = [json.loads(line) for path in sorted(record.iterdir()) for line in path.read_text().splitlines()]
    assert len(lines) == STEPS * 8
    assert all(len(line["tokens"]) == len(line["versions"]) == len(line["old"]) for line in lines)
    shutil.copytree(record, again.setup.stage.path / "rollouts")
    object.__setattr__(again.sampler, "generator", Silent())
    again.train()
    for name, value in task.models.trained.module.state_dict().items():
        assert torch.equal(value, again.models.trained.module.state_dict()[name]), name


SHORT = Reward(name="short", kind="function", call="charter:overlong", arguments={"longest": 6, "cache": 6})
LISTED = {
    "reward": None,
    "rewards": (SHORT, replace(SHORT, name="again")),
    "estimator": "grpo",
    "samples_per_prompt": 4,
}


@pytest.mark.parametrize("rewards", [{}, LISTED])
def test_records_have_the_bytes_of_the_plan(engine_inputs, tmp_path, rewards):
    """Within a tenth; the lengths are those that were drawn, where a plan has means."""
    found = stage(engine_inputs, tmp_path / "flight", "ppo", **{**FLIGHT, "min_new_tokens": 6, **rewards})
    run(found, ppo)
    path, spec = found.path, replace(found.job.spec, mean_new_tokens=6)
    sizes = {
        f"{name} on record": sum(file.stat().st_size for file in (path / name).iterdir())
        for name in ("rollouts", *(["rewards"] if rewards else []))
    }
    lines = [json.loads(line) for file in (path / "rollouts").iterdir() for line in file.read_text().splitlines()]
    prompt = sum(len(line["prompt"]) for line in lines) / len(lines)
    vocabulary = json.loads((engine_inputs / "base" / "model" / "config.json").read_text())["vocab_size"]
    planned = {term.name: term.value for term in rollout_records(spec, prompt_tokens=prompt, vocab_size=vocabulary)}
    assert planned == pytest.approx(sizes, rel=0.1)


def test_what_is_on_record_is_what_is_learnt_from(engine_inputs, tmp_path):
    task, again = (flying(engine_inputs, tmp_path / name) for name in ("first", "again"))
    _, rollout, _ = next(rollouts(task))
    (path,) = (task.setup.stage.path / "rollouts").iterdir()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    prompt, own = len(lines[0]["prompt"]), rollout.sequences.ids_BT[0].tolist()
    assert own[prompt:][: len(lines[0]["tokens"])] == lines[0]["tokens"]
    lines[0]["tokens"][0] = 7 if own[prompt] != 7 else 8
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (again.setup.stage.path / "rollouts").mkdir()
    (again.setup.stage.path / "rollouts" / path.name).write_text(text)
    _, read, _ = next(rollouts(again))
    assert read.sequences.ids_BT[0, prompt] == lines[0]["tokens"][0] != own[prompt]
    assert torch.equal(read.sequences.ids_BT[1:], rollout.sequences.ids_BT[1:])
    assert (again.setup.stage.path / "rollouts" / path.name).read_text() == text, "a record is written once"
