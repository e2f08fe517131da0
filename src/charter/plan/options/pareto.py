"""Options that nothing beats in time, money, headroom and p90 time, and those that tie with the chosen one."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from charter.physics.columns import Array
from charter.plan.options.option import Option


def pareto(options: Sequence[Option]) -> tuple[Option, ...]:
    """Options that no other beats or equals in everything while beating it in something, in their order.

    Compared: p50 and p90 of the time, p50 of the money (an unpriced option counts as the dearest), and the share of
    the device that stays free.
    """
    if not options:
        return ()
    table = np.array([_objectives(option) for option in options])
    return tuple(option for option, is_optimal in zip(options, front(table), strict=True) if is_optimal)


def near_tied(options: Sequence[Option], chosen: Option) -> tuple[Option, ...]:
    """Options whose money (time, where a price is missing) cannot be told from the chosen one's: the 80 % intervals
    of the two overlap at the medians, p50 of either inside p10 to p90 of the other."""
    return tuple(option for option in options if option is not chosen and _alike(option, chosen))


def _alike(option: Option, chosen: Option) -> bool:
    mine, best = option.usd, chosen.usd
    if mine is None or best is None:
        mine, best = option.seconds, chosen.seconds
    return best.p10 <= mine.p50 <= best.p90 and mine.p10 <= best.p50 <= mine.p90


def _objectives(option: Option) -> tuple[float, ...]:
    seconds, usd = option.seconds, option.usd
    free = 1 - option.peak.total_bytes / option.capacity_bytes if option.capacity_bytes else 0.0
    return (seconds.p50, seconds.p90, float("inf") if usd is None else usd.p50, -free)


def front(table: Array) -> NDArray[np.bool_]:
    """Rows of objectives (smaller is better) that no other row dominates; equal rows all stay.

    >>> front(np.array([[1.0, 3.0], [2.0, 2.0], [2.0, 3.0], [3.0, 1.0]])).tolist()
    [True, True, False, True]
    """
    order = np.lexsort(table.T[::-1])
    mask = np.zeros(len(table), dtype=bool)
    best = np.empty((0, table.shape[1]))
    for row in order:
        one = table[row]
        beaten = np.all(best <= one, axis=1) & np.any(best < one, axis=1)
        if not beaten.any():
            mask[row] = True
            best = np.vstack([best, one])
    return mask


def front_of_two(first: Array, second: Array) -> NDArray[np.intp]:
    """Rows that no other dominates in two objectives (smaller is better), by the first; of equal rows the first.

    >>> front_of_two(np.array([2.0, 1.0, 2.0, 3.0]), np.array([2.0, 3.0, 3.0, 1.0])).tolist()
    [1, 0, 3]
    """
    order = np.lexsort((second, first))
    ahead = np.concatenate([[np.inf], np.minimum.accumulate(second[order])[:-1]])
    return order[second[order] < ahead]
