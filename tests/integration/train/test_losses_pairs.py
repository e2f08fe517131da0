"""Losses of preference pairs against numbers worked out by hand."""

import math

import pytest

torch = pytest.importorskip("torch")

from charter.train.losses import dpo_loss, ipo_loss, kto_loss, orpo_loss, preference_loss, simpo_loss, smoothed

pytestmark = pytest.mark.torch


def minus_log_sigmoid(x):
    return math.log(1 + math.exp(-x))


def tensors(*numbers):
    return [torch.tensor([number]) for number in numbers]


@pytest.mark.parametrize(("label", "smoothing", "wanted"), [(1.0, 0.1, 0.9), (0.0, 0.1, 0.1), (0.8, 0.25, 0.65)])
def test_smoothing_moves_a_label_towards_the_other_answer(label, smoothing, wanted):
    # 0.8 * 0.75 + 0.2 * 0.25 = 0.65
    assert smoothed(torch.tensor([label]), smoothing).item() == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize(
    ("label", "changes", "wanted"),
    [
        (1.0, {}, minus_log_sigmoid(2)),
        (0.0, {}, minus_log_sigmoid(-2)),
        (0.75, {}, 0.75 * minus_log_sigmoid(2) + 0.25 * minus_log_sigmoid(-2)),
        (1.0, {"label_smoothing": 0.2}, 0.8 * minus_log_sigmoid(2) + 0.2 * minus_log_sigmoid(-2)),
        (1.0, {"margin_B": torch.tensor([1.5])}, minus_log_sigmoid(0.5)),
        (0.0, {"margin_B": torch.tensor([1.5])}, minus_log_sigmoid(-0.5)),
        (1.0, {"center_weight": 0.1}, minus_log_sigmoid(2) + 0.1 * (3 + 1) ** 2),
    ],
)
def test_preference_loss_of_scores_three_and_one(label, changes, wanted):
    chosen, rejected, probability = tensors(3.0, 1.0, label)
    found = preference_loss(chosen, rejected, probability, **changes)
    assert found.shape == (1,)
    assert found.item() == pytest.approx(wanted, abs=1e-6)


def test_centering_pulls_the_sum_of_scores_to_zero_and_leaves_their_difference():
    scores = torch.tensor([3.0, 1.0], requires_grad=True)
    plain = preference_loss(scores[:1], scores[1:], torch.ones(1))
    with_centering = preference_loss(scores[:1], scores[1:], torch.ones(1), center_weight=0.5)
    (with_centering - plain).sum().backward()
    # d/dr of 0.5 (r1 + r2)^2 is r1 + r2, for both
    assert scores.grad.tolist() == pytest.approx([4.0, 4.0], abs=1e-5)


@pytest.mark.parametrize(
    ("label", "smoothing", "wanted"),
    [
        (1.0, 0.0, minus_log_sigmoid(0.8)),
        (0.0, 0.0, minus_log_sigmoid(-0.8)),
        (0.7, 0.0, 0.7 * minus_log_sigmoid(0.8) + 0.3 * minus_log_sigmoid(-0.8)),
        (1.0, 0.1, 0.9 * minus_log_sigmoid(0.8) + 0.1 * minus_log_sigmoid(-0.8)),
    ],
)
def test_dpo_by_hand(label, smoothing, wanted):
    # policy: chosen -10, rejected -14; reference: -13 and -13. beta 0.2: rewards 0.2 * 3 and 0.2 * -1, h = 0.8
    found = dpo_loss(*tensors(-10.0, -14.0, -13.0, -13.0, label), beta=0.2, label_smoothing=smoothing)
    assert found.chosen_reward_B.item() == pytest.approx(0.6, abs=1e-6)
    assert found.rejected_reward_B.item() == pytest.approx(-0.2, abs=1e-6)
    assert found.loss_B.item() == pytest.approx(wanted, abs=1e-6)


def test_dpo_at_the_reference_is_log_two_and_pushes_the_answers_apart():
    chosen, rejected = torch.tensor([-5.0], requires_grad=True), torch.tensor([-9.0], requires_grad=True)
    found = dpo_loss(chosen, rejected, *tensors(-5.0, -9.0, 1.0), beta=0.3)
    assert found.loss_B.item() == pytest.approx(math.log(2), abs=1e-6)
    found.loss_B.sum().backward()
    # -beta s(-h) and +beta s(-h) with s(0) = 1/2
    assert chosen.grad.item() == pytest.approx(-0.15, abs=1e-6)
    assert rejected.grad.item() == pytest.approx(0.15, abs=1e-6)
    assert not found.chosen_reward_B.requires_grad
    assert not found.rejected_reward_B.requires_grad


@pytest.mark.parametrize(
    ("label", "smoothing", "wanted"),
    [(1.0, 0.0, 2.25), (0.0, 0.0, 42.25), (0.7, 0.0, 0.7 * 2.25 + 0.3 * 42.25), (1.0, 0.1, 0.9 * 2.25 + 0.1 * 42.25)],
)
def test_ipo_by_hand(label, smoothing, wanted):
    # as above: log-ratios 3 and -1, d = 4; 1 / (2 * 0.2) = 2.5, (4 - 2.5)^2 = 2.25, (4 + 2.5)^2 = 42.25
    found = ipo_loss(*tensors(-10.0, -14.0, -13.0, -13.0, label), beta=0.2, label_smoothing=smoothing)
    assert found.loss_B.item() == pytest.approx(wanted, rel=1e-6)
    assert found.chosen_reward_B.item() == pytest.approx(0.6, abs=1e-6)
    assert found.rejected_reward_B.item() == pytest.approx(-0.2, abs=1e-6)


