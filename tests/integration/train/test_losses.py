"""Losses, advantages and the KL controller against numbers worked out by hand."""

import math

import pytest

torch = pytest.importorskip("torch")

from charter.train.losses import bradley_terry
from charter.train.ppo_math import (
    generalised_advantages,
    shaped_rewards,
)
from charter.train.schedule import KlController

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("margin", "label", "loss"),
    [
        (0.0, 1.0, math.log(2)),
        (2.0, 1.0, math.log(1 + math.exp(-2))),
        (2.0, 0.0, math.log(1 + math.exp(2))),
        (2.0, 0.75, 0.75 * math.log(1 + math.exp(-2)) + 0.25 * math.log(1 + math.exp(2))),
    ],
)
def test_bradley_terry_on_hard_and_soft_labels(margin, label, loss):
    found = bradley_terry(torch.tensor([margin]), torch.tensor([label]))
    assert found.item() == pytest.approx(loss, abs=1e-6)


def test_soft_label_loss_is_least_where_the_model_says_the_label():
    label = torch.tensor([0.7])
    best = math.log(0.7 / 0.3)
    at_best = bradley_terry(torch.tensor([best]), label).item()
    assert all(bradley_terry(torch.tensor([best + d]), label).item() > at_best for d in (-0.5, -0.1, 0.1, 0.5))


def test_score_lands_on_the_last_real_token_and_kl_on_every_real_one():
    mask = torch.tensor([[True, True, False], [True, True, True]])
    rewards = shaped_rewards(
        torch.tensor([5.0, 7.0]),
        torch.tensor([[-1.0, -2.0, 0.0], [-1.0, -1.0, -1.0]]),
        torch.tensor([[-2.0, -2.0, 0.0], [-1.0, -3.0, -1.0]]),
        mask,
        kl_coefficient=0.5,
    )
    assert rewards.tolist() == [[-0.5, 5.0, 0.0], [0.0, -1.0, 7.0]]


def test_gae_by_hand():
    rewards = torch.tensor([[0.0, 0.0, 1.0]])
    values = torch.tensor([[0.5, 0.6, 0.7]])
    advantages, returns = generalised_advantages(
        rewards, values, torch.ones(1, 3, dtype=torch.bool), discount=0.9, gae_lambda=0.8
    )
    last = 1.0 - 0.7
    middle = 0.9 * 0.7 - 0.6 + 0.72 * last
    first = 0.9 * 0.6 - 0.5 + 0.72 * middle
    assert advantages[0].tolist() == pytest.approx([first, middle, last], abs=1e-6)
    assert returns[0].tolist() == pytest.approx([first + 0.5, middle + 0.6, last + 0.7], abs=1e-6)


def test_gae_ignores_padding_behind_the_answer():
    mask = torch.tensor([[True, True, False]])
    short, _ = generalised_advantages(
        torch.tensor([[0.0, 1.0]]), torch.tensor([[0.3, 0.4]]), mask[:, :2], discount=0.99, gae_lambda=0.95
    )
    padded, _ = generalised_advantages(
        torch.tensor([[0.0, 1.0, 7.0]]), torch.tensor([[0.3, 0.4, 9.0]]), mask, discount=0.99, gae_lambda=0.95
    )
    assert padded[0, :2].tolist() == pytest.approx(short[0].tolist())
    assert padded[0, 2].item() == 0.0


@pytest.mark.parametrize(("kl", "factor"), [(6.0, 1.0), (60.0, 1.02), (0.0, 0.98), (6.6, 1.01)])
def test_adaptive_kl_moves_by_at_most_a_fifth_of_n_over_horizon(kl, factor):
    controller = KlController(coefficient=0.1, target=6.0, horizon=100)
    controller.update(kl_nats=kl, answers=10)
    assert controller.coefficient == pytest.approx(0.1 * factor)


def test_fixed_kl_never_moves():
    controller = KlController(coefficient=0.1, target=None, horizon=100)
    controller.update(kl_nats=50.0, answers=64)
    assert controller.coefficient == 0.1
