"""The penalty that keeps a policy near its reference, per token."""

from typing import Literal, assert_never

import torch
from torch import Tensor

KlEstimator = Literal["k1", "k3"]


def kl_penalty(log_probability: Tensor, reference_log_probability: Tensor, *, estimator: KlEstimator) -> Tensor:
    """An estimate of KL(policy | reference) in nats, for each token on its own.

    With d = log p - log p_ref: k1 = d, which may be negative; k3 = exp(-d) - 1 + d, which is not and varies less.
    Both are unbiased for tokens drawn from the policy, and 0 where the two agree.
    Source: Schulman 2020, "Approximating KL divergence" (http://joschu.net/blog/kl-approx.html).

    >>> half, quarter = torch.log(torch.tensor(0.5)), torch.log(torch.tensor(0.25))
    >>> [round(kl_penalty(half, quarter, estimator=name).item(), 4) for name in ("k1", "k3")]
    [0.6931, 0.1931]
    """
    difference = log_probability - reference_log_probability
    match estimator:
        case "k1":
            return difference
        case "k3":
            return torch.expm1(-difference) + difference
    assert_never(estimator)
