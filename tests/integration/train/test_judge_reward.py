"""Direct RLAIF and REINFORCE on a very small real model: what is learnt from, bit-exact resume, what is refused."""

from concurrent.futures import Future
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from engine_bench import farthest, metrics, run_in_two, stage, weights

from charter.artifacts.checkpoints import Position
from charter.errors import DataError, StageError
from charter.feedback.asking import ChoiceReply
from charter.feedback.comparing import FIGURES
from charter.models.ranks import Ranks
from charter.train import ppo
from charter.train.judge_reward import JudgeReward
from charter.train.loop import Loop
from charter.train.ppo import ppo_task
from charter.train.setup import set_up

pytestmark = pytest.mark.torch
DIRECT = {"reward_from": "judge", "estimator": "reinforce", "minibatch": 8, "ppo_epochs": 1, "max_new_tokens": 6}


@pytest.fixture(scope="module")
def judged(engine_inputs, tmp_path_factory):
    """The inputs of a PPO stage whose reward is a language model instead of a preference model."""
    place = tmp_path_factory.mktemp("judged")
    for name in ("base", "prompts"):
        (place / name).symlink_to(engine_inputs / name)
    (place / "pm").symlink_to(engine_inputs / "base")
    return place


@pytest.fixture
def task(judged, tmp_path):
    count = iter(range(100))

    def make(**changes):
        found = stage(judged, tmp_path / f"ppo-{next(count)}", "ppo", **(DIRECT | changes))
        made, _ = ppo_task(set_up(found))
        Loop(made.setup, made)
        return made

    return make


def whole_step(task, step=0):
    return [task.run_part(Position(step, part)) for part in range(task.parts)][-1]


class Figures:
    """A judge that gives every answer the figures that it is told."""

    batches_at_once = 1

    def __init__(self, of):
        self.of, self.asked = of, []

    def submit(self, asks):
        self.asked += asks
        done = Future()
        done.set_result([self.of(ask) for ask in asks])
        return done

    def confirm(self):
        """Nothing to look at."""


def surely(figure):
    return ChoiceReply(log_probabilities=tuple(0.0 if name == figure else -50.0 for name in FIGURES))


def judge_of(task, of):
    return replace(task.sampler, judge=JudgeReward(task.setup, Figures(of), "reward", is_exact=True))


def test_the_reward_of_an_answer_is_its_rating(task):
    found = task(kl_coefficient=0.0, whiten_advantages=False, discount=1.0)
    found.sampler = judge_of(found, lambda ask: surely("10" if len(ask.question) % 2 else "1"))
    rollout = found.sampler.sample(0, 0, kl_coefficient=0.0)
    asked = found.sampler.judge.answerer.asked
    expected = torch.tensor([1.0 if len(ask.question) % 2 else -1.0 for ask in asked])
    assert torch.allclose(rollout.score_B, expected)
    assert len(asked) == 8
    returns = rollout.score_B[:, None] * rollout.mask_BR
    assert torch.allclose(rollout.return_BR, returns), "one reward, at the end: the return of every token"
    assert torch.equal(rollout.value_BR, torch.zeros_like(rollout.value_BR)), "the value model starts at 0"
    assert torch.allclose(rollout.advantage_BR, returns)


def test_the_gradient_is_that_of_the_weighted_log_likelihood(task):
    """One step of plain SGD arithmetic: the gradient is the mean of -A grad log p, whatever the ratio's clip."""
    found = task(kl_coefficient=0.0, gradient_clip=1e9)
    found.run_part(Position(0, 0))
    rollout = found._rollout()
    module = found.models.trained.module
    logits = module(input_ids=rollout.sequences.ids_BT).logits.log_softmax(-1)
    rows, tokens = rollout.mask_BR.nonzero().unbind(1)
    column = rollout.sequences.prompt_tokens_B[rows] + tokens
    chosen = logits[rows, column - 1, rollout.sequences.ids_BT[rows, column]]
    (-(chosen * rollout.advantage_BR[rows, tokens]).mean()).backward()
    expected = torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None]).norm().item()
    module.zero_grad()
    report = found.run_part(Position(0, 1))
    assert report.metrics["gradient_norm"] == pytest.approx(expected, rel=1e-3)
    assert "clip_fraction" not in report.metrics


def test_a_real_judge_rates_from_its_likelihoods_and_both_models_learn(task):
    found = task()
    before = [torch.cat([p.flatten() for p in item.module.parameters()]).clone() for item in trained(found)]
    report = whole_step(found)
    assert -1 < report.metrics["reward_mean"] < 1
    after = [torch.cat([p.flatten() for p in item.module.parameters()]) for item in trained(found)]
    assert all((new - old).abs().max() > 1e-5 for new, old in zip(after, before, strict=True))
    assert whole_step(task()).metrics["reward_mean"] == report.metrics["reward_mean"], "the same again"


def trained(task):
    return task.models.trained, task.models.value


@pytest.mark.parametrize(
    "changes",
    [
        {},
        pytest.param({"estimator": "gae", "minibatch": 4, "ppo_epochs": 2}, marks=pytest.mark.thorough),
        pytest.param({"estimator": "rloo", "samples_per_prompt": 2}, marks=pytest.mark.thorough),
    ],
)
def test_a_stopped_stage_ends_with_the_same_bits(judged, tmp_path, changes):
    settings = DIRECT | {"episodes": 24, "checkpoint_every": 1, "checkpoint_epochs": True} | changes
    whole = stage(judged, tmp_path / "whole", "ppo", **settings)
    ppo.run(whole)
    again = run_in_two(stage(judged, tmp_path / "parts", "ppo", **settings), ppo, parts=3)
    assert farthest(weights(whole), weights(again)) == 0.0
    assert [line["reward_mean"] for line in metrics(whole)] == [line["reward_mean"] for line in metrics(again)]


def test_ratings_of_an_endpoint_are_kept_with_the_rollout_at_once(task):
    found = task()
    assert not found.must_save(Position(0, 1))
    found.sampler = replace(found.sampler, judge=replace(found.sampler.judge, is_exact=False))
    assert found.must_save(Position(0, 1))


def test_a_rollout_that_cannot_be_rated_stops_the_stage(task):
    found = task()
    silent = ChoiceReply(log_probabilities=None, problem="no log-probabilities given")
    found.sampler = judge_of(found, lambda ask: silent)
    with pytest.raises(StageError, match="no rating for 8 of 8 answers of rollout 0") as told:
        whole_step(found)
    assert "no log-probabilities given" in str(told.value)


def test_several_processes_are_refused(judged, tmp_path):
    setup = set_up(stage(judged, tmp_path / "two", "ppo", **DIRECT))
    setup.ranks = Ranks(world_size=2)
    with pytest.raises(DataError, match="one process"):
        ppo_task(setup)
