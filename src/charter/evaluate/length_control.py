"""What a win rate would be if both answers had the same length.

P(policy preferred) = sigmoid(w + l tanh(d/s)), with d the difference of the answers' tokens and s its deviation; the
length-controlled win rate is sigmoid(w), the prediction at d = 0. Source: Dubois et al. 2024 (arXiv:2404.04475),
section 3, less its term for the difficulty of a prompt, which needs the answers of many models to be estimated.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from charter.evaluate import logistic
from charter.evaluate.intervals import Interval


@dataclass(frozen=True, kw_only=True)
class LengthControl:
    """The win rate at equal length, and the weight of length; each with its interval."""

    win_rate: float
    interval: Interval
    weight: float
    """Log-odds by which a much longer answer is preferred; negative where the shorter one is."""
    weight_interval: Interval


def length_controlled(
    preferences: Sequence[float], lengths: Sequence[int], other_lengths: Sequence[int]
) -> LengthControl:
    """Fit preferences in [0, 1] for answers of `lengths` over answers of `other_lengths`.

    >>> found = length_controlled([0.9, 0.1] * 50, [30, 10] * 50, [10, 30] * 50)
    >>> round(found.win_rate, 3), found.weight > 1
    (0.5, True)
    """
    difference = np.asarray(lengths, dtype=np.float64) - np.asarray(other_lengths, dtype=np.float64)
    deviation = float(difference.std())
    scaled = np.tanh(difference / deviation) if deviation else np.zeros_like(difference)
    columns = np.stack([np.ones_like(scaled), scaled], 1)
    found = logistic.fit(columns, np.asarray(preferences, dtype=np.float64))
    ends = found.interval(0)
    middle, low, high = logistic.sigmoid(np.array([found.values[0], ends.low, ends.high])).tolist()
    return LengthControl(
        win_rate=middle,
        interval=Interval(low=low, high=high),
        weight=float(found.values[1]),
        weight_interval=found.interval(1),
    )
