"""Policy and value losses against numbers worked out by hand, and sums that add up however a batch is divided."""

import math

import pytest

torch = pytest.importorskip("torch")

from charter.train.losses import Summed, aggregate
from charter.train.ppo_math import (
    clipped_policy_loss,
    clipped_value_loss,
    entropy_bonus,
    kl_loss,
    kl_penalty,
    mismatch_kl,
    mismatch_weights,
    stops_update,
    update_kl,
)

pytestmark = pytest.mark.torch
# Three answers of 3, 1 and 2 tokens; what stands outside the mask must never count.
MASK = torch.tensor([[True, True, True], [True, False, False], [True, True, False]])
RATIO = torch.tensor([[1.5, 0.5, 1.5], [0.5, 1.0, 1.0], [1.1, 0.9, 1.0]])
ADVANTAGE = torch.tensor([[1.0, 1.0, -1.0], [-1.0, 5.0, 5.0], [2.0, -2.0, 5.0]])
JUNK = torch.tensor([[0.0, 0.0, 0.0], [0.0, -77.0, 55.0], [0.0, 0.0, -300.0]])
# -min(r A, clip(r, 0.8, 1.2) A), token by token:
# -min(1.5, 1.2), -min(0.5, 0.8), -min(-1.5, -1.2); -min(-0.5, -0.8); -min(2.2, 2.2), -min(-1.8, -1.8)
TERMS = [[-1.2, -0.5, 1.5], [0.8], [-2.2, 1.8]]


def policy_loss(**changes):
    return clipped_policy_loss(torch.log(RATIO) + JUNK, torch.zeros(3, 3), ADVANTAGE, MASK, clip_ratio=0.2, **changes)


def test_policy_loss_sums_the_worse_of_clipped_and_unclipped_over_real_tokens():
    loss, clipped = policy_loss()
    assert loss.total.item() == pytest.approx(-1.2 - 0.5 + 1.5 + 0.8 - 2.2 + 1.8, abs=1e-6)
    assert loss.count.item() == 6
    assert loss.mean.item() == pytest.approx(0.2 / 6, abs=1e-6)
    # 1.5, 0.5, 1.5 and 0.5 lie outside [0.8, 1.2]
    assert (clipped.total.item(), clipped.count.item()) == (4.0, 6)


def test_policy_loss_by_answers_gives_every_answer_the_same_weight():
    loss, clipped = policy_loss(aggregation="sequence")
    # means of the answers: -0.2 / 3, 0.8 and -0.4 / 2
    assert loss.total.item() == pytest.approx(-0.2 / 3 + 0.8 - 0.2, abs=1e-6)
    assert loss.count.item() == 3
    assert clipped.count.item() == 6


def test_weights_of_a_mismatch_multiply_each_token():
    weight = torch.tensor([[2.0, 1.0, 0.5], [3.0, 9.0, 9.0], [1.0, 0.25, 9.0]])
    loss, _ = policy_loss(weight_BR=weight)
    assert loss.total.item() == pytest.approx(-2.4 - 0.5 + 0.75 + 2.4 - 2.2 + 0.45, abs=1e-6)


def test_policy_gradient_is_minus_ratio_times_advantage_and_nothing_where_clipping_binds():
    log_probability = (torch.log(RATIO) + JUNK).requires_grad_()
    loss, clipped = clipped_policy_loss(log_probability, torch.zeros(3, 3), ADVANTAGE, MASK, clip_ratio=0.2)
    loss.total.backward()
    # the gradient of -r A in log p is -r A; clipping binds at 1.5 with A = 1 and at 0.5 with A = -1
    wanted = [0.0, -0.5, 1.5, 0.0, 0.0, 0.0, -2.2, 1.8, 0.0]
    assert log_probability.grad.flatten().tolist() == pytest.approx(wanted, abs=1e-6)
    assert not clipped.total.requires_grad


