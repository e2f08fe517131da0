"""A law with what is known of its error: draws, noise, and the range it was fitted on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from types import MappingProxyType

import numpy as np

from charter.errors import UsageError
from charter.physics.arrays import array
from charter.physics.scaling.laws import (
    BESIROGLU_2024,
    FLOPS_PER_PARAMETER_AND_TOKEN,
    HOFFMANN_2022,
    KAPLAN_2020,
    Law,
    ParametricLaw,
    effective_tokens,
)
from charter.physics.terms import Z90, Interval

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
