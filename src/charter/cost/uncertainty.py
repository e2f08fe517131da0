"""Uncertain multipliers: a cause, and the distribution of the factor that it contributes.

Two quantities that name the same cause move together: one provider's prices, one estimator's error.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from charter.physics.terms import Z90, Interval

Draws = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Lognormal:
    """`median x exp(sigma z)`."""

    median: float = 1.0
    sigma: float

    def draws(self, noise: "Noise", cause: str) -> Draws:
        """One factor per draw."""
        return self.median * np.exp(self.sigma * noise.normal(cause))


@dataclass(frozen=True, kw_only=True)
class Uniform:
    """Evenly between two factors."""

    low: float
    high: float

    def draws(self, noise: "Noise", cause: str) -> Draws:
        """One factor per draw."""
        return self.low + (self.high - self.low) * noise.uniform(cause)


@dataclass(frozen=True, kw_only=True)
class LogUniform:
    """Evenly on a logarithmic scale: every doubling is as likely."""

    low: float
    high: float

    def draws(self, noise: "Noise", cause: str) -> Draws:
        """One factor per draw."""
        return self.low * np.exp(math.log(self.high / self.low) * noise.uniform(cause))


@dataclass(frozen=True, kw_only=True)
class Idle:
    """`1 / (1 - f)` with the idle share f evenly between two values."""

    low: float
    high: float

    def draws(self, noise: "Noise", cause: str) -> Draws:
        """One factor per draw."""
        return 1.0 / (1.0 - Uniform(low=self.low, high=self.high).draws(noise, cause))


@dataclass(frozen=True, kw_only=True)
class ThreePoint:
    """Known at its 10th, 50th and 90th percentile: straight lines between them over normal scores, never below 0."""

    p10: float
    p50: float
    p90: float

    def draws(self, noise: "Noise", cause: str) -> Draws:
        """One value per draw."""
        scores = noise.normal(cause) / Z90
        below, above = self.p50 - self.p10, self.p90 - self.p50
        return np.maximum(0.0, self.p50 + np.where(scores < 0, below, above) * scores)


@dataclass(frozen=True, kw_only=True)
class Quantiles:
    """Known at many levels between 0 and 1: straight lines between its quantiles."""

    levels: tuple[float, ...]
    values: tuple[float, ...]

    def draws(self, noise: "Noise", cause: str) -> Draws:
        """One value per draw."""
        return np.interp(noise.uniform(cause), self.levels, self.values)


@lru_cache(maxsize=8)
def _strata(kind: str, size: int) -> Draws:
    """The middles of equally likely strata, in order."""
    levels = (np.arange(size) + 0.5) / size
    if kind == "uniform":
        return levels
    normal = NormalDist()
    return np.array([normal.inv_cdf(level) for level in levels.tolist()])


Distribution = Lognormal | Uniform | LogUniform | Idle | ThreePoint | Quantiles


@dataclass(frozen=True, kw_only=True)
class Factor:
    """A cause and what it multiplies by."""

    cause: str
    distribution: Distribution


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Random numbers by cause: the same seed and cause give the same numbers, whatever else is drawn.

    Counter-based (Philox), keyed by SHA-256 of seed and cause, so no cause depends on the order of the others. Each
    cause takes the middle of every one of `size` equally likely strata once, in random order, so that its own quantiles
    are exact: Latin hypercube sampling. Source: McKay, Beckman and Conover 1979.
    """

    seed: int
    size: int
    _made: dict[str, Any] = field(default_factory=dict)

    def normal(self, cause: str) -> Draws:
        """Standard normal numbers of a cause."""
        return self._numbers(cause, "normal")

    def uniform(self, cause: str) -> Draws:
        """Numbers of a cause between 0 and 1."""
        return self._numbers(cause, "uniform")

    @property
    def causes(self) -> dict[str, Draws]:
        """Return the numbers drawn so far, by cause."""
        return {name.partition(":")[2]: values for name, values in self._made.items()}

    def _numbers(self, cause: str, kind: str) -> Draws:
        name = f"{kind}:{cause}"
        if name not in self._made:
            key = int.from_bytes(sha256(f"{self.seed}:{cause}".encode()).digest()[:16], "little")
            generator = np.random.Generator(np.random.Philox(key=key))
            self._made[name] = generator.permutation(_strata(kind, self.size))
        drawn: Draws = self._made[name]
        return drawn


def exactly(value: float) -> Interval:
    """A quantity without spread.

    >>> exactly(3.0).p90
    3.0
    """
    return Interval(p10=value, p50=value, p90=value)


def lognormal(median: float, *sigmas: float) -> Interval:
    """The range of a product of independent lognormal factors with this median.

    Variances of the logarithms add: `sigma^2 = sum sigma_i^2`; `p90 = median x exp(1.2816 sigma)`.

    >>> round(lognormal(100.0, 0.20, 0.25).p90, 1)
    150.7
    """
    return Interval.around(median, sigma=math.hypot(*sigmas) if sigmas else 0.0)


def add(intervals: Iterable[Interval]) -> Interval:
    """The sum of quantities that err together: quantiles add.

    Stages share one estimator, one provider and one guess of the answer length, so their errors are taken
    as fully dependent. That keeps every column of a report equal to the sum of its parts; for independent
    errors it is too wide.

    >>> add([exactly(1.0), lognormal(2.0, 0.1)]).p50
    3.0
    """
    parts = list(intervals)
    return Interval(
        p10=math.fsum(part.p10 for part in parts),
        p50=math.fsum(part.p50 for part in parts),
        p90=math.fsum(part.p90 for part in parts),
    )
