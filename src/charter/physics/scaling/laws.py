"""Scaling laws as formulas: loss from size and tokens, and the size that spends a budget best."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

PF_DAY_FLOPS = 8.64e19
"""Operations of one petaflop/s for a day."""
FLOPS_PER_PARAMETER_AND_TOKEN = 6.0
"""Forward and backward pass of a dense model: Kaplan et al. 2020 (arXiv:2001.08361), section 2.1."""
GOLDEN = (math.sqrt(5) - 1) / 2


class Law(Protocol):
    """Protocol of a scaling law, whatever its form."""

    @property
    def form(self) -> str:
        """`chinchilla` or `kaplan`."""

    @property
    def source(self) -> str:
        """Return the source of its constants."""

    def loss(self, num_parameters: float, num_tokens: float) -> float:
        """Nats per token of a model after so many tokens, each seen once."""

    def optimal(self, compute_flops: float) -> tuple[float, float]:
        """Parameters and tokens that minimise the loss at `C = 6 N D`."""


@dataclass(frozen=True, kw_only=True)
class ParametricLaw:
    """`L(N, D) = E + A / N^alpha + B / D^beta`, loss in nats per token."""

    form: ClassVar[str] = "chinchilla"

    irreducible_loss: float
    size_coefficient: float
    size_exponent: float
    data_coefficient: float
    data_exponent: float
    source: str

    def loss(self, num_parameters: float, num_tokens: float) -> float:
        """Predicted loss of a model of `num_parameters` after `num_tokens` (no repeats)."""
        size = self.size_coefficient / num_parameters**self.size_exponent
        return float(self.irreducible_loss + size + self.data_coefficient / num_tokens**self.data_exponent)

    def optimal(self, compute_flops: float) -> tuple[float, float]:
        """Parameters and tokens that minimise the loss at `C = 6 N D`.

        `N = G (C / 6)^(beta / (alpha + beta))`, `G = (alpha A / (beta B))^(1 / (alpha + beta))`, `D = C / (6 N)`.
        Source: Hoffmann et al. 2022 (arXiv:2203.15556), section 3.3, equation 4.

        >>> num_parameters, num_tokens = HOFFMANN_2022.optimal(5.76e23)
        >>> round(num_parameters / 1e9), round(num_tokens / 1e12, 1)
        (32, 3.0)
        """
        a, b = self.size_exponent, self.data_exponent
        g = (a * self.size_coefficient / (b * self.data_coefficient)) ** (1 / (a + b))
        num_parameters = g * (compute_flops / FLOPS_PER_PARAMETER_AND_TOKEN) ** (b / (a + b))
        return num_parameters, compute_flops / (FLOPS_PER_PARAMETER_AND_TOKEN * num_parameters)


@dataclass(frozen=True, kw_only=True)
class KaplanLaw:
    """`L(N, D) = [(Nc / N)^(aN / aD) + Dc / D]^aD`, loss in nats per token, N without embeddings.

    Source of the form: Kaplan et al. 2020 (arXiv:2001.08361), equation 1.5. It has no irreducible loss, so it
    promises a loss of zero to an endless model.
    """

    form: ClassVar[str] = "kaplan"

    size_scale: float
    """`Nc`: parameters at which size alone gives a loss of 1."""
    size_exponent: float
    data_scale: float
    """`Dc`: tokens at which data alone gives a loss of 1."""
    data_exponent: float
    source: str

    def loss(self, num_parameters: float, num_tokens: float) -> float:
        """Predicted loss of a model of `num_parameters` after `num_tokens`."""
        size = (self.size_scale / num_parameters) ** (self.size_exponent / self.data_exponent)
        return float((size + self.data_scale / num_tokens) ** self.data_exponent)

    def optimal(self, compute_flops: float) -> tuple[float, float]:
        """Parameters and tokens that minimise the loss at `C = 6 N D`, in closed form.

        With `r = aN / aD` and `x = C / 6`, the derivative of `(Nc / N)^r + Dc N / x` is zero at
        `N = (r Nc^r x / Dc)^(1 / (1 + r))`. It is the optimum of runs trained to convergence on D tokens; Kaplan's
        own efficient frontier (`N ~ C^0.73`) stops earlier.

        >>> num_parameters, num_tokens = KAPLAN_2020.optimal(5.76e23)
        >>> round(num_parameters / 1e9), round(num_tokens / 1e12, 2)
        (192, 0.5)
        """
        ratio = self.size_exponent / self.data_exponent
        base = compute_flops / FLOPS_PER_PARAMETER_AND_TOKEN
        logarithm = math.log(ratio) + ratio * math.log(self.size_scale) + math.log(base) - math.log(self.data_scale)
        num_parameters = math.exp(logarithm / (1 + ratio))
        return num_parameters, base / num_parameters


HOFFMANN_2022 = ParametricLaw(
    irreducible_loss=1.69,
    size_coefficient=406.4,
    size_exponent=0.34,
    data_coefficient=410.7,
    data_exponent=0.28,
    source="Hoffmann et al. 2022 (arXiv:2203.15556), approach 3, as printed (rounded exponents)",
)
BESIROGLU_2024 = ParametricLaw(
    irreducible_loss=1.8172,
    size_coefficient=482.01,
    size_exponent=0.3478,
    data_coefficient=2085.43,
    data_exponent=0.3658,
    source="Besiroglu et al. 2024 (arXiv:2404.10102), re-fit of Hoffmann's data",
)
KAPLAN_2020 = KaplanLaw(
    size_scale=8.8e13,
    size_exponent=0.076,
    data_scale=5.4e13,
    data_exponent=0.095,
    source="Kaplan et al. 2020 (arXiv:2001.08361), equations 1.1, 1.2 and 1.5, on WebText2",
)
TOKENS_PER_PARAMETER = 20.0
"""Hoffmann et al. 2022, table 3, approaches 1 and 2: about 20 tokens per parameter. Rule of thumb."""


REPEAT_DECAY = 15.387756
"""`R*_D` of Muennighoff et al. 2023 (arXiv:2305.16264), appendix A; printed as 15.39 in the text."""


def effective_tokens(num_tokens: float, unique_tokens: float) -> float:
    """Return the worth of `num_tokens` of which only `unique_tokens` differ: `U + U R* (1 - exp(-R / R*))`.

    U unique tokens, `R = D / U - 1` repeats, `R* = 15.39`. Source: Muennighoff et al. 2023 (arXiv:2305.16264),
    equation 5; fitted on models of up to 9e9 parameters and up to 1,500 epochs. Their second correction, for models
    larger than the unique data deserves, is left out: it also moves runs of a single epoch.

    >>> round(effective_tokens(4e11, 1e11) / 1e11, 2), effective_tokens(1e11, 5e11)
    (3.73, 100000000000.0)
    """
    if unique_tokens >= num_tokens:
        return num_tokens
    repeats = num_tokens / unique_tokens - 1
    return unique_tokens * (1 + REPEAT_DECAY * -math.expm1(-repeats / REPEAT_DECAY))


def tokens_for_loss(law: Law, num_parameters: float, loss: float) -> float:
    """Tokens after which a model of this size has this loss; infinite when it never does.

    >>> tokens = tokens_for_loss(BESIROGLU_2024, 7e9, BESIROGLU_2024.loss(7e9, 2e12))
    >>> round(tokens / 1e12, 3)
    2.0
    """
    low, high = 0.0, math.log(1e24)
    if law.loss(num_parameters, math.exp(high)) > loss:
        return math.inf
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if law.loss(num_parameters, math.exp(middle)) > loss else (low, middle)
    return math.exp(high)


def minimised(cost: Callable[[float], float], low: float, high: float) -> float:
    """Return the minimum point of a function that has one, by golden section to 1e-9 of `low` to `high`.

    The function may be infinite up to some point at the low end.

    >>> round(minimised(lambda x: (x - 2) ** 2, 0.0, 5.0), 6)
    2.0
    """
    left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
    at_left, at_right = cost(left), cost(right)
    while high - low > 1e-9 * max(1.0, abs(high)):
        if at_left <= at_right and not math.isinf(at_left):
            high, right, at_right = right, left, at_left
            left = high - GOLDEN * (high - low)
            at_left = cost(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + GOLDEN * (high - low)
            at_right = cost(right)
    return (low + high) / 2
