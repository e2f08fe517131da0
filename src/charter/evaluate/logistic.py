"""Logistic regression on soft or hard targets with robust standard errors: Newton's method on a few columns."""

from dataclasses import dataclass

import numpy as np

from charter.errors import DataError
from charter.evaluate.intervals import Z_95, Floats, Interval

RIDGE = 1e-4
"""Weight of |w|^2/2 beside the mean log-loss: keeps weights finite where one side wins every row. It moves a share of
one half by nothing, one of 95 % by 0.03 points."""
MAX_STEPS, TOLERANCE = 100, 1e-10


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Fitted weights with their covariance."""

    values: Floats
    covariance: Floats
    """The sandwich H^-1 G H^-1, which holds for soft targets too. Source: Huber 1967; White 1982."""

    def interval(self, column: int) -> Interval:
        """95 % interval of one weight."""
        half = Z_95 * float(np.sqrt(self.covariance[column, column]))
        value = float(self.values[column])
        return Interval(low=value - half, high=value + half)


def fit(columns: Floats, targets: Floats) -> Weights:
    """argmin_w mean(log(1 + e^{x w}) - y x w) + RIDGE |w|^2/2 over rows x of `columns` [n, k], targets y in [0, 1]."""
    n, k = columns.shape
    weights = np.zeros(k)
    for _ in range(MAX_STEPS):
        probability = sigmoid(columns @ weights)
        gradient = columns.T @ (probability - targets) / n + RIDGE * weights
        curvature = _curvature(columns, probability)
        step = np.linalg.solve(curvature, gradient)
        weights = weights - step * min(1.0, 5.0 / max(float(np.abs(step).max()), 1e-30))
        if float(np.abs(step).max()) < TOLERANCE:
            return Weights(values=weights, covariance=_sandwich(columns, targets, weights))
    raise DataError(f"logistic regression did not converge in {MAX_STEPS} steps on {n} rows")


def sigmoid(values: Floats) -> Floats:
    """1 / (1 + e^-x), without overflow.

    >>> sigmoid(np.array([0.0, -1e9])).tolist()
    [0.5, 0.0]
    """
    positive = 1 / (1 + np.exp(-np.abs(values)))
    found: Floats = np.where(values >= 0, positive, 1 - positive)
    return found


def _curvature(columns: Floats, probability: Floats) -> Floats:
    n, k = columns.shape
    weighted = columns * (probability * (1 - probability))[:, None]
    found: Floats = columns.T @ weighted / n + RIDGE * np.eye(k)
    return found


def _sandwich(columns: Floats, targets: Floats, weights: Floats) -> Floats:
    n = len(columns)
    probability = sigmoid(columns @ weights)
    inverse = np.linalg.inv(_curvature(columns, probability))
    scores = columns * (probability - targets)[:, None]
    found: Floats = inverse @ (scores.T @ scores / n) @ inverse / n
    return found
