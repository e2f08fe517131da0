"""Scaling laws: loss from size and tokens, what is known of their error, and the size that spends a budget best."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from types import MappingProxyType
from typing import ClassVar, Protocol

import numpy as np

from charter.errors import UsageError
from charter.physics.columns import array
from charter.physics.terms import Z90, Interval

# -------- Scaling laws as formulas: loss from size and tokens, and the size that spends a budget best.

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


# -------- A law with what is known of its error: draws, noise, and the range it was fitted on.

FAR, VERY_FAR = 10.0, 100.0
"""Times the largest fitted compute beyond which a prediction is told to be an extrapolation; judgement."""


@dataclass(frozen=True, kw_only=True)
class Range:
    """Smallest and largest size, tokens and compute that a law was fitted on."""

    parameters: tuple[float, float]
    tokens: tuple[float, float]
    compute_flops: tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Loss of one model, and what to be wary of."""

    loss: Interval
    worth_tokens: float
    """Tokens after discounting repeats."""
    extrapolation: float
    """Compute over the largest that was fitted."""
    warnings: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class FittedLaw:
    """A law, other laws that fit resamples of its runs, and how far single runs lie from it."""

    law: Law
    fitted_on: Range
    noise: float
    """Standard deviation of `log(measured / predicted)`."""
    draws: tuple[Law, ...] = ()
    """Laws fitted to resampled runs; of published laws, what their printed errors allow; may be empty."""
    learning_rate: tuple[float, float] | None = None
    """`(k, p)` of `k C^p` through the runs' own learning rates."""
    batch_tokens: tuple[float, float] | None = None
    """The same of their batches."""

    def band(self, quantity: Callable[[Law], float]) -> Interval:
        """A quantity of the law, with the 10th and 90th percentile over its draws."""
        middle = quantity(self.law)
        if not self.draws:
            return Interval(p10=middle, p50=middle, p90=middle)
        low, high = (float(v) for v in np.quantile(array([quantity(draw) for draw in self.draws]), (0.1, 0.9)))
        return Interval(p10=min(low, middle), p50=middle, p90=max(high, middle))

    def predict(self, num_parameters: float, num_tokens: float, unique_tokens: float | None = None) -> Prediction:
        """Loss with p10 and p90: the spread of the draws and the noise of a single run, in quadrature.

        The band knows nothing of other data, tokenizers or recipes than those of the fit.
        """
        worth = num_tokens if unique_tokens is None else effective_tokens(num_tokens, unique_tokens)
        spread = self.band(lambda law: law.loss(num_parameters, worth))
        noise = Z90 * self.noise
        low = math.hypot(math.log(spread.p50 / spread.p10), noise)
        high = math.hypot(math.log(spread.p90 / spread.p50), noise)
        compute = FLOPS_PER_PARAMETER_AND_TOKEN * num_parameters * num_tokens
        return Prediction(
            loss=Interval(p10=spread.p50 * math.exp(-low), p50=spread.p50, p90=spread.p50 * math.exp(high)),
            worth_tokens=worth,
            extrapolation=compute / self.fitted_on.compute_flops[1],
            warnings=_warnings(self.fitted_on, num_parameters, num_tokens, unique_tokens),
        )

    def optimal(self, compute_flops: float) -> tuple[Interval, Interval]:
        """Compute-optimal parameters and tokens, with the spread of the draws."""
        return (
            self.band(lambda law: law.optimal(compute_flops)[0]),
            self.band(lambda law: law.optimal(compute_flops)[1]),
        )


def _warnings(limits: Range, parameters: float, tokens: float, unique: float | None) -> tuple[str, ...]:
    warnings = []
    factor = FLOPS_PER_PARAMETER_AND_TOKEN * parameters * tokens / limits.compute_flops[1]
    if factor > VERY_FAR:
        warnings.append(f"{factor:,.0f} times the compute of the largest fitted run: no more than a direction")
    elif factor > FAR:
        warnings.append(f"{factor:,.0f} times the compute of the largest fitted run: an extrapolation")
    for what, value, (low, high) in (("parameters", parameters, limits.parameters), ("tokens", tokens, limits.tokens)):
        if not low * (1 - 1e-9) <= value <= high * (1 + 1e-9):
            warnings.append(f"{value:.3g} {what} lie outside the fitted {low:.3g} to {high:.3g}")
    if unique is not None and tokens / unique > 4:
        warnings.append(
            f"{tokens / unique:.1f} passes over the data; above 4 the returns fall quickly (Muennighoff et al. 2023)"
        )
    return tuple(warnings)


