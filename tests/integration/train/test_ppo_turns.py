"""PPO whose answers have several turns, on a very small real model and an environment that always replies."""

from contextlib import ExitStack
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from engine_bench import farthest, metrics, run, run_in_two, stage, weights

from charter.artifacts.checkpoints import Position
from charter.artifacts.job import JobInput, read_job, write_job
from charter.inference.turns import Tools
from charter.spec.rewards import ENVIRONMENT_SOURCES, Environment, Reward
from charter.train import ppo
from charter.train.loop import Loop
from charter.train.ppo import ppo_task
from charter.train.setup import set_up

pytestmark = pytest.mark.torch
CODE = '''
class Talk:
    """Replies with what was said, for three turns, and likes long answers."""
    def reset(self, seed): self.said, self.breaks = [], seed % 4 == 0
    def step(self, answer):
        self.said.append(answer)
        return f"{len(answer)} letters", len(self.said) == 3
    def reward(self, answer): return float(sum(map(len, self.said)))
class Breaks(Talk):
    def step(self, answer):
        if self.breaks: raise ValueError("seed")
        return super().step(answer)
class Rated(Talk):
    def reward(self): return {"reward": 1.0, "scores": {"turns": len(self.said)}}
'''
TALK = Environment(call="own.py:Talk", max_turns=4, turn_tokens=4, observation_tokens=6)
TURNS = {
    "reward": None,
    "rewards": (Reward(name="said", kind="env"),),
    "environment": TALK,
    "estimator": "grpo",
    "samples_per_prompt": 4,
    "kl_coefficient": 0.1,
    "max_new_tokens": 10,
    "dtype": "fp32",
}


@pytest.fixture
def several(engine_inputs, tmp_path):
    """(changes of the spec) -> a stage directory whose answers have several turns."""
    count = iter(range(100))
    (tmp_path / "own.py").write_text(CODE)

    def make(**changes):
        found = stage(engine_inputs, tmp_path / f"ppo-{next(count)}", "ppo", **{**TURNS, **changes})
        job = read_job(found.path)
        source = JobInput(
            name=f"{ENVIRONMENT_SOURCES} own.py",
            role=ENVIRONMENT_SOURCES,
            source="data",
            path=str(tmp_path / "own.py"),
            fingerprint="0" * 64,
        )
        inputs = {role: items for role, items in job.inputs.items() if role != "reward"}
        write_job(found.path, replace(job, inputs={**inputs, ENVIRONMENT_SOURCES: (source,)}))
        return type(found)(found.path)

    return make


@pytest.fixture
def task(several):
    with ExitStack() as stack:

        def make(**changes):
            made, _ = ppo_task(set_up(several(**changes)), stack)
            Loop(made.setup, made)
            return made

        yield make


def test_only_tokens_of_the_policy_are_learnt_from(task):
    found = task()
    rollout = found.sampler.sample(0, 0, kl_coefficient=0.1)
    mask, ids = rollout.mask_BR, rollout.sequences.ids_BT
    assert mask.any(1).all()
    gaps = [row for row in mask.tolist() if False in row[: max(place for place, own in enumerate(row) if own)]]
    assert gaps, "some answer has a reply in it"
    assert not rollout.advantage_BR[~mask].any()
    assert not rollout.log_probability_BR[~mask].any()
    assert (rollout.log_probability_BR[mask] < 0).all()
    assert rollout.sums(kl_estimator="k1", weights=(1.0,), samples=1)["response_tokens"] == mask.sum()
    assert ids.shape[1] > mask.sum(1).max() + rollout.sequences.prompt_tokens_B.max()


def test_log_probabilities_are_those_of_the_whole_context(task):
    """Recomputed token by token from the ids, by the model's own forward pass."""
    found = task()
    rollout = found.sampler.sample(0, 0, kl_coefficient=0.1)
    model, sequences = found.models.policy.model, rollout.sequences
    for row in range(len(sequences.ids_BT)):
        count, prompt = int(sequences.mask_BT[row].sum()), int(sequences.prompt_tokens_B[row])
        ids = sequences.ids_BT[row, :count]
        log_p = torch.log_softmax(model(ids[None]).logits[0].float(), -1)
        for place in rollout.mask_BR[row].nonzero().flatten().tolist():
            expected = log_p[prompt + place - 1, ids[prompt + place]].item()
            assert rollout.log_probability_BR[row, place].item() == pytest.approx(expected, abs=1e-5)


def test_replay_of_a_rollout_calls_no_tool(task, monkeypatch):
    found = task()
    first = found.sampler.sample(0, 0, kl_coefficient=0.1)
    monkeypatch.setattr(Tools, "ask", lambda *_: pytest.fail("called again"))
    again = found.sampler.sample(0, 0, kl_coefficient=0.1)
    for name, value in first._tensors().items():
        assert torch.equal(value, again._tensors()[name]), name


def test_group_of_a_failed_environment_is_left_out(task):
    found = task(environment=replace(TALK, call="own.py:Breaks"), max_failed_share=1.0)
    rollout = found.sampler.sample(0, 0, kl_coefficient=0.1)
    failed = rollout.failed_BK.any(1).view(-1, 4).any(1)
    assert failed.any(), "some seed is a multiple of four"
    assert rollout.counted_B.view(-1, 4).all(1).tolist() == (~failed).tolist()


def test_scores_of_an_environment_are_rewards_by_name(task):
    named = [Reward(name=name, kind="env", score=name, weight=weight) for name, weight in (("turns", 0.5), ("x", 0.0))]
    rewards = (*TURNS["rewards"], *named)
    found = task(environment=replace(TALK, call="own.py:Rated"), rewards=rewards, max_failed_share=1.0)
    rollout = found.sampler.sample(0, 0, kl_coefficient=0.1)
    turns_B = rollout.reward_BK[:, 1]
    assert torch.equal(rollout.score_B, 1.0 + 0.5 * turns_B)
    assert 0.0 < turns_B.mean() <= 3.0
    assert rollout.failed_BK.all(0).tolist() == [False, False, True], "a name that it does not give is a failure"
    assert rollout.counted_B.all(), "of a weight of 0, so that nothing is left out"


@pytest.mark.parametrize("estimator", ["grpo", "gae"])
def test_steps_report_turns_and_why_answers_ended(task, estimator):
    changes = {"estimator": "gae", "samples_per_prompt": 1, "bootstrap_truncated": True} if estimator == "gae" else {}
    found = task(**changes)
    for part in range(found.parts):
        report = found.run_part(Position(0, part))
    metrics = report.metrics
    assert 1.0 <= metrics["turns"] <= 4.0
    assert metrics["tool_seconds"] > 0.0
    assert sum(value for name, value in metrics.items() if name.startswith("stopped_")) == pytest.approx(1.0)
    assert all(torch.isfinite(torch.tensor(value)) for value in metrics.values())


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_stopped_stage_of_turns_ends_in_the_same_bits(several, parts):
    settings = {"checkpoint_epochs": True}
    undisturbed, stopped = run(several(**settings), ppo), run_in_two(several(**settings), ppo, parts=parts)
    assert farthest(weights(undisturbed), weights(stopped)) == 0.0
    timed = ("time", "seconds", "per_second", "bytes", "checkpoint_async")
    first, second = (
        [{name: value for name, value in row.items() if not any(word in name for word in timed)} for row in metrics(it)]
        for it in (undisturbed, stopped)
    )
    assert first == second
    assert sorted(item.name for item in (stopped.path / "turns").iterdir()) == ["000000-0.jsonl", "000001-0.jsonl"]
