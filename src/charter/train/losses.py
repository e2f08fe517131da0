"""Losses as sums of terms, and the sums that every other loss is made of. Pure functions of tensors.

Legend: B sequences or pairs, T tokens, V vocabulary, R answer tokens.
"""

from dataclasses import dataclass
from typing import assert_never

import torch
import torch.nn.functional as functional
from torch import Tensor

from charter.spec.rewards import LossAggregation


@dataclass(frozen=True)
class Summed:
    """A sum of terms and how many there are: parts of a batch add up to the whole, in any division.

    >>> part, rest = Summed(torch.tensor(6.0), torch.tensor(1)), Summed(torch.tensor(2.0), torch.tensor(3))
    >>> part.mean.item(), rest.mean.item(), (part + rest).mean.item()
    (6.0, 0.6666666865348816, 2.0)
    """

    total: Tensor
    count: Tensor

    def __add__(self, other: "Summed") -> "Summed":
        return Summed(self.total + other.total, self.count + other.count)

    @property
    def mean(self) -> Tensor:
        """The total per term; 0 of no terms."""
        return self.total / self.count.clamp_min(1)

    def detach(self) -> "Summed":
        """The same numbers without a gradient."""
        return Summed(self.total.detach(), self.count)

    def named(self, name: str) -> dict[str, float]:
        """Total and count as plain numbers, `name` and `name_count`, for sums over processes."""
        return {name: self.total.item(), f"{name}_count": float(self.count)}


def aggregate(
    values_BR: Tensor, mask_BR: Tensor, aggregation: LossAggregation, *, divisor_B: Tensor | None = None
) -> Summed:
    """Per-token values as one sum, and the number of terms that its mean over a batch has.

    The mean over B answers of n_b tokens is, for `token`, sum_b sum_t v / sum_b n_b; for `sequence`,
    sum_b (sum_t v / n_b) / B; for `constant`, sum_b (sum_t v / D) / B with one divisor D for all; for `prompt`, the
    mean over prompts of the token mean of each, D_b the tokens of all answers to the prompt of b, in any division of a
    batch. In the first a long answer weighs more, in the second all weigh the same. Answers without a token do not
    count, nor does what the mask leaves out.
    Sources: Yu et al. 2025 (DAPO, arXiv:2503.14476), section 3.3, for the first; Shao et al. 2024 (arXiv:2402.03300),
    eq. 3, for the second; Liu et al. 2025 (Dr. GRPO, arXiv:2503.20783) for the third.

    >>> values, mask = torch.tensor([[1.0, 3.0], [8.0, 9.0]]), torch.tensor([[True, True], [True, False]])
    >>> aggregate(values, mask, "token").mean.item(), aggregate(values, mask, "sequence").mean.item()
    (4.0, 5.0)
    >>> aggregate(values, mask, "constant", divisor_B=torch.tensor([4.0, 4.0])).mean.item()
    1.5
    """
    kept_BR = torch.where(mask_BR, values_BR, torch.zeros((), device=values_BR.device))
    length_B = mask_BR.sum(1)
    match aggregation:
        case "token":
            return Summed(kept_BR.sum(), length_B.sum())
        case "sequence":
            return Summed((kept_BR.sum(1) / length_B.clamp_min(1)).sum(), (length_B > 0).sum())
        case "constant":
            assert divisor_B is not None, "constant needs its divisor"
            return Summed((kept_BR.sum(1) / divisor_B).sum(), (length_B > 0).sum())
        case "prompt":
            assert divisor_B is not None, "prompt needs the tokens of each answer's prompt"
            return Summed((kept_BR.sum(1) / divisor_B).sum(), (length_B / divisor_B).sum())
    assert_never(aggregation)