@pytest.mark.parametrize(("label", "distance"), [(1.0, 5.0), (0.75, 2.5), (0.5, 0.0)])
def test_ipo_is_least_at_its_aim_where_dpo_pushes_on(label, distance):
    # beta 0.1: (2 p - 1) / (2 beta) nats
    slopes = []
    for loss in (ipo_loss, dpo_loss):
        chosen = torch.tensor([-5.0 + distance], requires_grad=True)
        found = loss(chosen, *tensors(-9.0, -5.0, -9.0, label), beta=0.1)
        found.loss_B.sum().backward()
        slopes.append(chosen.grad.item())
        assert not found.chosen_reward_B.requires_grad
    assert slopes[0] == pytest.approx(0.0, abs=1e-5)
    if label == 1.0:
        assert slopes[1] < -0.01


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


@pytest.mark.parametrize("point", [0.0, 2.0])
@pytest.mark.parametrize(("label", "smoothing", "share"), [(1.0, 0.0, 1.0), (0.0, 0.0, 0.0), (0.8, 0.25, 0.65)])
def test_kto_by_hand(label, smoothing, share, point):
    # as above: log-ratios 3 and -1, each against the reference point by itself
    answers = tensors(-10.0, -14.0, -13.0, -13.0, label)
    found = kto_loss(*answers, beta=0.2, reference_point=torch.tensor(point), label_smoothing=smoothing)
    chosen, rejected = 0.2 * (3 - point), 0.2 * (-1 - point)
    right = sigmoid(-chosen) + sigmoid(rejected)
    swapped = sigmoid(chosen) + sigmoid(-rejected)
    assert found.loss_B.item() == pytest.approx((share * right + (1 - share) * swapped) / 2, abs=1e-6)
    assert found.chosen_reward_B.item() == pytest.approx(0.6, abs=1e-6)
    assert found.rejected_reward_B.item() == pytest.approx(-0.2, abs=1e-6)


def test_kto_pushes_each_answer_by_itself():
    chosen, rejected = torch.tensor([-5.0], requires_grad=True), torch.tensor([-5.0], requires_grad=True)
    kto_loss(chosen, rejected, *tensors(-5.0, -9.0, 1.0), beta=0.4, reference_point=torch.tensor(0.0)).loss_B.backward()
    # beta s(x) (1 - s(x)) / 2 at x = 0 and at x = 0.4 * 4
    assert chosen.grad.item() == pytest.approx(-0.4 * 0.25 / 2, abs=1e-6)
    assert rejected.grad.item() == pytest.approx(0.4 * sigmoid(1.6) * sigmoid(-1.6) / 2, abs=1e-6)


@pytest.mark.parametrize(("label", "smoothing", "share"), [(1.0, 0.0, 1.0), (0.0, 0.0, 0.0), (0.8, 0.25, 0.65)])
def test_simpo_by_hand(label, smoothing, share):
    """The margin is asked of whichever answer is the better one."""
    chosen, rejected, probability = tensors(-0.5, -1.5, label)
    found = simpo_loss(chosen, rejected, probability, beta=2.0, target_margin=0.5, label_smoothing=smoothing)
    wanted = -share * math.log(sigmoid(1.5)) - (1 - share) * math.log(sigmoid(-2.5))
    assert found.loss_B.item() == pytest.approx(wanted, abs=1e-6)
    assert (found.chosen_reward_B.item(), found.rejected_reward_B.item()) == (-1.0, -3.0)


@pytest.mark.parametrize(("label", "smoothing", "share"), [(1.0, 0.0, 1.0), (0.0, 0.0, 0.0), (0.8, 0.25, 0.65)])
def test_orpo_by_hand(label, smoothing, share):
    """Probabilities of a token of 0.8 and 0.5: odds of 4 and 1."""
    chosen, rejected, probability = tensors(math.log(0.8), math.log(0.5), label)
    found = orpo_loss(chosen, rejected, probability, beta=0.1, label_smoothing=smoothing)
    right = -math.log(0.8) - 0.1 * math.log(4 / 5)
    swapped = -math.log(0.5) - 0.1 * math.log(1 / 5)
    assert found.loss_B.item() == pytest.approx(share * right + (1 - share) * swapped, abs=1e-6)
    assert found.chosen_reward_B.item() == pytest.approx(0.1 * math.log(0.8), abs=1e-6)


def test_orpo_of_a_certain_answer_is_finite():
    chosen, rejected = torch.zeros(1, requires_grad=True), torch.zeros(1, requires_grad=True)
    loss = orpo_loss(chosen, rejected, torch.ones(1), beta=0.1).loss_B
    loss.sum().backward()
    assert all(item.isfinite().all() for item in (loss, chosen.grad, rejected.grad))
