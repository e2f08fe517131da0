"""Agreement beyond chance between two who choose between two answers.

kappa = (p_o - p_e) / (1 - p_e), with p_o the share of equal choices and p_e what it would be if both chose as often as
they do but independently (Cohen 1960). A choice is the first answer, the second, or neither.
"""

from collections.abc import Sequence

import numpy as np

from charter.evaluate.intervals import Floats

FIRST, SECOND, NEITHER = 0, 1, 2
CHOICES = 3


def choice_of(probability_first: float) -> int:
    """Which answer a probability prefers.

    >>> choice_of(0.7), choice_of(0.3), choice_of(0.5)
    (0, 1, 2)
    """
    return NEITHER if probability_first == 0.5 else FIRST if probability_first > 0.5 else SECOND


def cells(mine: Sequence[int], theirs: Sequence[int]) -> Floats:
    """One row per pair, with a 1 in the cell of the table of both choices."""
    table = np.zeros((len(mine), CHOICES * CHOICES))
    table[np.arange(len(mine)), np.asarray(mine) * CHOICES + np.asarray(theirs)] = 1
    return table


def kappa(shares: Floats) -> Floats:
    """Cohen's kappa of tables of shares [..., 9]; NaN where both always chose the same, so that chance explains all.

    >>> round(float(kappa(np.array([20, 5, 0, 10, 15, 0, 0, 0, 0]) / 50)), 3)
    0.4
    """
    table = shares.reshape(*shares.shape[:-1], CHOICES, CHOICES)
    observed = np.trace(table, axis1=-2, axis2=-1)
    expected = (table.sum(-1) * table.sum(-2)).sum(-1)
    certain = np.isclose(expected, 1)
    found: Floats = np.where(certain, np.nan, (observed - expected) / np.where(certain, 1, 1 - expected))
    return found
