"""Rewards, advantages and estimators against numbers worked out by hand; a batch in shares equals the whole."""

import math

import pytest

torch = pytest.importorskip("torch")

from charter.train.ppo_math import (
    answer_scores,
    degenerate_groups,
    generalised_advantages,
    grpo_advantages,
    normalised_advantages,
    reinforce_advantages,
    rloo_advantages,
    shaped_rewards,
    whiten,
)

pytestmark = pytest.mark.torch


def test_scores_are_clipped_on_both_sides_and_then_fined_for_a_missing_end():
    score = torch.tensor([9.0, -9.0, 1.0, 9.0])
    ended = torch.tensor([True, False, False, False])
    assert answer_scores(score, ended).tolist() == [9.0, -9.0, 1.0, 9.0]
    assert answer_scores(score, ended, reward_clip=4.0).tolist() == [4.0, -4.0, 1.0, 4.0]
    assert answer_scores(score, ended, missing_end_penalty=0.5).tolist() == [9.0, -9.5, 0.5, 8.5]
    assert answer_scores(score, ended, reward_clip=4.0, missing_end_penalty=0.5).tolist() == [4.0, -4.5, 0.5, 3.5]


def test_k3_is_taken_off_every_real_token_and_the_score_lands_on_the_last():
    policy = torch.log(torch.tensor([[0.5, 0.125, 0.9], [0.3, 0.3, 0.5]]))
    reference = torch.log(torch.tensor([[0.25, 0.5, 0.1], [0.3, 0.3, 0.25]]))
    mask = torch.tensor([[True, True, False], [True, True, True]])
    found = shaped_rewards(torch.tensor([5.0, 7.0]), policy, reference, mask, kl_coefficient=2.0, kl_estimator="k3")
    wanted = [[-2 * (math.log(2) - 0.5), 5 - 2 * (3 - math.log(4)), 0.0], [0.0, 0.0, 7 - 2 * (math.log(2) - 0.5)]]
    assert found[0].tolist() == pytest.approx(wanted[0], abs=1e-5)
    assert found[1].tolist() == pytest.approx(wanted[1], abs=1e-5)


def test_an_answer_without_tokens_earns_nothing():
    found = shaped_rewards(
        torch.tensor([5.0]), torch.ones(1, 2), torch.zeros(1, 2), torch.zeros(1, 2).bool(), kl_coefficient=1.0
    )
    assert found.tolist() == [[0.0, 0.0]]


