"""Losses as pure functions of tensors.

Legend: B sequences, T tokens, V vocabulary.
"""

import torch
import torch.nn.functional as functional
from torch import Tensor


def summed_cross_entropy(logits_BTV: Tensor, ids_BT: Tensor, counted_BT: Tensor) -> Tensor:
    """Sum of -log p over the counted tokens, each predicted from the tokens before it, in fp32.

    A sum, so that accumulation over micro-batches divides once by the number of tokens of the whole batch.
    """
    targets_BT = torch.where(counted_BT, ids_BT, -100)[:, 1:]
    return functional.cross_entropy(
        logits_BTV[:, :-1].float().flatten(0, 1), targets_BT.flatten(), ignore_index=-100, reduction="sum"
    )


def bradley_terry(margin_B: Tensor, probability_B: Tensor) -> Tensor:
    """-(p log s(d) + (1 - p) log s(-d)) for score difference d and soft label p, one per pair.

    p = 1 is the hard label (Bradley & Terry 1952; soft labels as Bai et al. 2022, section 4.1).

    >>> round(bradley_terry(torch.tensor([0.0]), torch.tensor([1.0])).item(), 4)
    0.6931
    """
    return -(probability_B * functional.logsigmoid(margin_B) + (1 - probability_B) * functional.logsigmoid(-margin_B))


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over the masked entries.

    >>> masked_mean(torch.tensor([1.0, 5.0]), torch.tensor([True, False])).item()
    1.0
    """
    weights = mask.float()
    return (values * weights).sum() / weights.sum().clamp_min(1)


def clipped_policy_loss(
    log_probability: Tensor,
    old_log_probability: Tensor,
    advantage: Tensor,
    mask: Tensor,
    *,
    clip_ratio: float,
) -> tuple[Tensor, Tensor]:
    """PPO's clipped surrogate, averaged over tokens, and the share of tokens that were clipped.

    -min(r A, clip(r, 1 - e, 1 + e) A) with r = exp(log p - log p_old).
    Source: Schulman et al. 2017 (arXiv:1707.06347), eq. 7.

    >>> one = torch.ones(1)
    >>> clipped_policy_loss(torch.log(2 * one), 0 * one, one, one.bool(), clip_ratio=0.2)[0].item()
    -1.2000000476837158
    """
    ratio = torch.exp(log_probability - old_log_probability)
    clipped = ratio.clamp(1 - clip_ratio, 1 + clip_ratio)
    loss = masked_mean(-torch.minimum(ratio * advantage, clipped * advantage), mask)
    share = masked_mean(((ratio - clipped).abs() > 0).float(), mask)
    return loss, share.detach()


def clipped_value_loss(value: Tensor, old_value: Tensor, return_: Tensor, mask: Tensor, *, value_clip: float) -> Tensor:
    """Half the larger of the squared errors of the value and of the value held within `value_clip` of the old one.

    Source: the reference implementation of Schulman et al. 2017, as documented by Huang et al. 2022
    ("The 37 implementation details of PPO", detail 9).
    """
    near = old_value + (value - old_value).clamp(-value_clip, value_clip)
    worse = torch.maximum((value - return_) ** 2, (near - return_) ** 2)
    return 0.5 * masked_mean(worse, mask)


def kl_estimate(log_probability: Tensor, reference_log_probability: Tensor) -> Tensor:
    """The non-negative estimate k3 = exp(-d) - 1 + d of KL(policy | reference) per token, d = log p - log p_ref.

    Unbiased for tokens drawn from the policy (Schulman 2020, "Approximating KL divergence").

    >>> kl_estimate(torch.tensor(0.0), torch.tensor(0.0)).item()
    0.0
    """
    difference = log_probability - reference_log_probability
    return torch.exp(-difference) - 1 + difference