def reinforce_loss(
    log_probability_BR: Tensor,
    advantage_BR: Tensor,
    mask_BR: Tensor,
    *,
    aggregation: LossAggregation = "token",
    divisor_B: Tensor | None = None,
    weight_BR: Tensor | None = None,
) -> Summed:
    """The policy gradient itself: -w A log p, for one step from the policy that sampled; w is 1 unless given.

    Source: Williams 1992; Lee et al. 2023 (arXiv:2309.00267), appendix on REINFORCE for language models.

    >>> one = torch.ones(1, 1)
    >>> reinforce_loss(-2 * one, 3 * one, one.bool()).mean.item()
    6.0
    """
    loss_BR = -advantage_BR * log_probability_BR
    loss_BR = loss_BR if weight_BR is None else weight_BR * loss_BR
    return aggregate(loss_BR, mask_BR, aggregation, divisor_B=divisor_B)


def bradley_terry(margin_B: Tensor, probability_B: Tensor) -> Tensor:
    """-(p log s(d) + (1 - p) log s(-d)) for score difference d and soft label p, one per pair.

    p = 1 is the hard label (Bradley & Terry 1952; soft labels as Bai et al. 2022, section 4.1).

    >>> round(bradley_terry(torch.tensor([0.0]), torch.tensor([1.0])).item(), 4)
    0.6931
    """
    return -(probability_B * functional.logsigmoid(margin_B) + (1 - probability_B) * functional.logsigmoid(-margin_B))


def smoothed(probability_B: Tensor, label_smoothing: float) -> Tensor:
    """Labels moved towards the other answer: p (1 - s) + (1 - p) s, as if a share s of them were wrong.

    Source: Mitchell 2023, "A note on DPO with noisy preferences & relationship to IPO" (conservative DPO).

    >>> import torch
    >>> smoothed(torch.tensor([1.0, 0.5, 0.0]), 0.25).tolist()
    [0.75, 0.5, 0.25]
    """
    return probability_B * (1 - label_smoothing) + (1 - probability_B) * label_smoothing


def ranked_right(difference_B: Tensor, probability_B: Tensor) -> Tensor:
    """1 for each pair whose scores differ the way that its label says, else 0; one half where one of them is a tie.

    Before its first update every preference model, and every policy beside its own reference, has ties alone.

    >>> import torch
    >>> ranked_right(torch.tensor([2.0, 2.0, 0.0, 2.0]), torch.tensor([0.9, 0.1, 0.1, 0.5])).tolist()
    [1.0, 0.0, 0.5, 0.5]
    """
    return (1 + difference_B.detach().sign() * (probability_B - 0.5).sign()) / 2


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
    """Loss of DPO or a relative on some pairs, and its measures; the rewards carry no gradient."""

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


def ranked_dpo_loss(
    log_probability_BR: Tensor,
    reference_BR: Tensor,
    score_B: Tensor,
    mask_BR: Tensor,
    *,
    beta: float,
) -> dict[str, Summed]:
    """Loss of DPO on pairs of answers that stand together, the one with the higher score chosen, and measures of them.

    A pair of equal scores says nothing and is not counted, nor is one with an answer that the mask leaves out whole.
    `pair_accuracy`: pairs in which the policy, against its reference, prefers the better one (a tie is half a pair);
    `pair_margin`: by how much, in rewards (beta x nats).
    Source: Guo et al. 2024 (arXiv:2402.04792), section 3.

    >>> mask = torch.ones(4, 1).bool()
    >>> now, start = torch.tensor([[-1.0], [-3.0], [-2.0], [-2.0]]), torch.full((4, 1), -2.0)
    >>> pairs = ranked_dpo_loss(now, start, torch.tensor([0.2, 0.9, 1.0, 1.0]), mask, beta=0.5)
    >>> [(name, round(item.mean.item(), 4), int(item.count)) for name, item in pairs.items()]
    [('policy_loss', 1.3133, 1), ('pair_accuracy', 0.0, 1), ('pair_margin', -1.0, 1)]
    """
    score_P2 = score_B.view(-1, 2)
    sums_P2, reference_P2 = ((item * mask_BR).sum(1).view(-1, 2) for item in (log_probability_BR, reference_BR))
    counted_P = (score_P2[:, 0] != score_P2[:, 1]) & mask_BR.any(1).view(-1, 2).all(1)
    order_P2 = score_P2.argsort(1, descending=True)
    (chosen_P, rejected_P), (first_P, second_P) = (
        item.gather(1, order_P2).unbind(1) for item in (sums_P2, reference_P2)
    )
    pairs = dpo_loss(chosen_P, rejected_P, first_P, second_P, torch.ones_like(chosen_P), beta=beta)
    margin_P, count = pairs.chosen_reward_B - pairs.rejected_reward_B, counted_P.sum()
    accuracy_P = ranked_right(margin_P, torch.ones_like(margin_P))
    measures = {"policy_loss": pairs.loss_B, "pair_accuracy": accuracy_P, "pair_margin": margin_P}
    return {name: Summed((value * counted_P).sum(), count) for name, value in measures.items()}


