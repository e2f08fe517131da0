"""Losses of a policy and of its value model on sampled answers, as sums that micro-batches and processes add up.

Legend: B answers, R answer tokens.
"""

import torch
from torch import Tensor

from charter.spec.stage_parts import LossAggregation
from charter.train.kl_penalty import kl_penalty
from charter.train.losses import Summed, aggregate


def clipped_policy_loss(
    log_probability_BR: Tensor,
    old_BR: Tensor,
    advantage_BR: Tensor,
    mask_BR: Tensor,
    *,
    clip_ratio: float,
    aggregation: LossAggregation = "token",
    weight_BR: Tensor | None = None,
) -> tuple[Summed, Summed]:
    """PPO's clipped surrogate, and how many tokens were clipped.

    -w min(r A, clip(r, 1 - e, 1 + e) A) with r = exp(log p - log p_old); w is 1 unless given (`mismatch_weights`).
    Source: Schulman et al. 2017 (arXiv:1707.06347), eq. 7.

    >>> one = torch.ones(1, 1)
    >>> loss, clipped = clipped_policy_loss(torch.log(2 * one), 0 * one, one, one.bool(), clip_ratio=0.25)
    >>> loss.mean.item(), clipped.mean.item()
    (-1.25, 1.0)
    """
    ratio_BR = torch.exp(_difference(log_probability_BR, old_BR, mask_BR))
    held_BR = ratio_BR.clamp(1 - clip_ratio, 1 + clip_ratio)
    loss_BR = -torch.minimum(ratio_BR * advantage_BR, held_BR * advantage_BR)
    if weight_BR is not None:
        loss_BR = weight_BR * loss_BR
    outside_BR = (ratio_BR != held_BR).float()
    return aggregate(loss_BR, mask_BR, aggregation), aggregate(outside_BR, mask_BR, "token").detach()


def reinforce_loss(
    log_probability_BR: Tensor,
    advantage_BR: Tensor,
    mask_BR: Tensor,
    *,
    aggregation: LossAggregation = "token",
    weight_BR: Tensor | None = None,
) -> Summed:
    """The policy gradient itself: -w A log p, for one step from the policy that sampled; w is 1 unless given.

    Source: Williams 1992; Lee et al. 2023 (arXiv:2309.00267), appendix on REINFORCE for language models.

    >>> one = torch.ones(1, 1)
    >>> reinforce_loss(-2 * one, 3 * one, one.bool()).mean.item()
    6.0
    """
    loss_BR = -advantage_BR * log_probability_BR
    return aggregate(loss_BR if weight_BR is None else weight_BR * loss_BR, mask_BR, aggregation)


def clipped_value_loss(
    value_BR: Tensor,
    old_value_BR: Tensor,
    return_BR: Tensor,
    mask_BR: Tensor,
    *,
    value_clip: float,
    aggregation: LossAggregation = "token",
) -> Summed:
    """Half the larger of the squared errors of the value and of the value held within `value_clip` of the old one.

    max((V - G)^2, (V_old + clip(V - V_old, -e, e) - G)^2) / 2.
    Source: the reference implementation of Schulman et al. 2017, as documented by Huang et al. 2022
    ("The 37 implementation details of PPO", detail 9).

    >>> value, old, mask = torch.full((1, 1), 2.0), torch.zeros(1, 1), torch.ones(1, 1).bool()
    >>> clipped_value_loss(value, old, value, mask, value_clip=0.5).mean.item()
    1.125
    """
    held_BR = old_value_BR + (value_BR - old_value_BR).clamp(-value_clip, value_clip)
    worse_BR = torch.maximum((value_BR - return_BR) ** 2, (held_BR - return_BR) ** 2)
    return aggregate(0.5 * worse_BR, mask_BR, aggregation)


def clipped_values(
    value_BR: Tensor, old_value_BR: Tensor, return_BR: Tensor, mask_BR: Tensor, *, value_clip: float
) -> Summed:
    """How many values lost their gradient because they moved by more than `value_clip`: the held one's error is larger.

    >>> old, mask = torch.zeros(1, 2), torch.ones(1, 2).bool()
    >>> clipped_values(torch.tensor([[2.0, 2.0]]), old, torch.tensor([[2.0, -1.0]]), mask, value_clip=0.5).mean.item()
    0.5
    """
    held_BR = old_value_BR + (value_BR - old_value_BR).clamp(-value_clip, value_clip)
    is_held_BR = (held_BR - return_BR) ** 2 > (value_BR - return_BR) ** 2
    return aggregate(is_held_BR.float(), mask_BR, "token").detach()


def ratio_moments(log_probability_BR: Tensor, old_BR: Tensor, mask_BR: Tensor) -> tuple[Summed, Summed]:
    """r - 1 and (r - 1)^2 of every token's ratio r = p / p_old, no gradient: its mean, and with both its variance.

    >>> mean, square = ratio_moments(torch.log(torch.tensor([[1.0, 3.0]])), torch.zeros(1, 2), torch.ones(1, 2).bool())
    >>> round(1 + mean.mean.item(), 4), round((square.mean - mean.mean**2).item(), 4)
    (2.0, 1.0)
    """
    beyond_BR = torch.expm1(_difference(log_probability_BR, old_BR, mask_BR)).detach()
    return aggregate(beyond_BR, mask_BR, "token"), aggregate(beyond_BR**2, mask_BR, "token")


