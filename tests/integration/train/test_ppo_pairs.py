"""Online DPO: the better of two answers against the worse, drawn by the policy and ranked by the reward."""

import math

import pytest

torch = pytest.importorskip("torch")

from engine_bench import metrics, stage

from charter.artifacts.checkpoints import Position
from charter.train.loop import Loop
from charter.train.losses import dpo_loss, ranked_dpo_loss
from charter.train.ppo import ppo_task
from charter.train.setup import set_up

pytestmark = pytest.mark.torch
PAIRS = {
    "estimator": "online_dpo",
    "samples_per_prompt": 2,
    "kl_coefficient": 0.5,
    "episodes": 24,
    "minibatch": 8,
    "ppo_epochs": 1,
    "learning_rate": 1e-2,
    "dtype": "fp32",
}


@pytest.fixture
def task(engine_inputs, tmp_path):
    """(changes of the spec) -> a task that learns from pairs, ready to be run part by part."""
    count = iter(range(100))

    def make(frozen=None, **changes):
        found = stage(engine_inputs, tmp_path / f"pairs-{next(count)}", "ppo", frozen=frozen, **{**PAIRS, **changes})
        made, _ = ppo_task(set_up(found))
        Loop(made.setup, made)
        return made

    return make


@pytest.mark.parametrize(("minibatch", "micro_batch"), [(8, 0), (8, 4), (4, 1), (8, 3)])
def test_both_answers_of_a_pair_share_a_micro_batch(task, minibatch, micro_batch):
    parts = task(frozen={"micro_batch": micro_batch}, minibatch=minibatch).sampler.micro_batches(1, 0)
    rows = [part.tolist() for whole in parts for part in whole]
    assert sorted(row for part in rows for row in part) == list(range(8))
    assert len(parts) == 8 // minibatch
    assert {len(part) for part in rows} == {max(2, micro_batch // 2 * 2) if micro_batch else minibatch}
    for part in rows:
        assert all(first % 2 == 0 and second == first + 1 for first, second in zip(part[::2], part[1::2], strict=True))


def test_the_better_answer_is_the_chosen_one(task):
    found = task(ppo_epochs=2)  # else the update itself would say the log-probabilities
    found.run_part(Position(0, 0))
    rollout = found._rollout()
    now, start, mask = rollout.log_probability_BR, rollout.reference_BR, rollout.mask_BR
    score = torch.tensor([1.0, 2.0, 5.0, 3.0, 0.5, 0.5, -1.0, -2.0])
    moved = now + 0.1 * torch.arange(8.0)[:, None] * mask
    pairs = ranked_dpo_loss(moved, start, score, mask, beta=0.5)
    chosen, rejected = torch.tensor([1, 2, 6]), torch.tensor([0, 3, 7])
    sums, base = (moved * mask).sum(1), (start * mask).sum(1)
    wanted = dpo_loss(sums[chosen], sums[rejected], base[chosen], base[rejected], torch.ones(3), beta=0.5)
    margin = wanted.chosen_reward_B - wanted.rejected_reward_B
    assert pairs["policy_loss"].mean.item() == pytest.approx(wanted.loss_B.mean().item(), rel=1e-5)
    assert pairs["policy_loss"].count == 3
    assert pairs["pair_margin"].mean.item() == pytest.approx(margin.mean().item(), rel=1e-4)
    assert pairs["pair_accuracy"].mean.item() == pytest.approx((margin > 0).float().mean().item())
    without_one = ranked_dpo_loss(moved, start, score, mask & (torch.arange(8) != 2)[:, None], beta=0.5)
    assert without_one["policy_loss"].count == 2


def test_it_learns_to_prefer_what_the_reward_prefers(task):
    found = task(episodes=48)
    found.train()
    seen = metrics(found.setup.stage)
    assert seen[0]["policy_loss"] == pytest.approx(math.log(2), abs=1e-5)
    assert seen[0]["pair_margin"] == pytest.approx(0.0, abs=1e-5)
    assert seen[0]["kl_reward"] == 0.0
    assert "clip_fraction" not in seen[0]


def test_epochs_over_a_rollout_raise_its_margin(task):
    found = task(episodes=8, ppo_epochs=6, learning_rate=2e-3)
    reports = [found.run_part(Position(0, part)) for part in range(found.parts)]
    measured = reports[-1].metrics
    assert measured["pair_margin"] > 0.02
    assert measured["pair_accuracy"] > 0.6
    assert measured["policy_loss"] < math.log(2)


def test_micro_batches_do_not_change_the_update(task):
    states = []
    for micro_batch in (0, 1):
        found = task(frozen={"micro_batch": micro_batch})
        for part in range(found.parts):
            found.run_part(Position(0, part))
        states.append(torch.cat([value.flatten() for value in found.models.trained.module.state_dict().values()]))
    assert (states[0] - states[1]).abs().max() < 2e-3
