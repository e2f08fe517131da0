"""Smaller and longer: the model of a wanted loss that is cheapest to train and to serve together."""

from __future__ import annotations

import math
from dataclasses import dataclass

from charter.physics.scaling.laws import FLOPS_PER_PARAMETER_AND_TOKEN, Law, minimised, tokens_for_loss

SERVING_FLOPS_PER_PARAMETER_AND_TOKEN = 2.0
"""A forward pass only."""
SERVING_UTILISATION = 0.15
"""Share of the peak that answering reaches over a day; judgement: decoding waits for memory, and load is uneven."""
SMALLEST_SHARE = 0.02
"""Of the compute-optimal size: how small a model is considered."""


@dataclass(frozen=True, kw_only=True)
class ServingAware:
    """The size that is cheapest over training and serving, beside the compute-optimal one of the same loss."""

    num_parameters: float
    num_tokens: float
    training_flops: float
    serving_flops: float
    accelerator_flops: float
    """Peak operations bought for both: each over its utilisation."""
    optimal_accelerator_flops: float
    """The same for the compute-optimal size."""

    @property
    def saved_share(self) -> float:
        """Return the share of the accelerator time that the smaller model saves."""
        return 1 - self.accelerator_flops / self.optimal_accelerator_flops


def serving_aware(
    law: Law,
    *,
    num_parameters: float,
    num_tokens: float,
    generated_tokens: float,
    training_utilisation: float,
    serving_utilisation: float = SERVING_UTILISATION,
) -> ServingAware:
    """The smallest sum of training and serving at the loss of a compute-optimal run.

    Minimises `6 N D / u_t + 2 N G / u_s` over N, where D(N) keeps the loss, G generated tokens (prompts count as
    generated), u the utilisations. Source: Sardana et al. 2023 (arXiv:2401.00448), sections 3 and 4. Without anything
    to serve it gives the compute-optimal size back.

    >>> from charter.physics.scaling.laws import BESIROGLU_2024
    >>> size, tokens = BESIROGLU_2024.optimal(5.76e23)
    >>> more = serving_aware(BESIROGLU_2024, num_parameters=size, num_tokens=tokens, generated_tokens=2e12,
    ...                      training_utilisation=0.4)
    >>> more.num_parameters < size, more.num_tokens > tokens, more.saved_share > 0
    (True, True, True)
    """
    loss = law.loss(num_parameters, num_tokens)

    def bought(size: float, tokens: float) -> float:
        training = FLOPS_PER_PARAMETER_AND_TOKEN * size * tokens / training_utilisation
        return training + SERVING_FLOPS_PER_PARAMETER_AND_TOKEN * size * generated_tokens / serving_utilisation

    def cost(log_size: float) -> float:
        tokens = tokens_for_loss(law, math.exp(log_size), loss)
        return math.inf if math.isinf(tokens) else math.log(bought(math.exp(log_size), tokens))

    top = math.log(num_parameters) + math.log(2)
    size = math.exp(minimised(cost, top + math.log(SMALLEST_SHARE / 2), top))
    tokens = tokens_for_loss(law, size, loss)
    return ServingAware(
        num_parameters=size,
        num_tokens=tokens,
        training_flops=FLOPS_PER_PARAMETER_AND_TOKEN * size * tokens,
        serving_flops=SERVING_FLOPS_PER_PARAMETER_AND_TOKEN * size * generated_tokens,
        accelerator_flops=bought(size, tokens),
        optimal_accelerator_flops=bought(num_parameters, num_tokens),
    )