def test_value_loss_is_half_the_larger_squared_error():
    # token 1: V = 2, held at 0.2, G = 2: (0.2 - 2)^2; token 2: V = 3, held at 0.2, G = 0: 3^2; token 3 counts not
    value = torch.tensor([[2.0, 3.0, 50.0]])
    returns = torch.tensor([[2.0, 0.0, 0.0]])
    mask = torch.tensor([[True, True, False]])
    loss = clipped_value_loss(value, torch.zeros(1, 3), returns, mask, value_clip=0.2)
    assert loss.total.item() == pytest.approx((3.24 + 9) / 2, abs=1e-5)
    assert loss.count.item() == 2
    by_answer = clipped_value_loss(value, torch.zeros(1, 3), returns, mask, value_clip=0.2, aggregation="sequence")
    assert by_answer.total.item() == pytest.approx((3.24 + 9) / 4, abs=1e-5)


def test_value_is_held_around_the_old_value_on_both_sides():
    old, returns, mask = torch.full((1, 2), 1.0), torch.tensor([[0.0, 2.0]]), torch.ones(1, 2).bool()
    # below: V = 0, held at 0.5, G = 0: 0.5^2; above: V = 2, held at 1.5, G = 2: 0.5^2
    loss = clipped_value_loss(torch.tensor([[0.0, 2.0]]), old, returns, mask, value_clip=0.5)
    assert loss.total.item() == pytest.approx(0.25, abs=1e-6)


@pytest.mark.parametrize(
    ("estimator", "wanted"),
    [("k1", [math.log(2), -math.log(4), 0.0]), ("k3", [0.5 - 1 + math.log(2), 4 - 1 - math.log(4), 0.0])],
)
def test_kl_penalty_by_hand(estimator, wanted):
    policy, reference = torch.tensor([0.5, 0.125, 0.3]), torch.tensor([0.25, 0.5, 0.3])
    found = kl_penalty(torch.log(policy), torch.log(reference), estimator=estimator)
    assert found.tolist() == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_kl_estimates_are_unbiased_for_tokens_of_the_policy(estimator):
    policy, reference = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.2, 0.3, 0.5])
    exact = 0.7 * math.log(0.7 / 0.2) + 0.2 * math.log(0.2 / 0.3) + 0.1 * math.log(0.1 / 0.5)
    mean = (policy * kl_penalty(torch.log(policy), torch.log(reference), estimator=estimator)).sum()
    assert mean.item() == pytest.approx(exact, abs=1e-6)


def test_kl_in_the_loss_pulls_the_policy_to_the_reference():
    log_probability = torch.log(torch.tensor([[0.5, 0.125, 0.9]])).requires_grad_()
    reference = torch.log(torch.tensor([[0.25, 0.5, 0.1]]))
    loss = kl_loss(log_probability, reference, torch.tensor([[True, True, False]]))
    assert loss.total.item() == pytest.approx((0.5 - 1 + math.log(2)) + (4 - 1 - math.log(4)), abs=1e-6)
    loss.total.backward()
    # d/d log p of exp(-d) - 1 + d is 1 - exp(-d): 1 - 1/2 and 1 - 4
    assert log_probability.grad.tolist()[0] == pytest.approx([0.5, -3.0, 0.0], abs=1e-6)


def test_entropy_counts_real_tokens_and_has_its_gradient():
    entropy = torch.tensor([[1.0, 2.0, 3.0], [4.0, 90.0, 90.0], [0.5, 0.5, 90.0]], requires_grad=True)
    found = entropy_bonus(entropy, MASK)
    assert (found.total.item(), found.count.item()) == (11.0, 6)
    assert entropy_bonus(entropy, MASK, aggregation="sequence").total.item() == pytest.approx(2 + 4 + 0.5)
    found.total.backward()
    assert entropy.grad.tolist() == MASK.float().tolist()


def test_update_kl_is_of_the_old_policy_from_the_new():
    # tokens were drawn from old, r = new / old: r - 1 - log r
    old, new = torch.log(torch.tensor([[0.25, 0.5, 0.9]])), torch.log(torch.tensor([[0.5, 0.25, 0.1]]))
    found = update_kl(new.requires_grad_(), old, torch.tensor([[True, True, False]]))
    assert found.total.item() == pytest.approx((2 - 1 - math.log(2)) + (0.5 - 1 + math.log(2)), abs=1e-6)
    one = update_kl(new, old, torch.tensor([[True, False, False]]))
    assert one.total.item() == pytest.approx(2 - 1 - math.log(2), abs=1e-6)
    assert not found.total.requires_grad


