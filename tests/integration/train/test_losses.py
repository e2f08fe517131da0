"""Losses, advantages and the KL controller against numbers worked out by hand."""

import math

import pytest

torch = pytest.importorskip("torch")

from charter.train.advantages import generalised_advantages, shaped_rewards, whiten  # noqa: E402
from charter.train.kl_controller import KlController  # noqa: E402
from charter.train.losses import (  # noqa: E402
    bradley_terry,
    clipped_policy_loss,
    clipped_value_loss,
    kl_estimate,
    masked_mean,
    summed_cross_entropy,
)

pytestmark = pytest.mark.torch


def test_cross_entropy_counts_only_the_counted_tokens_and_sums_them():
    logits = torch.log(torch.tensor([[[0.5, 0.25, 0.25], [0.1, 0.8, 0.1], [1 / 3, 1 / 3, 1 / 3]]]))
    ids = torch.tensor([[2, 0, 1]])
    both = summed_cross_entropy(logits, ids, torch.tensor([[True, True, True]]))
    last = summed_cross_entropy(logits, ids, torch.tensor([[False, False, True]]))
    assert both.item() == pytest.approx(-math.log(0.5) - math.log(0.8), abs=1e-6)
    assert last.item() == pytest.approx(-math.log(0.8), abs=1e-6)


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


def test_policy_loss_takes_the_worse_of_clipped_and_unclipped():
    ratio = torch.tensor([1.5, 0.5, 1.5, 0.5])
    advantage = torch.tensor([1.0, 1.0, -1.0, -1.0])
    mask = torch.ones(4, dtype=torch.bool)
    loss, share = clipped_policy_loss(torch.log(ratio), torch.zeros(4), advantage, mask, clip_ratio=0.2)
    # r A and clip(r) A: min(1.5, 1.2), min(0.5, 0.8), min(-1.5, -1.2), min(-0.5, -0.8)
    assert loss.item() == pytest.approx(-(1.2 + 0.5 - 1.5 - 0.8) / 4, abs=1e-6)
    assert share.item() == 1.0


def test_policy_loss_gives_no_gradient_where_clipping_binds():
    log_probability = torch.log(torch.tensor([1.5, 1.1])).requires_grad_()
    loss, _ = clipped_policy_loss(
        log_probability, torch.zeros(2), torch.ones(2), torch.ones(2, dtype=torch.bool), clip_ratio=0.2
    )
    loss.backward()
    assert log_probability.grad[0].item() == 0.0
    assert log_probability.grad[1].item() == pytest.approx(-0.55, abs=1e-6)


def test_value_loss_takes_the_larger_error():
    loss = clipped_value_loss(
        torch.tensor([2.0]), torch.tensor([0.0]), torch.tensor([2.0]), torch.tensor([True]), value_clip=0.2
    )
    assert loss.item() == pytest.approx(0.5 * (0.2 - 2.0) ** 2, abs=1e-6)


def test_kl_estimate_is_never_negative_and_matches_its_formula():
    difference = torch.linspace(-3, 3, 13)
    found = kl_estimate(difference, torch.zeros(13))
    assert (found >= 0).all()
    assert found[-1].item() == pytest.approx(math.exp(-3) - 1 + 3, abs=1e-5)


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


def test_whitened_values_have_mean_zero_and_variance_one_over_the_mask():
    values, mask = torch.tensor([[1.0, 2.0, 100.0], [3.0, 6.0, 100.0]]), torch.tensor([[True, True, False]] * 2)
    found = whiten(values, mask)
    assert masked_mean(found, mask).item() == pytest.approx(0, abs=1e-6)
    assert masked_mean(found**2, mask).item() == pytest.approx(1, abs=1e-5)
    assert found[:, 2].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(("kl", "factor"), [(6.0, 1.0), (60.0, 1.02), (0.0, 0.98), (6.6, 1.01)])
def test_adaptive_kl_moves_by_at_most_a_fifth_of_n_over_horizon(kl, factor):
    controller = KlController(coefficient=0.1, target=6.0, horizon=100)
    controller.update(kl_nats=kl, answers=10)
    assert controller.coefficient == pytest.approx(0.1 * factor)


def test_fixed_kl_never_moves():
    controller = KlController(coefficient=0.1, target=None, horizon=100)
    controller.update(kl_nats=50.0, answers=64)
    assert controller.coefficient == 0.1
