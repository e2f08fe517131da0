"""Rewards of tokens, and advantages from rewards and values.

Legend: B answers, R answer tokens.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from charter.train.kl_penalty import KlEstimator, kl_penalty

VARIANCE_FLOOR = 1e-8
"""Values that vary less are not scaled up to variance 1."""


def answer_scores(
    score_B: Tensor, ended_B: Tensor, *, reward_clip: float | None = None, missing_end_penalty: float | None = None
) -> Tensor:
    """What an answer earns: its score held within +-`reward_clip`, less the penalty where it has no end token.

    The penalty comes after the clip, so that it costs the same at every score.
    Sources: reward clipping: Huang et al. 2022 ("The 37 implementation details of PPO"), Atari detail 6; penalty:
    Huang et al. 2024 (arXiv:2403.17031), the end-of-sequence trick, which replaces the score by a constant instead.

    >>> answer_scores(torch.tensor([7.0, 7.0]), torch.tensor([True, False]), reward_clip=5.0, missing_end_penalty=1.0)
    tensor([5., 4.])
    """
    if reward_clip is not None:
        score_B = score_B.clamp(-reward_clip, reward_clip)
    if missing_end_penalty is not None:
        score_B = score_B - missing_end_penalty * (~ended_B).float()
    return score_B


def shaped_rewards(
    score_B: Tensor,
    log_probability_BR: Tensor,
    reference_BR: Tensor,
    mask_BR: Tensor,
    *,
    kl_coefficient: float,
    kl_estimator: KlEstimator = "k1",
) -> Tensor:
    """Reward of each token: -beta KL(policy | reference), plus the answer's score at its last token.

    Source: Ziegler et al. 2019 (arXiv:1909.08593), eq. 2, token by token as in Stiennon et al. 2020 (arXiv:2009.01325).

    >>> policy, reference = torch.tensor([[-1.0, -2.0]]), torch.tensor([[-1.0, -4.0]])
    >>> shaped_rewards(torch.tensor([3.0]), policy, reference, torch.ones(1, 2).bool(), kl_coefficient=0.5).tolist()
    [[0.0, 2.0]]
    """
    penalty_BR = kl_coefficient * kl_penalty(log_probability_BR, reference_BR, estimator=kl_estimator)
    penalty_BR = torch.where(mask_BR, penalty_BR, torch.zeros((), device=mask_BR.device))
    return _is_last(mask_BR) * score_B[:, None] - penalty_BR


def generalised_advantages(
    rewards_BR: Tensor,
    values_BR: Tensor,
    mask_BR: Tensor,
    *,
    discount: float,
    gae_lambda: float,
    bootstrap_B: Tensor | None = None,
    ended_B: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Advantages and returns by GAE; the answer's end is terminal, unless it was cut and `bootstrap_B` is given.

    delta_t = r_t + g V_{t+1} - V_t;  A_t = delta_t + g lambda A_{t+1};  return = A + V. After the last token V is 0
    where the answer ended, and `bootstrap_B`, the value of the state after it, where it was cut at its longest.
    Sources: Schulman et al. 2016 (arXiv:1506.02438), eq. 16; truncation: Pardo et al. 2018 (arXiv:1712.00378),
    partial-episode bootstrapping.

    >>> one = torch.ones(1, 2)
    >>> generalised_advantages(one, 0 * one, one.bool(), discount=1.0, gae_lambda=1.0)[0].tolist()
    [[2.0, 1.0]]
    """
    assert (bootstrap_B is None) == (ended_B is None), "a value to go on with needs to be told where to"
    values_BR = torch.where(mask_BR, values_BR, torch.zeros((), device=mask_BR.device))
    following_BR = torch.nn.functional.pad(values_BR[:, 1:], (0, 1))
    if bootstrap_B is not None and ended_B is not None:
        following_BR = following_BR + _is_last(mask_BR) * torch.where(ended_B, 0.0, bootstrap_B)[:, None]
    delta_BR = (rewards_BR + discount * following_BR - values_BR) * mask_BR
    advantages_BR = torch.zeros_like(values_BR)
    advantage_B = torch.zeros_like(values_BR[:, 0])
    for step in reversed(range(values_BR.shape[1])):
        advantage_B = delta_BR[:, step] + discount * gae_lambda * advantage_B
        advantages_BR[:, step] = advantage_B
    return advantages_BR, advantages_BR + values_BR


def reinforce_advantages(
    rewards_BR: Tensor, values_BR: Tensor, mask_BR: Tensor, *, discount: float
) -> tuple[Tensor, Tensor]:
    """Advantages and returns of REINFORCE with a baseline: the whole return from each token on, less the value there.

    Z_t = r_t + g Z_{t+1};  A_t = Z_t - V_t.
    Source: Lee et al. 2023 (arXiv:2309.00267), appendix on REINFORCE for language models, after Williams 1992 and
    Sutton et al. 1999; here the KL penalty is in the rewards, token by token.

    >>> one = torch.ones(1, 2)
    >>> advantages, returns = reinforce_advantages(one, 0.5 * one, one.bool(), discount=1.0)
    >>> advantages.tolist(), returns.tolist()
    ([[1.5, 0.5]], [[2.0, 1.0]])
    """
    return_BR, following_B = torch.zeros_like(rewards_BR), torch.zeros_like(rewards_BR[:, 0])
    for step in reversed(range(rewards_BR.shape[1])):
        following_B = (rewards_BR[:, step] + discount * following_B) * mask_BR[:, step]
        return_BR[:, step] = following_B
    return (return_BR - values_BR) * mask_BR, return_BR


def whiten(values: Tensor, mask: Tensor, *, total: Callable[[Tensor], Tensor] | None = None) -> Tensor:
    """Values shifted and scaled to mean 0 and variance 1 over the mask; masked-out entries are 0.

    `total` adds a tensor up over the processes that hold the other parts of the batch, so that a part is whitened by
    the mean and the variance of the whole. Sums are taken in fp64.
    Source: Huang et al. 2022 ("The 37 implementation details of PPO"), detail 7, over the batch, not the minibatch.

    >>> whiten(torch.tensor([1.0, 3.0]), torch.tensor([True, True])).tolist()
    [-1.0, 1.0]
    """
    total = total or (lambda sums: sums)
    kept = torch.where(mask, values, torch.zeros((), device=mask.device)).double()
    value_sum, count = total(torch.stack([kept.sum(), mask.sum().double()]))
    mean = value_sum / count.clamp_min(1)
    centred = (kept - mean) * mask
    variance = total((centred**2).sum()) / count.clamp_min(1)
    whitened: Tensor = centred * torch.rsqrt(variance.clamp_min(VARIANCE_FLOOR))
    return whitened.to(values.dtype)


def _is_last(mask_BR: Tensor) -> Tensor:
    """1 at the last real token of each answer, 0 elsewhere; answers without one have none."""
    return (mask_BR & ~torch.nn.functional.pad(mask_BR[:, 1:], (0, 1))).float()