@pytest.mark.parametrize(
    ("found", "limit", "stops"),
    [(0.021, 0.02, True), (0.02, 0.02, False), (0.0, 0.02, False), (1e9, None, False), (math.nan, 0.02, True)],
)
def test_epochs_stop_beyond_the_limit_only(found, limit, stops):
    assert stops_update(found, limit) is stops


def test_mismatch_weights_are_cut_above_and_not_below():
    trainer = torch.log(torch.tensor([[0.6, 0.1, 0.3, 0.5]])).requires_grad_()
    generator = torch.log(torch.tensor([[0.1, 0.4, 0.2, 0.001]]))
    mask = torch.tensor([[True, True, True, False]])
    found = mismatch_weights(trainer, generator, mask, high=2.0)
    # 6 cut to 2, 1/4 kept, 3/2 kept, 1 outside the mask
    assert found.tolist()[0] == pytest.approx([2.0, 0.25, 1.5, 1.0], abs=1e-6)
    assert not found.requires_grad


def test_a_generator_that_agrees_has_weights_of_exactly_one():
    same = torch.log(torch.tensor([[0.1, 0.77, 0.3]]))
    assert mismatch_weights(same, same.clone(), torch.ones(1, 3).bool(), high=1.0).tolist() == [[1.0, 1.0, 1.0]]


def test_mismatch_kl_is_of_the_generator_from_the_trainer():
    generator, trainer = torch.log(torch.tensor([[0.25]])), torch.log(torch.tensor([[0.5]]))
    found = mismatch_kl(trainer, generator, torch.ones(1, 1).bool())
    assert found.mean.item() == pytest.approx(2 - 1 - math.log(2), abs=1e-6)


def test_answers_without_tokens_and_empty_shares_count_nothing():
    empty = torch.zeros(2, 3).bool()
    for aggregation in ("token", "sequence"):
        found = aggregate(torch.full((2, 3), math.nan), empty, aggregation)
        assert (found.total.item(), found.count.item(), found.mean.item()) == (0.0, 0, 0.0)
        none = aggregate(torch.zeros(0, 3), torch.zeros(0, 3).bool(), aggregation)
        assert (none.total.item(), none.count.item()) == (0.0, 0)


DIVISIONS = [[[0, 1, 2]], [[0], [1], [2]], [[2, 0], [1]], [[1], [2, 0], []]]


@pytest.mark.parametrize("aggregation", ["token", "sequence"])
@pytest.mark.parametrize("division", DIVISIONS, ids=str)
def test_every_loss_of_a_batch_is_the_sum_of_its_parts_gradient_included(aggregation, division):
    values = torch.tensor([[0.3, 0.1, -0.2], [1.0, 9.0, 9.0], [-0.5, 0.4, 9.0]])

    def losses(rows):
        log_probability = (torch.log(RATIO[rows]) + JUNK[rows]).requires_grad_()
        mask, old = MASK[rows], torch.full((len(rows), 3), 0.05)
        policy, clipped = clipped_policy_loss(
            log_probability, old, ADVANTAGE[rows], mask, clip_ratio=0.2, aggregation=aggregation
        )
        found = {
            "policy": policy,
            "clipped": clipped,
            "value": clipped_value_loss(
                values[rows], old, ADVANTAGE[rows], mask, value_clip=0.2, aggregation=aggregation
            ),
            "kl": kl_loss(log_probability, old, mask, aggregation=aggregation),
            "entropy": entropy_bonus(values[rows], mask, aggregation=aggregation),
            "update_kl": update_kl(log_probability, old, mask),
        }
        (policy.total + found["kl"].total).backward()
        return found, log_probability.grad

    whole, gradient = losses([0, 1, 2])
    parts = [losses(rows) for rows in division]
    for name, wanted in whole.items():
        nothing = Summed(torch.tensor(0.0), torch.tensor(0))
        total = sum((found[name] for found, _ in parts), nothing)
        assert total.mean.item() == pytest.approx(wanted.mean.item(), abs=1e-6), name
        assert total.count.item() == wanted.count.item()
    order = [row for rows in division for row in rows]
    found = torch.cat([part for _, part in parts])[torch.tensor(order).argsort()]
    assert torch.allclose(found, gradient, atol=1e-6)


def test_a_sum_is_told_as_plain_numbers():
    assert Summed(torch.tensor(1.5), torch.tensor(3)).named("kl") == {"kl": 1.5, "kl_count": 3.0}
