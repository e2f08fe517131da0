"""Advantages from rewards and values.

Legend: B sequences, R answer tokens.
"""

import torch
from torch import Tensor

from charter.train.losses import masked_mean


def shaped_rewards(
    score_B: Tensor,
    log_probability_BR: Tensor,
    reference_BR: Tensor,
    mask_BR: Tensor,
    *,
    kl_coefficient: float,
) -> Tensor:
    """Reward of each token: -beta (log p - log p_ref), plus the answer's score at its last token.

    Source: Ziegler et al. 2019 (arXiv:1909.08593), eq. 2; Stiennon et al. 2020.
    """
    rewards_BR = -kl_coefficient * (log_probability_BR - reference_BR) * mask_BR
    last_B = mask_BR.long().sum(1) - 1
    rewards_BR[torch.arange(len(score_B)), last_B] += score_B
    return rewards_BR


def generalised_advantages(
    rewards_BR: Tensor, values_BR: Tensor, mask_BR: Tensor, *, discount: float, gae_lambda: float
) -> tuple[Tensor, Tensor]:
    """Advantages and returns by GAE (Schulman et al. 2016, arXiv:1506.02438, eq. 16); the answer's end is terminal.

    delta_t = r_t + g V_{t+1} - V_t;  A_t = delta_t + g lambda A_{t+1};  return = A + V.

    >>> one = torch.ones(1, 2)
    >>> generalised_advantages(one, 0 * one, one.bool(), discount=1.0, gae_lambda=1.0)[0].tolist()
    [[2.0, 1.0]]
    """
    values_BR = values_BR * mask_BR
    advantage_B = torch.zeros_like(values_BR[:, 0])
    advantages = torch.zeros_like(values_BR)
    for step in reversed(range(values_BR.shape[1])):
        following = values_BR[:, step + 1] if step + 1 < values_BR.shape[1] else torch.zeros_like(advantage_B)
        delta_B = rewards_BR[:, step] + discount * following - values_BR[:, step]
        advantage_B = (delta_B + discount * gae_lambda * advantage_B) * mask_BR[:, step]
        advantages[:, step] = advantage_B
    return advantages, advantages + values_BR


def whiten(values: Tensor, mask: Tensor) -> Tensor:
    """Values shifted and scaled to mean 0 and variance 1 over the mask; masked-out entries are 0.

    >>> whiten(torch.tensor([1.0, 3.0]), torch.tensor([True, True])).tolist()
    [-1.0, 1.0]
    """
    mean = masked_mean(values, mask)
    variance = masked_mean((values - mean) ** 2, mask)
    return (values - mean) * torch.rsqrt(variance.clamp_min(1e-8)) * mask
