"""Student's t: how far the mean of a few values may be off."""

from functools import lru_cache

import numpy as np

from charter.physics.arrays import Array

MOST_FREEDOM = 1000.0
"""Above it the distribution is that of so many degrees, 0.1 % from the normal one."""
_ANGLES = np.linspace(0.0, np.pi / 2, 100_001)


@lru_cache(maxsize=256)
def _within(freedom: float) -> Array:
    """Return P(|T| <= sqrt(freedom) tan(a)) at every angle a.

    With `T = sqrt(freedom) tan(a)` the density is proportional to `cos(a)^(freedom - 1)` on (-pi/2, pi/2).
    """
    density = np.cos(_ANGLES) ** (freedom - 1)
    share = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    within: Array = share / share[-1]
    return within


def _bounded(freedom: float) -> float:
    return min(max(float(freedom), 1.0), MOST_FREEDOM)


def t_within(t: float, freedom: float) -> float:
    """Return P(-t <= T <= t) for any degrees of freedom from 1 on; error below 1e-6.

    >>> round(t_within(12.706, 1), 4), round(t_within(2.228, 10), 4), round(t_within(2.365, 7), 4)
    (0.95, 0.95, 0.95)
    """
    bounded = _bounded(freedom)
    return float(np.interp(np.arctan(t / bounded**0.5), _ANGLES, _within(bounded)))


def t_quantile(level: float, freedom: float) -> float:
    """Return the t between whose two signs a value lies with the probability `level`, in standard errors.

    Error below 1e-4 for levels up to 0.99.

    >>> round(t_quantile(0.95, 2), 3), round(t_quantile(0.95, 30), 3), round(t_quantile(0.8, 1), 3)
    (4.303, 2.042, 3.078)
    """
    bounded = _bounded(freedom)
    return float(bounded**0.5 * np.tan(np.interp(level, _within(bounded), _ANGLES)))
