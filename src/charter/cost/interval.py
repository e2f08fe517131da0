"""Ranges instead of single numbers: how p10, p50 and p90 of quantities combine."""

import math
from collections.abc import Iterable

from charter.estimate.terms import Interval


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