def ipo_loss(
    chosen_B: Tensor,
    rejected_B: Tensor,
    reference_chosen_B: Tensor,
    reference_rejected_B: Tensor,
    probability_B: Tensor,
    *,
    beta: float,
    label_smoothing: float = 0.0,
) -> DpoLoss:
    """Squared distance of a pair's log-ratio from 1 / (2 beta), in nats squared.

    p (d - 1 / (2 beta))^2 + (1 - p) (d + 1 / (2 beta))^2, with d = (log p - log p_ref of the chosen answer) - (the same
    of the rejected one) in nats, log-probabilities summed over an answer's tokens, and p the label, soft or smoothed:
    the expectation of the loss over which answer is the better one. Its least is at d = (2 p - 1) / (2 beta), so that a
    certain label does not drive d without bound. The rewards are those of `dpo_loss`.
    Source: Azar et al. 2023 (arXiv:2310.12036), eq. 17, where beta is called tau.

    >>> import torch
    >>> pair = torch.tensor([-1.0]), torch.tensor([-5.0]), torch.tensor([-2.0]), torch.tensor([-4.0])
    >>> ipo_loss(*pair, torch.ones(1), beta=0.5).loss_B.item(), ipo_loss(*pair, torch.zeros(1), beta=0.5).loss_B.item()
    (1.0, 9.0)
    """
    chosen_nats_B, rejected_nats_B = chosen_B - reference_chosen_B, rejected_B - reference_rejected_B
    difference_B, aim = chosen_nats_B - rejected_nats_B, 1 / (2 * beta)
    label_B = smoothed(probability_B, label_smoothing)
    loss_B = label_B * (difference_B - aim) ** 2 + (1 - label_B) * (difference_B + aim) ** 2
    return DpoLoss(loss_B, beta * chosen_nats_B.detach(), beta * rejected_nats_B.detach())


def kto_loss(
    chosen_B: Tensor,
    rejected_B: Tensor,
    reference_chosen_B: Tensor,
    reference_rejected_B: Tensor,
    probability_B: Tensor,
    *,
    beta: float,
    reference_point: Tensor,
    label_smoothing: float = 0.0,
) -> DpoLoss:
    """Loss of both answers of each pair, each by itself: the mean of the two.

    1 - s(beta (r - z)) of a desirable answer and 1 - s(beta (z - r)) of an undesirable one, with r = log p - log p_ref
    of the answer, summed over its tokens, and z the reference point, both in nats: KL(policy | reference) as answers to
    other prompts estimate it, one number of the whole batch, at least 0 and without a gradient. Both weights of the
    paper are 1, as a pair has one answer of each sort. A soft label p is the expectation: the chosen answer is
    desirable with probability p, the other with 1 - p. The rewards are those of `dpo_loss`.
    Source: Ethayarajh et al. 2024 (arXiv:2402.01306), section 4.1.

    >>> import torch
    >>> pair = torch.tensor([-1.0]), torch.tensor([-5.0]), torch.tensor([-2.0]), torch.tensor([-4.0])
    >>> round(kto_loss(*pair, torch.ones(1), beta=0.5, reference_point=torch.tensor(0.0)).loss_B.item(), 4)
    0.3775
    """
    label_B = smoothed(probability_B, label_smoothing)
    chosen_nats_B, rejected_nats_B = chosen_B - reference_chosen_B, rejected_B - reference_rejected_B
    loss_B = torch.zeros_like(label_B)
    for nats_B, desirable_B in ((chosen_nats_B, label_B), (rejected_nats_B, 1 - label_B)):
        above_B = beta * (nats_B - reference_point)
        loss_B = loss_B + desirable_B * (-above_B).sigmoid() + (1 - desirable_B) * above_B.sigmoid()
    return DpoLoss(loss_B / 2, beta * chosen_nats_B.detach(), beta * rejected_nats_B.detach())


