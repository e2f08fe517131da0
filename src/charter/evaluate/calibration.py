"""How far stated probabilities can be believed: reliability by bins, Brier score, log loss, calibration slope.

A probability p of a binary outcome is read as a confidence max(p, 1-p) in the more probable side, which is then right
or wrong; so that which of two answers comes first cannot matter.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from charter.evaluate import logistic
from charter.evaluate.intervals import Floats, Interval

BINS = 10
"""Bins of equal width, as in Guo et al. 2017 (arXiv:1706.04599), section 2."""


@dataclass(frozen=True, kw_only=True)
class Bin:
    """The rows whose confidence lies in one interval."""

    low: float
    high: float
    confidence: float
    """Mean over the rows."""
    right: tuple[float, ...]
    """1 where the more probable side was true, 0 where not, 1/2 where neither was more probable."""


def bins(confidences: Sequence[float], right: Sequence[float], *, lowest: float = 0.5) -> tuple[Bin, ...]:
    """The bins from `lowest` to 1 that hold any row."""
    member = _membership(confidences, lowest)
    width = (1 - lowest) / BINS
    return tuple(
        Bin(
            low=lowest + number * width,
            high=lowest + (number + 1) * width,
            confidence=sum(confidences[row] for row in rows) / len(rows),
            right=tuple(right[row] for row in rows),
        )
        for number in range(BINS)
        if (rows := [row for row, found in enumerate(member) if found == number])
    )


def gap_terms(confidences: Sequence[float], right: Sequence[float], *, lowest: float = 0.5) -> list[float]:
    """One term per row, whose mean is the expected calibration error.

    ECE = sum over bins of |sum of (confidence - right)| / n (Naeini et al. 2015). With the sign of each bin's sum held
    fixed it is a mean over rows, which gives it an interval.
    """
    member = _membership(confidences, lowest)
    sums = [0.0] * BINS
    for found, confidence, outcome in zip(member, confidences, right, strict=True):
        sums[found] += confidence - outcome
    return [
        math.copysign(1.0, sums[found]) * (confidence - outcome)
        for found, confidence, outcome in zip(member, confidences, right, strict=True)
    ]


def chance_gap(confidences: Sequence[float], *, lowest: float = 0.5) -> float:
    """The calibration error that perfect calibration would show on so few rows.

    The sum of a bin's (confidence - right) is then about normal with variance sum c(1-c), so that its absolute value
    is sqrt(2/pi) deviations in the mean.
    """
    variances = [0.0] * BINS
    for found, confidence in zip(_membership(confidences, lowest), confidences, strict=True):
        variances[found] += confidence * (1 - confidence)
    return sum(math.sqrt(2 / math.pi * variance) for variance in variances) / len(confidences)


def sides(probabilities: Sequence[float], targets: Sequence[float]) -> tuple[list[float], list[float]]:
    """Confidence in the more probable side, and how far that side was right.

    >>> sides([0.9, 0.2, 0.5], [1.0, 1.0, 1.0])
    ([0.9, 0.8, 0.5], [1.0, 0.0, 0.5])
    """
    right = [
        0.5 if probability == 0.5 else target if probability > 0.5 else 1 - target
        for probability, target in zip(probabilities, targets, strict=True)
    ]
    return [max(probability, 1 - probability) for probability in probabilities], right


def log_losses(margins: Sequence[float], targets: Sequence[float]) -> list[float]:
    """-y log p - (1-y) log(1-p) with p = sigmoid(margin), in nats."""
    m, y = np.asarray(margins, dtype=np.float64), np.asarray(targets, dtype=np.float64)
    losses: list[float] = (np.logaddexp(0, -m) * y + np.logaddexp(0, m) * (1 - y)).tolist()
    return losses


def slope(margins: Sequence[float], targets: Sequence[float]) -> tuple[float, Interval]:
    """The factor on the margins that fits the targets best: 1 is calibrated, less is too sure of itself.

    It is one over the temperature of Guo et al. 2017, section 4.2; unlike that it may be 0 or less, where a model
    knows nothing.
    """
    columns: Floats = np.asarray(margins, dtype=np.float64)[:, None]
    scale = float(np.sqrt((columns**2).mean())) or 1.0
    found = logistic.fit(columns / scale, np.asarray(targets, dtype=np.float64))
    ends = found.interval(0)
    return float(found.values[0]) / scale, Interval(low=ends.low / scale, high=ends.high / scale)


def _membership(confidences: Sequence[float], lowest: float) -> list[int]:
    return [min(max(int((value - lowest) / (1 - lowest) * BINS), 0), BINS - 1) for value in confidences]
