"""Arithmetic of PPO: rewards and advantages, group estimators, KL penalty, losses of policy and value."""

import math
from collections.abc import Callable
from typing import assert_never

import torch
from torch import Tensor

from charter.spec.rewards import (
    DPPO_ANCHOR,
    SAPO_TEMPERATURES,
    AdvantageScale,
    KlEstimator,
    LossAggregation,
    MismatchMethod,
    RatioLevel,
    Surrogate,
)
from charter.train.losses import Summed, aggregate

DEVIATION_FLOOR = 1e-6
"""Added to a group's deviation, so that scores which differ by rounding alone do not become large advantages."""
BATCH_DEVIATION_FLOOR = 1e-4
"""The same where the deviation is of a whole batch (TRL, `scale_rewards: batch`) or of one reward of several (GDPO)."""


def rloo_advantages(rewards_BR: Tensor, mask_BR: Tensor, *, samples: int) -> Tensor:
    """Every token of an answer gets its return less the mean return of the other answers to the prompt.

    A_i = R_i - sum_{j != i} R_j / (S - 1), where R sums the rewards of an answer's tokens (score less KL penalty).
    Source: Ahmadian et al. 2024 (arXiv:2402.14740), the RLOO estimator with k = S; first by Kool et al. 2019.

    >>> rloo_advantages(torch.tensor([[1.0], [2.0], [6.0]]), torch.ones(3, 1).bool(), samples=3).tolist()
    [[-3.0], [-1.5], [4.5]]
    """
    return_GS = _grouped((rewards_BR * mask_BR).sum(1), samples)
    others_GS = (return_GS.sum(1, keepdim=True) - return_GS) / (samples - 1)
    return _to_tokens(return_GS - others_GS, mask_BR)