def simpo_loss(
    chosen_B: Tensor,
    rejected_B: Tensor,
    probability_B: Tensor,
    *,
    beta: float,
    target_margin: float = 0.0,
    label_smoothing: float = 0.0,
) -> DpoLoss:
    """Bradley-Terry loss of rewards without a reference: beta times the mean log-probability of an answer's tokens.

    -p log s(h - m) - (1 - p) log s(-h - m), with h the reward of the chosen answer less that of the rejected one, m the
    target margin and p the label, soft or smoothed: the expectation over which answer is the better one. Arguments are
    means over the tokens of an answer, in nats.
    Source: Meng et al. 2024 (arXiv:2405.14734), eq. 6.

    >>> import torch
    >>> pair = torch.tensor([-1.0]), torch.tensor([-2.0]), torch.ones(1)
    >>> round(simpo_loss(*pair, beta=2.0, target_margin=2.0).loss_B.item(), 4)
    0.6931
    """
    label_B, margin_B = smoothed(probability_B, label_smoothing), beta * (chosen_B - rejected_B)
    loss_B = label_B * -functional.logsigmoid(margin_B - target_margin)
    loss_B = loss_B + (1 - label_B) * -functional.logsigmoid(-margin_B - target_margin)
    return DpoLoss(loss_B, beta * chosen_B.detach(), beta * rejected_B.detach())


def log_odds(mean_B: Tensor) -> Tensor:
    """log(p / (1 - p)) of a probability p given as its logarithm, finite where p rounds to 1.

    >>> round(log_odds(torch.tensor(0.5).log()).item(), 4), round(log_odds(torch.tensor(0.8).log()).item(), 4)
    (0.0, 1.3863)
    """
    below_B = mean_B.clamp_max(-torch.finfo(mean_B.dtype).eps)
    return below_B - torch.log(-torch.expm1(below_B))


def orpo_loss(
    chosen_B: Tensor,
    rejected_B: Tensor,
    probability_B: Tensor,
    *,
    beta: float,
    label_smoothing: float = 0.0,
) -> DpoLoss:
    """Language loss of the chosen answer, plus beta times the Bradley-Terry loss of both answers' log-odds.

    -l_c - beta log s(o_c - o_r), with l the mean log-probability of an answer's tokens and o = log(e^l / (1 - e^l)); by
    a soft or smoothed label p the expectation over which answer is the better one. The rewards are beta l.
    Source: Hong et al. 2024 (arXiv:2403.07691), eq. 6 and 7, where beta is called lambda.

    >>> import torch
    >>> pair = torch.tensor([0.5]).log(), torch.tensor([0.5]).log(), torch.ones(1)
    >>> round(orpo_loss(*pair, beta=1.0).loss_B.item(), 4)
    1.3863
    """
    label_B = smoothed(probability_B, label_smoothing)
    language_B = -label_B * chosen_B - (1 - label_B) * rejected_B
    odds_B = bradley_terry(log_odds(chosen_B) - log_odds(rejected_B), label_B)
    return DpoLoss(language_B + beta * odds_B, beta * chosen_B.detach(), beta * rejected_B.detach())
