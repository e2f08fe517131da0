"""Distributions of times: between failures, of a spot machine's life, of an outage."""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Seconds = NDArray[np.float64]


class Durations(Protocol):
    """A distribution of positive times in seconds."""

    @property
    def mean_seconds(self) -> float:
        """The mean."""
        ...

    def draw(self, random: np.random.Generator, count: int) -> Seconds:
        """So many independent times."""
        ...


@dataclass(frozen=True, kw_only=True)
class Exponential:
    """Memoryless times: independent failures of many parts."""

    mean_seconds: float

    def draw(self, random: np.random.Generator, count: int) -> Seconds:
        """Independent exponential times; infinite where the mean is."""
        if math.isinf(self.mean_seconds):
            return np.full(count, np.inf)
        return random.standard_exponential(count) * self.mean_seconds


@dataclass(frozen=True, kw_only=True)
class Weibull:
    """Times whose hazard falls (shape below 1: failures come in clusters) or rises with age (above 1).

    Shapes of 0.7 to 0.8 were fitted to failures of large systems: Schroeder and Gibson 2006, section 5.3.
    """

    mean_seconds: float
    shape: float

    def draw(self, random: np.random.Generator, count: int) -> Seconds:
        """Independent Weibull times of the given mean: the scale is `mean / gamma(1 + 1/shape)`."""
        scale = self.mean_seconds / math.gamma(1 + 1 / self.shape)
        return random.standard_exponential(count) ** (1 / self.shape) * scale


@dataclass(frozen=True, kw_only=True)
class LogNormal:
    """Heavy-tailed times by mean and median: most are short, a few are very long.

    The standard deviation of the logarithm is `sqrt(2 ln(mean / median))`.
    """

    mean_seconds: float
    median_seconds: float

    @property
    def sigma(self) -> float:
        """Standard deviation of the logarithm."""
        return math.sqrt(2 * math.log(self.mean_seconds / self.median_seconds))

    def draw(self, random: np.random.Generator, count: int) -> Seconds:
        """Independent lognormal times."""
        return np.exp(self.sigma * random.standard_normal(count)) * self.median_seconds


@dataclass(frozen=True, kw_only=True)
class Fixed:
    """Always the same time."""

    mean_seconds: float

    def draw(self, random: np.random.Generator, count: int) -> Seconds:
        """The time, `count` times."""
        return np.full(count, self.mean_seconds)