def grpo_advantages(
    score_B: Tensor,
    mask_BR: Tensor,
    *,
    samples: int,
    scale: AdvantageScale = "group",
    total: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Every token of an answer gets its score, shifted and scaled by the scores of its prompt's answers.

    A_i = (s_i - mean(s)) / (std(s) + 1e-6), std with S - 1 in its denominator; exactly 0 where all scores are equal.
    `scale` is the divisor: that of the group; of the whole `batch`, std over the N scores of answers that the mask
    counts with N - 1, plus 1e-4; `none`, which is 1; or the group's `mean`, where it is not 0. `total` adds up over the
    processes of the batch.
    Sources: Shao et al. 2024 (arXiv:2402.03300), section 4.1.2 (outcome supervision), which leaves open the deviation;
    none: Liu et al. 2025 (Dr. GRPO, arXiv:2503.20783); mean: MaxRL (arXiv:2602.02710).

    >>> score, mask = torch.tensor([1.0, 2.0, 3.0]), torch.ones(3, 1).bool()
    >>> grpo_advantages(score, mask, samples=3).round(decimals=4).tolist()
    [[-1.0], [0.0], [1.0]]
    """
    score_GS = _grouped(score_B, samples)
    from_first_GS = score_GS - score_GS[:, :1]
    centred_GS = from_first_GS - from_first_GS.mean(1, keepdim=True)
    match scale:
        case "group":
            deviation_G1 = torch.sqrt((centred_GS**2).sum(1, keepdim=True) / (samples - 1))
            return _to_tokens(centred_GS / (deviation_G1 + DEVIATION_FLOOR), mask_BR)
        case "batch":
            return _to_tokens(centred_GS / (_moments(score_B, mask_BR, total)[1] + BATCH_DEVIATION_FLOOR), mask_BR)
        case "none":
            return _to_tokens(centred_GS, mask_BR)
        case "mean":
            mean_G1 = score_GS.mean(1, keepdim=True)
            return _to_tokens(torch.where(mean_G1 == 0, 0.0, centred_GS / mean_G1), mask_BR)
    assert_never(scale)


def normalised_advantages(
    rewards_BK: Tensor,
    weight_K: Tensor,
    mask_BR: Tensor,
    *,
    samples: int,
    total: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Return the advantages of several rewards, each scaled within its group before they are added (GDPO).

    x_i = sum_k w_k (r_ik - mean_k) / (std_k + 1e-4) by group, then (x - mean) / (std + 1e-4) over the answers of the
    batch that the mask counts; both deviations with N - 1. A reward that does not apply to an answer is NaN and counts
    as its group's mean.
    Source: GDPO (arXiv:2601.05242).

    >>> both = torch.tensor([[1.0, 0.0], [0.0, 0.0], [1.0, 10.0], [0.0, 0.0]])
    >>> normalised_advantages(both, torch.ones(2), torch.ones(4, 1).bool(), samples=2).sign().tolist()
    [[1.0], [-1.0], [1.0], [-1.0]]
    """
    applies_BK = ~rewards_BK.isnan()
    value_GSK = torch.where(applies_BK, rewards_BK, 0.0).view(-1, samples, rewards_BK.shape[1])
    applies_GSK = applies_BK.view(value_GSK.shape)
    count_G1K = applies_GSK.sum(1, keepdim=True)
    mean_G1K = value_GSK.sum(1, keepdim=True) / count_G1K.clamp_min(1)
    centred_GSK = (value_GSK - mean_G1K) * applies_GSK
    deviation_G1K = torch.sqrt((centred_GSK**2).sum(1, keepdim=True) / (count_G1K - 1).clamp_min(1))
    weighed_B = (centred_GSK / (deviation_G1K + BATCH_DEVIATION_FLOOR) * weight_K).sum(2).flatten()
    mean, deviation = _moments(weighed_B, mask_BR, total)
    return ((weighed_B - mean) / (deviation + BATCH_DEVIATION_FLOOR))[:, None] * mask_BR


def _moments(value_B: Tensor, mask_BR: Tensor, total: Callable[[Tensor], Tensor] | None) -> tuple[Tensor, Tensor]:
    """Mean and deviation (N - 1) over the answers of a batch that the mask counts, with sums in fp64.

    What a failed reward has left of a score is no part of them.
    """
    total, counted_B = total or _alone, mask_BR.any(1)
    exact_B = torch.where(counted_B, value_B, 0.0).double()
    value_sum, count = total(torch.stack([exact_B.sum(), counted_B.sum().double()]))
    mean = value_sum / count.clamp_min(1)
    square_sum = total((((exact_B - mean) * counted_B) ** 2).sum())
    return mean.to(value_B.dtype), torch.sqrt(square_sum / (count - 1).clamp_min(1)).to(value_B.dtype)


def _alone(sums: Tensor) -> Tensor:
    """Return the sums of a batch that one process holds."""
    return sums


def equal_groups(score_B: Tensor, *, samples: int) -> Tensor:
    """Return True for each prompt whose answers all have the same score: dynamic sampling (DAPO) draws others instead.

    >>> equal_groups(torch.tensor([1.0, 1.0, 1.0, 2.0]), samples=2).tolist()
    [True, False]
    """
    score_GS = _grouped(score_B, samples)
    return (score_GS == score_GS[:, :1]).all(1)


def degenerate_groups(score_B: Tensor, *, samples: int) -> Summed:
    """Count the prompts that teach nothing, because all their answers have the same score.

    >>> degenerate_groups(torch.tensor([1.0, 1.0, 1.0, 2.0]), samples=2).mean.item()
    0.5
    """
    same_G = equal_groups(score_B, samples=samples)
    return Summed(same_G.sum().float(), torch.tensor(len(same_G), device=score_B.device))


def _grouped(values_B: Tensor, samples: int) -> Tensor:
    assert samples >= 2, "a group needs two answers to be compared"
    assert len(values_B) % samples == 0, "every group is whole"
    return values_B.view(-1, samples)


def _to_tokens(advantage_GS: Tensor, mask_BR: Tensor) -> Tensor:
    return advantage_GS.flatten()[:, None] * mask_BR


def kl_penalty(log_probability: Tensor, reference_log_probability: Tensor, *, estimator: KlEstimator) -> Tensor:
    """An estimate of KL(policy | reference) in nats, for each token on its own.

    With d = log p - log p_ref: k1 = d, which may be negative; k2 = d^2 / 2, whose gradient as a loss is that of the
    KL; k3 = exp(-d) - 1 + d, which is not negative and varies less. k1 and k3 are unbiased for tokens drawn from the
    policy, and all are 0 where the two agree.
    Source: Schulman 2020, "Approximating KL divergence" (http://joschu.net/blog/kl-approx.html).

    >>> half, quarter = torch.log(torch.tensor(0.5)), torch.log(torch.tensor(0.25))
    >>> [round(kl_penalty(half, quarter, estimator=name).item(), 4) for name in ("k1", "k2", "k3")]
    [0.6931, 0.2402, 0.1931]
    """
    difference = log_probability - reference_log_probability
    match estimator:
        case "k1":
            return difference
        case "k2":
            return 0.5 * difference**2
        case "k3":
            return torch.expm1(-difference) + difference
    assert_never(estimator)


VARIANCE_FLOOR = 1e-8
"""Values that vary less are not scaled up to variance 1."""


def answer_scores(
    score_B: Tensor, ended_B: Tensor, *, reward_clip: float | None = None, missing_end_penalty: float | None = None
) -> Tensor:
    """Return the reward of each answer: its score clipped to +-`reward_clip`, less the penalty if it has no end token.

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
    where the answer ended, and `bootstrap_B`, the value of the state after it, where it was cut at its longest. Tokens
    outside the mask that stand inside an answer (a tool wrote them) are stepped over.
    Sources: Schulman et al. 2016 (arXiv:1506.02438), eq. 16; truncation: Pardo et al. 2018 (arXiv:1712.00378),
    partial-episode bootstrapping.

    >>> one = torch.ones(1, 2)
    >>> generalised_advantages(one, 0 * one, one.bool(), discount=1.0, gae_lambda=1.0)[0].tolist()
    [[2.0, 1.0]]
    """
    assert (bootstrap_B is None) == (ended_B is None), "a value to go on with needs to be told where to"
    values_BR = torch.where(mask_BR, values_BR, torch.zeros((), device=mask_BR.device))
    following_BR, following_B = torch.zeros_like(values_BR), torch.zeros_like(values_BR[:, 0])
    for step in reversed(range(values_BR.shape[1])):
        following_BR[:, step] = following_B
        following_B = torch.where(mask_BR[:, step], values_BR[:, step], following_B)
    if bootstrap_B is not None and ended_B is not None:
        following_BR = following_BR + _is_last(mask_BR) * torch.where(ended_B, 0.0, bootstrap_B)[:, None]
    delta_BR = (rewards_BR + discount * following_BR - values_BR) * mask_BR
    advantages_BR = torch.zeros_like(values_BR)
    advantage_B = torch.zeros_like(values_BR[:, 0])
    for step in reversed(range(values_BR.shape[1])):
        counted_B = mask_BR[:, step]
        advantage_B = torch.where(counted_B, delta_BR[:, step] + discount * gae_lambda * advantage_B, advantage_B)
        advantages_BR[:, step] = advantage_B * counted_B
    return advantages_BR, advantages_BR + values_BR


def reinforce_advantages(
    rewards_BR: Tensor, values_BR: Tensor, mask_BR: Tensor, *, discount: float
) -> tuple[Tensor, Tensor]:
    """Advantages and returns of REINFORCE with a baseline: the whole return from each token on, less the value there.

    Z_t = r_t + g Z_{t+1};  A_t = Z_t - V_t. Tokens outside the mask inside an answer pass on what follows them.
    With values of 0, whitened, it is REINFORCE++ (Hu et al. 2025, arXiv:2501.03262), whose baseline form takes
    `grpo_advantages` without a scale instead.
    Source: Lee et al. 2023 (arXiv:2309.00267), appendix on REINFORCE for language models, after Williams 1992 and
    Sutton et al. 1999; here the KL penalty is in the rewards, token by token.

    >>> one = torch.ones(1, 2)
    >>> advantages, returns = reinforce_advantages(one, 0.5 * one, one.bool(), discount=1.0)
    >>> advantages.tolist(), returns.tolist()
    ([[1.5, 0.5]], [[2.0, 1.0]])
    """
    return_BR, following_B = torch.zeros_like(rewards_BR), torch.zeros_like(rewards_BR[:, 0])
    for step in reversed(range(rewards_BR.shape[1])):
        counted_B = mask_BR[:, step]
        following_B = torch.where(counted_B, rewards_BR[:, step] + discount * following_B, following_B)
        return_BR[:, step] = following_B * counted_B
    return (return_BR - values_BR) * mask_BR, return_BR


def whiten(values: Tensor, mask: Tensor, *, total: Callable[[Tensor], Tensor] | None = None) -> Tensor:
    """Values shifted and scaled to mean 0 and variance 1 over the mask; masked-out entries are 0.

    `total` adds a tensor up over the processes that hold the other parts of the batch, so that a part is whitened by
    the mean and the variance of the whole. Sums are taken in fp64.
    Source: Huang et al. 2022 ("The 37 implementation details of PPO"), detail 7, over the batch, not the minibatch.

    >>> whiten(torch.tensor([1.0, 3.0]), torch.tensor([True, True])).tolist()
    [-1.0, 1.0]
    """
    total = total or _alone
    counted = torch.where(mask, values, torch.zeros((), device=mask.device)).double()
    value_sum, count = total(torch.stack([counted.sum(), mask.sum().double()]))
    mean = value_sum / count.clamp_min(1)
    centred = (counted - mean) * mask
    variance = total((centred**2).sum()) / count.clamp_min(1)
    whitened: Tensor = centred * torch.rsqrt(variance.clamp_min(VARIANCE_FLOOR))
    return whitened.to(values.dtype)


def _is_last(mask_BR: Tensor) -> Tensor:
    """1 at the last real token of each answer, 0 elsewhere; answers without one have none."""
    return (mask_BR & (mask_BR.flip(1).cumsum(1).flip(1) == 1)).float()


def importance_ratios(log_probability_BR: Tensor, old_BR: Tensor, mask_BR: Tensor, *, level: RatioLevel) -> Tensor:
    """r = p / p_old of every token; of whole answers where `level` says so, the same at all of their tokens.

    `token`: exp(log p - log p_old); `sequence`: the geometric mean over the answer, exp(sum_t log r_t / n) (GSPO, Zheng
    et al. 2025, arXiv:2507.18071, eq. 7); `product`: exp(sum_t log r_t).

    >>> log_ratio, mask = torch.log(torch.tensor([[2.0, 8.0]])), torch.ones(1, 2).bool()
    >>> importance_ratios(log_ratio, 0 * log_ratio, mask, level="sequence").round(decimals=4).tolist()
    [[4.0, 4.0]]
    """
    difference_BR = _difference(log_probability_BR, old_BR, mask_BR)
    if level == "token":
        return torch.exp(difference_BR)
    summed_B1 = difference_BR.sum(1, keepdim=True)
    if level == "sequence":
        summed_B1 = summed_B1 / mask_BR.sum(1, keepdim=True).clamp_min(1)
    return torch.exp(summed_B1).expand_as(difference_BR)


def clipped_policy_loss(
    log_probability_BR: Tensor,
    old_BR: Tensor,
    advantage_BR: Tensor,
    mask_BR: Tensor,
    *,
    clip_ratio: float,
    clip_ratio_high: float | None = None,
    level: RatioLevel = "token",
    surrogate: Surrogate = "clip",
    dual_clip: float | None = None,
    aggregation: LossAggregation = "token",
    divisor_B: Tensor | None = None,
    weight_BR: Tensor | None = None,
) -> tuple[Summed, Summed]:
    """PPO's clipped surrogate, and how many tokens were clipped.

    -w min(r A, clip(r, 1 - e, 1 + e_high) A) with r from `importance_ratios`; w is 1 unless given (`mismatch_weights`),
    e_high is e unless given (clip-higher). `dual_clip` bounds the loss of A < 0 to -c A. The surrogate `cispo` is
    -w sg(clip(r, 1 - e, 1 + e_high)) A log p, where sg stops the gradient: every token keeps one, and with e of 1 or
    more there is no lower bound. The surrogate `sapo` is -w A (4 / t) s(t (r - 1)), whose slope at r = 1 is PPO's, with
    t from `SAPO_TEMPERATURES`; nothing is clipped. The surrogate `dppo` is -w r A, or 0 where the probability itself
    has moved too far the way that A asks for: p - p_old above e_high where A > 0, below -e elsewhere; plus 1e-3 log^2 r
    of every token.
    Sources: Schulman et al. 2017 (arXiv:1707.06347), eq. 7; clip-higher: Yu et al. 2025 (DAPO, arXiv:2503.14476),
    section 3.1; dual clip: Ye et al. 2020 (arXiv:1912.09729); CISPO: arXiv:2506.13585, eq. 4 and 5; SAPO:
    arXiv:2511.20347; DPPO: arXiv:2602.04879, with the term that keeps p near p_old as prime-rl has it.

    >>> one = torch.ones(1, 1)
    >>> loss, clipped = clipped_policy_loss(torch.log(2 * one), 0 * one, one, one.bool(), clip_ratio=0.25)
    >>> loss.mean.item(), clipped.mean.item()
    (-1.25, 1.0)
    """
    ratio_BR = importance_ratios(log_probability_BR, old_BR, mask_BR, level=level)
    high = clip_ratio if clip_ratio_high is None else clip_ratio_high
    held_BR = ratio_BR.clamp(1 - clip_ratio, 1 + high)
    anchor_BR = torch.zeros_like(ratio_BR)
    match surrogate:
        case "clip":
            loss_BR = -torch.minimum(ratio_BR * advantage_BR, held_BR * advantage_BR)
            if dual_clip is not None:
                bounded_BR = torch.minimum(loss_BR, -dual_clip * advantage_BR)
                loss_BR = torch.where(advantage_BR < 0, bounded_BR, loss_BR)
        case "cispo":
            loss_BR = -held_BR.detach() * advantage_BR * log_probability_BR
        case "sapo":
            temperature_BR = torch.where(advantage_BR > 0, *SAPO_TEMPERATURES)
            loss_BR = -advantage_BR * torch.sigmoid(temperature_BR * (ratio_BR - 1)) * 4 / temperature_BR
            held_BR = ratio_BR
        case "dppo":
            moved_BR = log_probability_BR.exp() - old_BR.exp()
            is_lost_BR = torch.where(advantage_BR > 0, moved_BR > high, moved_BR < -clip_ratio)
            held_BR = torch.where(is_lost_BR, 0.0, ratio_BR)
            loss_BR = -held_BR * advantage_BR
            anchor_BR = DPPO_ANCHOR * _difference(log_probability_BR, old_BR, mask_BR) ** 2
        case _:
            assert_never(surrogate)
    if weight_BR is not None:
        loss_BR = weight_BR * loss_BR
    outside_BR = (ratio_BR != held_BR).float()
    clipped = aggregate(outside_BR, mask_BR, "token").detach()
    return aggregate(loss_BR + anchor_BR, mask_BR, aggregation, divisor_B=divisor_B), clipped


def off_policy_weights(
    log_probability_BR: Tensor, old_BR: Tensor, advantage_BR: Tensor, mask_BR: Tensor, *, most: float
) -> Tensor:
    """1 for tokens that are learnt from; 0 where A < 0 and the policy has moved too far from the one that drew.

    How far is told per answer: the mean of log p_old - log p over its tokens, in nats, no gradient.
    Source: DeepSeek-V3.2 (arXiv:2512.02556), off-policy sequence masking.

    >>> old, new, mask = torch.zeros(2, 2), torch.tensor([[-0.5, -0.1], [-0.1, 0.0]]), torch.ones(2, 2).bool()
    >>> off_policy_weights(new, old, torch.tensor([[-1.0, 1.0], [-1.0, -1.0]]), mask, most=0.2).tolist()
    [[0.0, 1.0], [1.0, 1.0]]
    """
    moved_B1 = _difference(old_BR, log_probability_BR, mask_BR).detach().sum(1, keepdim=True)
    is_far_B1 = moved_B1 > most * mask_BR.sum(1, keepdim=True)
    return (~(is_far_B1 & (advantage_BR < 0))).to(advantage_BR.dtype)


def clipped_value_loss(
    value_BR: Tensor,
    old_value_BR: Tensor,
    return_BR: Tensor,
    mask_BR: Tensor,
    *,
    value_clip: float,
    aggregation: LossAggregation = "token",
    divisor_B: Tensor | None = None,
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
    return aggregate(0.5 * worse_BR, mask_BR, aggregation, divisor_B=divisor_B)


def clipped_values(
    value_BR: Tensor, old_value_BR: Tensor, return_BR: Tensor, mask_BR: Tensor, *, value_clip: float
) -> Summed:
    """Count values that lost their gradient as they moved by more than `value_clip`: the clipped one's error is larger.

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
    log_probability_BR: Tensor,
    reference_BR: Tensor,
    mask_BR: Tensor,
    *,
    aggregation: LossAggregation = "token",
    divisor_B: Tensor | None = None,
) -> Summed:
    """The k3 estimate of KL(policy | reference) as a term of the loss, with its gradient.

    GRPO has it here and not in the reward; the gradient of k1 would be 0 on average.
    Source: Shao et al. 2024 (arXiv:2402.03300), eq. 3 and 4.

    >>> one = torch.ones(1, 1)
    >>> round(kl_loss(torch.log(0.5 * one), torch.log(0.25 * one), one.bool()).mean.item(), 4)
    0.1931
    """
    difference_BR = _difference(log_probability_BR, reference_BR, mask_BR)
    estimate_BR = kl_penalty(difference_BR, torch.zeros_like(difference_BR), estimator="k3")
    return aggregate(estimate_BR, mask_BR, aggregation, divisor_B=divisor_B)


def entropy_bonus(
    entropy_BR: Tensor,
    mask_BR: Tensor,
    *,
    aggregation: LossAggregation = "token",
    divisor_B: Tensor | None = None,
) -> Summed:
    """The entropy of the policy where it chose a token, in nats; a loss subtracts `entropy_weight` times this.

    Source: Schulman et al. 2017 (arXiv:1707.06347), eq. 9.

    >>> entropy_bonus(torch.tensor([[0.5, 9.0]]), torch.tensor([[True, False]])).mean.item()
    0.5
    """
    return aggregate(entropy_BR, mask_BR, aggregation, divisor_B=divisor_B)


def update_kl(log_probability_BR: Tensor, old_BR: Tensor, mask_BR: Tensor) -> Summed:
    """Return the divergence of a policy from the one that sampled, per token: KL(old | new) by k3, no gradient.

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
    """Return True if the epochs over a rollout end here: the policy is further than `limit` from the one that sampled.

    `kl_nats_per_token` is the mean of `update_kl` over all processes, so that all decide alike. A value that is not
    a number ends them too.
    Source: Dossa et al. 2021 (doi:10.1109/ACCESS.2021.3106662), KL-based early stopping.

    >>> stops_update(0.03, 0.02), stops_update(0.01, 0.02), stops_update(9.0, None)
    (True, False, False)
    """
    return limit is not None and not kl_nats_per_token <= limit


def mismatch_weights(
    old_BR: Tensor,
    generator_BR: Tensor,
    mask_BR: Tensor,
    *,
    method: MismatchMethod = "tis",
    level: RatioLevel = "token",
    low: float = 0.0,
    high: float = math.inf,
) -> Tensor:
    """Importance weights of tokens that another program sampled, from rho = p_old / p_generator.

    p_old is the trainer's probability under the weights that sampled, p_generator what the generator says it was:
    equal in exact arithmetic. Weights are exactly 1 where they are equal and outside the mask; no gradient. `tis` holds
    rho, of a token or of a whole answer (`level`), within [low, high]; `icepop` takes rho inside the bounds and 0
    outside; `sequence_mask` drops answers whose geometric mean lies outside and weighs the tokens of others by rho.
    Sources: truncated importance sampling, Yao et al. 2025 ("Your efficient RL framework secretly brings you
    off-policy RL training"); the truncation as in Espeholt et al. 2018 (arXiv:1802.01561), section 4.1; IcePop:
    arXiv:2510.18855; the mask: `seq-mask-tis` of OpenRLHF and NeMo RL.

    >>> old, generator = torch.log(torch.tensor([[0.5, 0.25]])), torch.log(torch.tensor([[0.125, 0.5]]))
    >>> mask = torch.ones(1, 2).bool()
    >>> mismatch_weights(old, generator, mask, high=2.0).tolist()
    [[2.0, 0.5]]
    >>> mismatch_weights(old, generator, mask, method="icepop", high=2.0).tolist()
    [[0.0, 0.5]]
    """
    ratio_BR = importance_ratios(old_BR, generator_BR, mask_BR, level=level)
    match method:
        case "tis":
            return ratio_BR.clamp(low, high).detach()
        case "icepop":
            inside_BR = (ratio_BR >= low) & (ratio_BR <= high)
            return torch.where(inside_BR, ratio_BR, 0.0).detach()
        case "sequence_mask":
            mean_BR = importance_ratios(old_BR, generator_BR, mask_BR, level="sequence")
            inside_BR = (mean_BR >= low) & (mean_BR <= high)
            return torch.where(inside_BR, ratio_BR, 0.0).detach()
    assert_never(method)


def mismatch_kl(old_BR: Tensor, generator_BR: Tensor, mask_BR: Tensor) -> Summed:
    """Return the divergence of generator and trainer, per token: KL(generator | trainer) by k3; 0 in exact arithmetic.

    >>> same = torch.zeros(1, 3)
    >>> mismatch_kl(same, same, torch.ones(1, 3).bool()).mean.item()
    0.0
    """
    return update_kl(old_BR, generator_BR, mask_BR)


def _difference(first_BR: Tensor, second_BR: Tensor, mask_BR: Tensor) -> Tensor:
    """first - second on the mask, and 0 elsewhere, where either may hold anything."""
    zero = torch.zeros((), device=first_BR.device)
    return torch.where(mask_BR, first_BR, zero) - torch.where(mask_BR, second_BR, zero)
