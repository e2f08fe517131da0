"""Losses on preference pairs: of scores (preference model) and of log-probabilities (DPO).

Legend: B pairs.
"""

from dataclasses import dataclass

from torch import Tensor

from charter.train.losses import bradley_terry


def smoothed(probability_B: Tensor, label_smoothing: float) -> Tensor:
    """Labels moved towards the other answer: p (1 - s) + (1 - p) s, as if a share s of them were wrong.

    Source: Mitchell 2023, "A note on DPO with noisy preferences & relationship to IPO" (conservative DPO).

    >>> import torch
    >>> smoothed(torch.tensor([1.0, 0.5, 0.0]), 0.25).tolist()
    [0.75, 0.5, 0.25]
    """
    return probability_B * (1 - label_smoothing) + (1 - probability_B) * label_smoothing


def preference_loss(
    chosen_B: Tensor,
    rejected_B: Tensor,
    probability_B: Tensor,
    *,
    margin_B: Tensor | None = None,
    label_smoothing: float = 0.0,
    center_weight: float = 0.0,
) -> Tensor:
    """Bradley-Terry loss of each pair's two scores, with the usual additions.

    BT(r_chosen - r_rejected - m; p_smoothed) + c (r_chosen + r_rejected)^2. The margin m says by how much `chosen`
    is better: a number on the scale of the scores.
    Sources: Bradley & Terry 1952; margin: Touvron et al. 2023 (arXiv:2307.09288), eq. 2; centering: Eisenstein et
    al. 2023 (arXiv:2312.09244).

    >>> import torch
    >>> one = torch.ones(1)
    >>> round(preference_loss(3 * one, one, one, margin_B=2 * one, center_weight=0.125).item(), 4)
    2.6931
    """
    difference_B = chosen_B - rejected_B
    if margin_B is not None:
        difference_B = difference_B - margin_B
    loss_B = bradley_terry(difference_B, smoothed(probability_B, label_smoothing))
    return loss_B + center_weight * (chosen_B + rejected_B) ** 2


@dataclass(frozen=True)
class DpoLoss:
    """Loss of DPO on some pairs, and its measures; the rewards carry no gradient."""

    loss_B: Tensor
    chosen_reward_B: Tensor
    rejected_reward_B: Tensor


def dpo_loss(
    chosen_B: Tensor,
    rejected_B: Tensor,
    reference_chosen_B: Tensor,
    reference_rejected_B: Tensor,
    probability_B: Tensor,
    *,
    beta: float,
    label_smoothing: float = 0.0,
) -> DpoLoss:
    """Bradley-Terry loss of the rewards that a policy implies: beta (log p(answer) - log p_ref(answer)).

    Log-probabilities are sums over the tokens of an answer. -p log s(h) - (1 - p) log s(-h) with h the reward of the
    chosen answer less that of the rejected one, and p the label, soft or smoothed.
    Sources: Rafailov et al. 2023 (arXiv:2305.18290), eq. 7; soft labels: Mitchell 2023, as in `smoothed`.

    >>> import torch
    >>> pair = torch.tensor([-1.0]), torch.tensor([-5.0]), torch.tensor([-2.0]), torch.tensor([-4.0])
    >>> found = dpo_loss(*pair, torch.ones(1), beta=0.5)
    >>> round(found.loss_B.item(), 4), found.chosen_reward_B.item(), found.rejected_reward_B.item()
    (0.3133, 0.5, -0.5)
    """
    chosen_reward_B = beta * (chosen_B - reference_chosen_B)
    rejected_reward_B = beta * (rejected_B - reference_rejected_B)
    loss_B = preference_loss(chosen_reward_B, rejected_reward_B, probability_B, label_smoothing=label_smoothing)
    return DpoLoss(loss_B, chosen_reward_B.detach(), rejected_reward_B.detach())
