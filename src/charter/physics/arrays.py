"""Numbers that broadcast: one configuration, or a whole table of them, through the same formulas."""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]
"""A scalar is an array of no dimensions; formulas use only operations that broadcast."""


def array(value: object) -> Array:
    """Any number or sequence of numbers as floats.

    >>> array(3).shape, array([1, 2]).dtype
    ((), dtype('float64'))
    """
    return np.asarray(value, dtype=np.float64)
