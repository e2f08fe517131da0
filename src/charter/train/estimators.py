"""Advantages without a value model: the answers to one prompt are compared with one another.

Every `samples` consecutive answers are a group: they answer the same prompt.
Legend: B answers, R answer tokens, G groups, S samples of a group.
"""

import torch
from torch import Tensor

from charter.train.losses import Summed

DEVIATION_FLOOR = 1e-6
"""Added to a group's deviation, so that scores which differ by rounding alone do not become large advantages."""


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


def grpo_advantages(score_B: Tensor, mask_BR: Tensor, *, samples: int) -> Tensor:
    """Every token of an answer gets its score, shifted and scaled by the scores of its prompt's answers.

    A_i = (s_i - mean(s)) / (std(s) + 1e-6), std with S - 1 in its denominator; exactly 0 where all scores are equal.
    Source: Shao et al. 2024 (arXiv:2402.03300), section 4.1.2 (outcome supervision); the paper leaves open which
    deviation it takes.

    >>> grpo_advantages(torch.tensor([1.0, 2.0, 3.0]), torch.ones(3, 1).bool(), samples=3).round(decimals=4).tolist()
    [[-1.0], [0.0], [1.0]]
    """
    score_GS = _grouped(score_B, samples)
    from_first_GS = score_GS - score_GS[:, :1]
    centred_GS = from_first_GS - from_first_GS.mean(1, keepdim=True)
    deviation_G1 = torch.sqrt((centred_GS**2).sum(1, keepdim=True) / (samples - 1))
    return _to_tokens(centred_GS / (deviation_G1 + DEVIATION_FLOOR), mask_BR)


def degenerate_groups(score_B: Tensor, *, samples: int) -> Summed:
    """How many prompts teach nothing, because all their answers have the same score.

    >>> degenerate_groups(torch.tensor([1.0, 1.0, 1.0, 2.0]), samples=2).mean.item()
    0.5
    """
    score_GS = _grouped(score_B, samples)
    same_G = (score_GS == score_GS[:, :1]).all(1)
    return Summed(same_G.sum().float(), torch.tensor(len(same_G), device=score_B.device))


def _grouped(values_B: Tensor, samples: int) -> Tensor:
    assert samples >= 2, "a group needs two answers to be compared"
    assert len(values_B) % samples == 0, "every group is whole"
    return values_B.view(-1, samples)


def _to_tokens(advantage_GS: Tensor, mask_BR: Tensor) -> Tensor:
    return advantage_GS.flatten()[:, None] * mask_BR