def kl_loss(
    log_probability_BR: Tensor, reference_BR: Tensor, mask_BR: Tensor, *, aggregation: LossAggregation = "token"
) -> Summed:
    """The k3 estimate of KL(policy | reference) as a term of the loss, with its gradient.

    GRPO has it here and not in the reward; the gradient of k1 would be 0 on average.
    Source: Shao et al. 2024 (arXiv:2402.03300), eq. 3 and 4.

    >>> one = torch.ones(1, 1)
    >>> round(kl_loss(torch.log(0.5 * one), torch.log(0.25 * one), one.bool()).mean.item(), 4)
    0.1931
    """
    difference_BR = _difference(log_probability_BR, reference_BR, mask_BR)
    return aggregate(kl_penalty(difference_BR, torch.zeros_like(difference_BR), estimator="k3"), mask_BR, aggregation)


def entropy_bonus(entropy_BR: Tensor, mask_BR: Tensor, *, aggregation: LossAggregation = "token") -> Summed:
    """The entropy of the policy where it chose a token, in nats; a loss subtracts `entropy_weight` times this.

    Source: Schulman et al. 2017 (arXiv:1707.06347), eq. 9.

    >>> entropy_bonus(torch.tensor([[0.5, 9.0]]), torch.tensor([[True, False]])).mean.item()
    0.5
    """
    return aggregate(entropy_BR, mask_BR, aggregation)


def update_kl(log_probability_BR: Tensor, old_BR: Tensor, mask_BR: Tensor) -> Summed:
    """How far updates have moved a policy from the one that sampled, per token: KL(old | new) by k3, no gradient.

    k3 = r - 1 - log r with r = p / p_old, since the tokens were drawn from the old policy.
    Source: Schulman 2020, "Approximating KL divergence"; Huang et al. 2022, detail 12.

    >>> one = torch.ones(1, 1)
    >>> round(update_kl(torch.log(0.5 * one), torch.log(0.25 * one), one.bool()).mean.item(), 4)
    0.3069
    """
    difference_BR = _difference(old_BR, log_probability_BR, mask_BR)
    estimate_BR = kl_penalty(difference_BR, torch.zeros_like(difference_BR), estimator="k3")
    return aggregate(estimate_BR, mask_BR, "token").detach()


def stops_update(kl_nats_per_token: float, limit: float | None) -> bool:
    """Whether the epochs over a rollout end here, because the policy is further than `limit` from the one that sampled.

    `kl_nats_per_token` is the mean of `update_kl` over all processes, so that all decide alike. A value that is not
    a number ends them too.
    Source: Dossa et al. 2021 (doi:10.1109/ACCESS.2021.3106662), KL-based early stopping.

    >>> stops_update(0.03, 0.02), stops_update(0.01, 0.02), stops_update(9.0, None)
    (True, False, False)
    """
    return limit is not None and not kl_nats_per_token <= limit


def mismatch_weights(old_BR: Tensor, generator_BR: Tensor, mask_BR: Tensor, *, most: float) -> Tensor:
    """Importance weights of tokens that another program sampled, cut at `most`: min(p_old / p_generator, most).

    p_old is the trainer's probability under the weights that sampled, p_generator what the generator says it was:
    equal in exact arithmetic. Exactly 1 where they are equal and outside the mask; no gradient.
    Source: truncated importance sampling, Yao et al. 2025 ("Your efficient RL framework secretly brings you
    off-policy RL training"); the truncation as in Espeholt et al. 2018 (arXiv:1802.01561), section 4.1.

    >>> old, generator = torch.log(torch.tensor([[0.5, 0.25]])), torch.log(torch.tensor([[0.125, 0.5]]))
    >>> mismatch_weights(old, generator, torch.ones(1, 2).bool(), most=2.0).tolist()
    [[2.0, 0.5]]
    """
    return torch.exp(_difference(old_BR, generator_BR, mask_BR)).clamp_max(most).detach()


def mismatch_kl(old_BR: Tensor, generator_BR: Tensor, mask_BR: Tensor) -> Summed:
    """How far the generator is from the trainer, per token: KL(generator | trainer) by k3; 0 in exact arithmetic.

    >>> same = torch.zeros(1, 3)
    >>> mismatch_kl(same, same, torch.ones(1, 3).bool()).mean.item()
    0.0
    """
    return update_kl(old_BR, generator_BR, mask_BR)


def _difference(first_BR: Tensor, second_BR: Tensor, mask_BR: Tensor) -> Tensor:
    """first - second on the mask, and 0 elsewhere, where either may hold anything."""
    zero = torch.zeros((), device=first_BR.device)
    return torch.where(mask_BR, first_BR, zero) - torch.where(mask_BR, second_BR, zero)