def test_a_cut_answer_goes_on_with_the_value_behind_it_and_a_finished_one_does_not():
    rewards = torch.tensor([[0.0, 1.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    values = torch.tensor([[0.5, 0.6, 9.0], [0.5, 0.6, 9.0], [0.1, 0.2, 0.3]])
    mask = torch.tensor([[True, True, False], [True, True, False], [True, True, True]])
    advantages, returns = generalised_advantages(
        rewards,
        values,
        mask,
        discount=0.9,
        gae_lambda=0.5,
        bootstrap_B=torch.tensor([2.0, 2.0, 4.0]),
        ended_B=torch.tensor([False, True, False]),
    )
    # cut: delta_2 = 1 + 0.9 * 2 - 0.6 = 2.2, A_1 = 0.9 * 0.6 - 0.5 + 0.45 * 2.2
    assert advantages[0].tolist() == pytest.approx([0.04 + 0.45 * 2.2, 2.2, 0.0], abs=1e-6)
    # ended: delta_2 = 1 - 0.6 = 0.4
    assert advantages[1].tolist() == pytest.approx([0.04 + 0.45 * 0.4, 0.4, 0.0], abs=1e-6)
    # cut at the full width: delta_3 = 1 + 3.6 - 0.3 = 4.3, delta_2 = 0.27 - 0.2, delta_1 = 0.18 - 0.1
    second = 0.07 + 0.45 * 4.3
    assert advantages[2].tolist() == pytest.approx([0.08 + 0.45 * second, second, 4.3], abs=1e-6)
    assert returns[0].tolist() == pytest.approx([0.54 + 0.45 * 2.2, 2.8, 0.0], abs=1e-6)


def test_a_cut_answer_with_no_value_behind_it_is_as_if_it_had_ended():
    rewards, values, mask = torch.tensor([[0.0, 1.0]]), torch.tensor([[0.5, 0.6]]), torch.ones(1, 2).bool()
    plain = generalised_advantages(rewards, values, mask, discount=0.9, gae_lambda=0.5)
    same = generalised_advantages(
        rewards,
        values,
        mask,
        discount=0.9,
        gae_lambda=0.5,
        bootstrap_B=torch.zeros(1),
        ended_B=torch.tensor([False]),
    )
    assert plain[0].tolist() == same[0].tolist()
    assert plain[1].tolist() == same[1].tolist()


def test_whitening_by_hand():
    # 1, 2, 3, 6: mean 3, variance (4 + 1 + 0 + 9) / 4 = 3.5
    values = torch.tensor([[1.0, 2.0, 100.0], [3.0, 6.0, math.nan]])
    found = whiten(values, torch.tensor([[True, True, False]] * 2))
    root = math.sqrt(3.5)
    assert found.flatten().tolist() == pytest.approx([-2 / root, -1 / root, 0.0, 0.0, 3 / root, 0.0], abs=1e-6)
    assert found.dtype == torch.float32


def test_equal_values_are_whitened_to_zero():
    assert whiten(torch.full((2, 2), 0.1), torch.ones(2, 2).bool()).abs().max().item() == 0.0


@pytest.mark.parametrize("cut", [0, 1, 2, 4])
def test_shares_of_a_batch_are_whitened_as_the_whole(cut):
    """Processes add up their sums; the sums of two shares are worked out first, then handed to both."""
    values = torch.tensor([[1.0, 2.0, 9.0], [3.0, 6.0, -4.0], [0.5, 0.0, 0.0], [7.0, 7.0, 1.0]])
    mask = torch.tensor([[True, True, False], [True, True, True], [True, False, False], [True, True, True]])
    whole = whiten(values, mask)
    shares = [(values[:cut], mask[:cut]), (values[cut:], mask[cut:])]
    agreed = []
    for number in range(2):
        given = []

        def answer(sums, given=given):
            given.append(sums)
            if len(given) <= len(agreed):
                return agreed[len(given) - 1]
            raise StopIteration

        found = []
        for share in shares:
            given.clear()
            with pytest.raises(StopIteration):
                whiten(*share, total=answer)
            found.append(given[number])
        agreed.append(found[0] + found[1])
    results = []
    for share in shares:
        left = iter(agreed)
        results.append(whiten(*share, total=lambda sums, left=left: next(left)))
    assert torch.allclose(torch.cat(results), whole, atol=1e-6)


def test_leave_one_out_by_hand():
    # returns of prompt 1: 1, 2, 6; of prompt 2: 0, 0, 3 (sums over real tokens)
    rewards = torch.tensor(
        [[0.5, 0.5, 9.0], [2.0, 9.0, 9.0], [3.0, 2.0, 1.0], [0.0, 0.0, 0.0], [1.0, -1.0, 9.0], [3.0, 9.0, 9.0]]
    )
    mask = torch.tensor(
        [[True, True, False], [True, False, False], [True] * 3, [True] * 3, [True, True, False], [True, False, False]]
    )
    found = rloo_advantages(rewards, mask, samples=3)
    # 1 - (2 + 6) / 2, 2 - (1 + 6) / 2, 6 - (1 + 2) / 2; 0 - (0 + 3) / 2, the same, 3 - 0
    wanted = [-3.0, -1.5, 4.5, -1.5, -1.5, 3.0]
    assert found.tolist() == (torch.tensor(wanted)[:, None] * mask).tolist()


def test_group_normalisation_by_hand():
    score = torch.tensor([1.0, 2.0, 6.0, 4.0, 4.0, 7.0])
    mask = torch.tensor([[True, True], [True, False]] * 3)
    found = grpo_advantages(score, mask, samples=3)
    # prompt 1: mean 3, deviation sqrt((4 + 1 + 9) / 2); prompt 2: mean 5, deviation sqrt((1 + 1 + 4) / 2)
    one, two = math.sqrt(7), math.sqrt(3)
    wanted = [-2 / one, -1 / one, 3 / one, -1 / two, -1 / two, 2 / two]
    assert found[:, 0].tolist() == pytest.approx(wanted, abs=1e-5)
    assert found[:, 1].tolist() == pytest.approx([w if i % 2 == 0 else 0.0 for i, w in enumerate(wanted)], abs=1e-5)


def test_a_group_of_equal_scores_teaches_nothing_and_is_counted():
    """0.1 has no exact mean in binary, so a deviation of rounding errors must not be blown up to 1."""
    score = torch.tensor([0.1, 0.1, 0.1, 0.1, 0.2, 0.3])
    found = grpo_advantages(score, torch.ones(6, 2).bool(), samples=3)
    assert found[:3].tolist() == [[0.0, 0.0]] * 3
    assert found[3:, 0].abs().min().item() == pytest.approx(0.0, abs=1e-5)
    assert found[5, 0].item() == pytest.approx(1.0, abs=1e-4)
    counted = degenerate_groups(score, samples=3)
    assert (counted.total.item(), counted.count.item()) == (1.0, 2)


def test_equal_scores_give_exactly_nothing_though_their_mean_is_rounded():
    """The mean of five equal fp32 numbers is often not that number; differences from the first one are exact."""
    score = torch.tensor([12.3456 + 0.789 * number for number in range(40)]).repeat_interleave(5)
    assert (score.view(-1, 5).mean(1, keepdim=True) != score.view(-1, 5)).any()
    assert grpo_advantages(score, torch.ones(200, 1).bool(), samples=5).abs().max().item() == 0.0


def test_scores_that_differ_by_rounding_alone_move_little():
    found = grpo_advantages(torch.tensor([1.0, 1.0 + 2e-7]), torch.ones(2, 1).bool(), samples=2)
    assert found.abs().max().item() < 0.2


@pytest.mark.parametrize("of_batch", ["scale", "mixture"])
def test_what_a_failed_reward_has_left_moves_no_other_answer(of_batch):
    """A group that has failed is not learnt from; the sum of its other rewards may be anything."""
    sound, mask = torch.tensor([1.0, 2.0, 4.0, 0.0]), torch.tensor([[True], [True], [True], [True], [False], [False]])
    moved = []
    for left in ([], [0.0, 50.0], [7.0, -9.0]):
        score, counted = torch.cat([sound, torch.tensor(left)]), mask[: 4 + len(left)]
        if of_batch == "scale":
            advantages = grpo_advantages(score, counted, samples=2, scale="batch")
        else:
            advantages = normalised_advantages(score[:, None], torch.ones(1), counted, samples=2)
        assert not advantages[4:].any()
        moved.append(advantages[:4].tolist())
    assert moved[0] == moved[1] == moved[2]


@pytest.mark.parametrize(("rows", "samples"), [(4, 1), (5, 2)])
def test_a_group_that_is_not_whole_is_a_mistake_of_the_caller(rows, samples):
    with pytest.raises(AssertionError):
        grpo_advantages(torch.zeros(rows), torch.ones(rows, 1).bool(), samples=samples)


def test_whole_returns_less_the_value_by_hand():
    """Two answers of three and two tokens, discount 0.5; the second one's last column is padding with rubbish in it."""
    rewards = torch.tensor([[1.0, -2.0, 4.0], [2.0, 6.0, 99.0]])
    values = torch.tensor([[0.5, 1.0, 1.5], [1.0, 2.0, 99.0]])
    mask = torch.tensor([[True, True, True], [True, True, False]])
    advantages, returns = reinforce_advantages(rewards, values, mask, discount=0.5)
    assert returns.tolist() == [[1.0, 0.0, 4.0], [5.0, 6.0, 0.0]]
    assert advantages.tolist() == [[0.5, -1.0, 2.5], [4.0, 4.0, 0.0]]


def test_whole_returns_are_gae_at_lambda_one():
    generator = torch.Generator().manual_seed(0)
    rewards, values = (torch.randn((4, 6), generator=generator) for _ in range(2))
    mask = torch.arange(6) < torch.tensor([[6], [1], [3], [4]])
    rewards = rewards * mask
    found = reinforce_advantages(rewards, values * mask, mask, discount=0.9)
    expected = generalised_advantages(rewards, values, mask, discount=0.9, gae_lambda=1.0)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.allclose(ours, theirs * mask, atol=1e-6)
