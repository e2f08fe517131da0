"""Test whether two measured figures differ by more than the noise of measuring them. Pure."""

import math
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["higher", "lower", "within noise", "no interval"]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A figure and its 95 % interval; no interval where none was computed."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A figure less another one, in their own unit, with the 95 % interval of the difference."""

    value: float
    low: float | None
    high: float | None

    @property
    def verdict(self) -> Verdict:
        """`higher` or `lower` where the whole interval is on one side of zero."""
        if self.low is None or self.high is None:
            return "no interval"
        return "higher" if self.low > 0 else "lower" if self.high < 0 else "within noise"


def difference(figure: Measured, base: Measured) -> Difference:
    """`figure - base`, with an interval made of both intervals.

    low = d - sqrt((f - f_low)^2 + (b_high - b)^2), high = d + sqrt((f_high - f)^2 + (b - b_low)^2), d = f - b.

    Units are those of the figures. Source: Zou and Donner 2008, Statistics in Medicine 27:1693; of shares with Wilson
    intervals it is method 10 of Newcombe 1998, Statistics in Medicine 17:873. True for independent figures. Of two
    policies asked the same prompts the real interval is narrower as far as they agree prompt by prompt, so `within
    noise` is said too often rather than too rarely. It covers the choice of prompts, not another training seed.

    >>> found = difference(Measured(value=0.7, low=0.6, high=0.8), Measured(value=0.5, low=0.4, high=0.6))
    >>> round(found.low, 3), round(found.high, 3), found.verdict
    (0.059, 0.341, 'higher')
    """
    apart = figure.value - base.value
    if figure.low is None or figure.high is None or base.low is None or base.high is None:
        return Difference(value=apart, low=None, high=None)
    return Difference(
        value=apart,
        low=apart - math.hypot(figure.value - figure.low, base.high - base.value),
        high=apart + math.hypot(figure.high - figure.value, base.value - base.low),
    )
