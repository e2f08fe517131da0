"""Whether two samples of a judge's log-odds come from one distribution: Kolmogorov and Smirnov's distance."""

import math
from collections.abc import Sequence

import numpy as np

from charter.evaluate.intervals import Interval, require_rows

BAND_95 = math.sqrt(-math.log(0.05 / 2) / 2)
"""1.358: the 95 % point of Kolmogorov's distribution, by its first term (Smirnov 1948)."""


def distance(mine: Sequence[float], theirs: Sequence[float]) -> tuple[float, Interval]:
    """The largest difference of the two empirical distribution functions, with its 95 % band.

    The band is +- 1.358 sqrt((n + m)/(n m)): it lies above 0 exactly where the two-sided test rejects at 5 %. Rows of
    one sample must be independent; that both samples judge the same pairs only makes the test more cautious.

    >>> distance([1.0, 2.0, 3.0, 4.0], [3.0, 4.0, 5.0, 6.0])[0]
    0.5
    """
    n, m = len(mine), len(theirs)
    require_rows(min(n, m))
    a, b = np.sort(np.asarray(mine, dtype=np.float64)), np.sort(np.asarray(theirs, dtype=np.float64))
    places = np.concatenate([a, b])
    shares = np.searchsorted(a, places, side="right") / n - np.searchsorted(b, places, side="right") / m
    found = float(np.abs(shares).max())
    half = BAND_95 * math.sqrt((n + m) / (n * m))
    return found, Interval(low=max(found - half, 0.0), high=min(found + half, 1.0))