_CHINCHILLA_RUNS = Range(parameters=(44e6, 16e9), tokens=(5e9, 500e9), compute_flops=(6e18, 3e21))
"""Hoffmann et al. 2022, sections 1 and 3: 70e6 (44e6 in table A9) to 16e9 parameters, 5e9 to 500e9 tokens; budgets of
the IsoFLOP runs."""
_BESIROGLU_NOISE = 0.03 / 1.94
"""Besiroglu et al. 2024, table 1: standard error of E 0.03 nats, the term that decides far out, at a loss of 1.94."""
_KAPLAN_NOISE = 0.02
"""Judgement: their curves lie within about 2 % of the points drawn."""

_EXPONENT_ERROR = 0.02
"""Besiroglu et al. 2024, table 1: standard error of both exponents."""
_CENTRE = (1e9, 2e10)
"""Parameters and tokens in the middle of the Chinchilla runs, where the terms of a law are known best."""


def _published_draws(law: ParametricLaw) -> tuple[Law, ...]:
    """Laws whose exponents lie at the deciles of their published standard error.

    A and B follow so that both terms stay as they are in the middle of the runs: the published errors of exponent and
    coefficient are almost wholly correlated, and the covariance itself is not printed. Judgement; E is in the noise.
    """
    deciles = [NormalDist().inv_cdf(share) for share in (0.1, 0.3, 0.5, 0.7, 0.9)]
    shifts = [_EXPONENT_ERROR * z for z in deciles]
    return tuple(
        replace(
            law,
            size_exponent=law.size_exponent + of_size,
            size_coefficient=law.size_coefficient * _CENTRE[0] ** of_size,
            data_exponent=law.data_exponent + of_data,
            data_coefficient=law.data_coefficient * _CENTRE[1] ** of_data,
        )
        for of_size in shifts
        for of_data in shifts
    )


PUBLISHED: Mapping[str, FittedLaw] = MappingProxyType(
    {
        "hoffmann2022": FittedLaw(
            law=HOFFMANN_2022,
            fitted_on=_CHINCHILLA_RUNS,
            noise=_BESIROGLU_NOISE,
            draws=_published_draws(HOFFMANN_2022),
        ),
        "besiroglu2024": FittedLaw(
            law=BESIROGLU_2024,
            fitted_on=_CHINCHILLA_RUNS,
            noise=_BESIROGLU_NOISE,
            draws=_published_draws(BESIROGLU_2024),
        ),
        "kaplan2020": FittedLaw(
            law=KAPLAN_2020,
            fitted_on=Range(parameters=(768, 1.5e9), tokens=(2.2e7, 2.3e10), compute_flops=(1e12, 2.07e20)),
            noise=_KAPLAN_NOISE,
        ),
    }
)
"""Published laws by name. Kaplan et al. 2020, section 1.1: 768 to 1.5e9 parameters without embeddings, 2.2e7 to 2.3e10
tokens; the compute range is the product of both."""


def published(name: str) -> FittedLaw:
    """A published law by name.

    >>> published("besiroglu2024").law.source[:9]
    'Besiroglu'
    """
    if name not in PUBLISHED:
        raise UsageError(
            f"no law is called {name!r}; give {', '.join(PUBLISHED)}, or the file of `charter plan scale fit`"
        )
    return PUBLISHED[name]


def range_of(parameters: Sequence[float], tokens: Sequence[float], compute_flops: Sequence[float]) -> Range:
    """From the least to the most of each."""
    return Range(
        parameters=(min(parameters), max(parameters)),
        tokens=(min(tokens), max(tokens)),
        compute_flops=(min(compute_flops), max(compute_flops)),
    )


# -------- Smaller and longer: the model of a wanted loss that is cheapest to train and to serve together.

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
        return training + SERVING_FLOPS_PER_PARAMETER_AND_TOKEN * size * generated_tokens / SERVING_UTILISATION

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
