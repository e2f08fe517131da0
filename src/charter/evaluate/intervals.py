"""95 % intervals: of a proportion, a mean, a ratio of sums, and a mean of paired differences.

They cover the choice of rows (prompts, pairs) only. They say nothing about other training seeds.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from charter.errors import DataError

Floats = NDArray[np.float64]

Z_95 = 1.959963984540054
"""97.5 % point of the standard normal distribution."""
RESAMPLES = 4000
_TO_UNIT = 2.0**-53
_AT_ONCE = 2**22
"""Drawn rows that are held at once: 32 MiB of counts."""


@dataclass(frozen=True, kw_only=True)
class Interval:
    """The ends of a 95 % interval."""

    low: float
    high: float


def wilson(successes: float, n: int) -> Interval:
    """Score interval of a proportion.

    centre = (k + z^2/2) / (n + z^2), half width = z/(n + z^2) sqrt(k(n-k)/n + z^2/4), z = 1.96. A tie counts as half
    a success, which only makes the interval a little wide. Source: Wilson 1927; Newcombe 1998, method 3. Rows must be
    independent.

    >>> found = wilson(81, 263); round(found.low, 4), round(found.high, 4)
    (0.2553, 0.3662)
    """
    require_rows(n)
    z2 = Z_95**2
    centre = (successes + z2 / 2) / (n + z2)
    half = Z_95 / (n + z2) * math.sqrt(max(successes * (n - successes) / n, 0.0) + z2 / 4)
    low, high, share = centre - half, centre + half, successes / n
    return Interval(low=max(min(low, share), 0.0), high=min(max(high, share), 1.0))  # rounding at 0 and n


def of_mean(values: Sequence[float]) -> Interval:
    """Normal interval of a mean: mean +- 1.96 s/sqrt(n), with s the sample deviation.

    Too narrow below about 30 rows, and for heavy tails.

    >>> found = of_mean([1.0, 2.0, 3.0]); round(found.low, 3), round(found.high, 3)
    (0.868, 3.132)
    """
    return of_ratio(values, [1.0] * len(values))


def of_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Interval:
    """Interval of sum(y)/sum(x) over independent rows, by the linearised variance of a ratio.

    var = n/(n-1) sum((y_i - R x_i)^2) / sum(x)^2. Source: Cochran 1977, section 2.11. Nats per token over texts is
    such a ratio: tokens of one text are not independent, texts are.
    """
    n = len(numerators)
    require_rows(n, at_least=2)
    y, x = np.asarray(numerators, dtype=np.float64), np.asarray(denominators, dtype=np.float64)
    ratio = float(y.sum() / x.sum())
    half = Z_95 * math.sqrt(n / (n - 1) * float(((y - ratio * x) ** 2).sum())) / float(x.sum())
    return Interval(low=ratio - half, high=ratio + half)


def paired_bootstrap(differences: Sequence[float], *, seed: int) -> Interval:
    """Percentile interval of the mean of paired differences: 4,000 resamples of the rows.

    Resample r, position i takes row floor(n u) with u from Philox counted by `seed`, so the interval is a function of
    its arguments. Source: Efron 1979. With few rows, or rows that are all equal, it is too narrow.
    """
    n = len(differences)
    require_rows(n)
    values = np.asarray(differences, dtype=np.float64)
    raw = np.random.Philox(key=seed).random_raw(RESAMPLES * n)
    rows = ((raw >> np.uint64(11)) * _TO_UNIT * n).astype(np.int64).reshape(RESAMPLES, n)
    means = np.sort(values[rows].mean(1))
    return Interval(low=float(means[RESAMPLES // 40]), high=float(means[RESAMPLES - 1 - RESAMPLES // 40]))


def resampled_means(rows: Floats, *, seed: int) -> Floats:
    """The column means [resamples, columns] of 4,000 resamples of some rows [n, columns].

    What is computed of a table's column means (a slope, a correlation, an agreement beyond chance) gets its interval
    from these. The draws are those of `paired_bootstrap`.
    """
    n = len(rows)
    require_rows(n)
    source = np.random.Philox(key=seed)
    found: list[Floats] = []
    done, part = 0, max(1, _AT_ONCE // n)
    while done < RESAMPLES:
        count = min(part, RESAMPLES - done)
        drawn = ((source.random_raw(count * n) >> np.uint64(11)) * _TO_UNIT * n).astype(np.int64).reshape(count, n)
        places = (drawn + n * np.arange(count)[:, None]).ravel()
        counts = np.bincount(places, minlength=count * n).reshape(count, n)
        found.append(counts @ rows / n)
        done += count
    return np.concatenate(found)


def bootstrapped(statistic: Callable[[Floats], Floats], rows: Floats, *, seed: int) -> tuple[float, Interval] | None:
    """A statistic of the column means of `rows` with its percentile interval; None where it has no value.

    `statistic` takes means [..., columns] and gives [...]. Resamples in which it has none (NaN: a kappa of judges who
    gave one answer only) are left out. The interval is widened to the value where all resamples lie on one side of it,
    as they do at a statistic's bound. Source: Efron 1979.
    """
    value = float(statistic(rows.mean(0)))
    if math.isnan(value):
        return None
    found = statistic(resampled_means(rows, seed=seed))
    found = np.sort(found[~np.isnan(found)])
    if not len(found):
        return None
    cut = len(found) // 40
    return value, Interval(low=min(float(found[cut]), value), high=max(float(found[len(found) - 1 - cut]), value))


@dataclass(frozen=True, kw_only=True)
class SignTest:
    """On how many rows one measure is better or worse than another, and how probable so uneven a split is by chance."""

    better: int
    worse: int
    p_value: float


def sign_test(differences: Sequence[float]) -> SignTest:
    """The exact two-sided sign test of paired differences; rows without a difference do not count.

    p = min(1, 2 P(K <= min(better, worse))) with K binomial(better + worse, 1/2). On outcomes of 0 and 1 it is the
    exact test of McNemar 1947. Rows must be independent.

    >>> sign_test([1.0, 1.0, 1.0, 1.0, 1.0, -1.0, 0.0])
    SignTest(better=5, worse=1, p_value=0.21875)
    """
    better, worse = sum(value > 0 for value in differences), sum(value < 0 for value in differences)
    n = better + worse
    tail = sum(math.comb(n, count) for count in range(min(better, worse) + 1))
    return SignTest(better=better, worse=worse, p_value=min(1.0, 2 * tail / 2**n))


def standard_error(successes: float, n: int) -> float:
    """Standard error of a proportion, sqrt(p(1-p)/n).

    >>> round(standard_error(119, 208), 3)
    0.034
    """
    require_rows(n)
    share = successes / n
    return math.sqrt(share * (1 - share) / n)


def require_rows(n: int, *, at_least: int = 1) -> None:
    """Refuse an interval of too few rows."""
    if n < at_least:
        raise DataError(f"a 95 % interval needs {at_least} or more rows; there are {n}")
