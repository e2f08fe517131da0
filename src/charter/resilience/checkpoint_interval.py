"""How often to write a checkpoint: Young's, Daly's and Saxena's intervals, and the waste that they trade off.

Symbols of the papers: delta, the seconds a save blocks the job; M, the mean seconds between failures of the
whole job (all its nodes). The result is the compute time between the end of one save and the start of the
next.
"""

import math

from charter.errors import UsageError


def young_interval_seconds(*, save_seconds: float, mean_between_failures_seconds: float) -> float:
    """Young's first-order interval, `sqrt(2 delta M)`, in seconds.

    Source: J. W. Young 1974, CACM 17(9). Good while delta is far below M; at delta = M/2 it costs 5 % more
    time than the optimum.

    >>> round(young_interval_seconds(save_seconds=20, mean_between_failures_seconds=3.09 * 3600) / 60, 1)
    11.1
    """
    _check(save_seconds, mean_between_failures_seconds)
    return math.sqrt(2 * save_seconds * mean_between_failures_seconds)


def daly_interval_seconds(*, save_seconds: float, mean_between_failures_seconds: float) -> float:
    """Daly's higher-order interval, in seconds.

    `sqrt(2 delta M) (1 + sqrt(delta / 2M) / 3 + (delta / 2M) / 9) - delta` while delta < 2M, else M.
    Source: J. T. Daly 2006, Future Generation Computer Systems 22(3), equation 37. Within 1e-5 of the true
    optimum of expected time up to delta = M/2. It assumes exponential failures and saves that block.

    >>> round(daly_interval_seconds(save_seconds=300, mean_between_failures_seconds=3.09 * 3600) / 60, 1)
    39.8
    """
    _check(save_seconds, mean_between_failures_seconds)
    if math.isinf(mean_between_failures_seconds):
        return math.inf
    if save_seconds >= 2 * mean_between_failures_seconds:
        return mean_between_failures_seconds
    ratio = save_seconds / (2 * mean_between_failures_seconds)
    young = math.sqrt(2 * save_seconds * mean_between_failures_seconds)
    return young * (1 + math.sqrt(ratio) / 3 + ratio / 9) - save_seconds


def async_interval_seconds(
    *, stall_seconds: float, persist_seconds: float, mean_between_failures_seconds: float
) -> float:
    """The interval when only the copy blocks: `max(a, sqrt(2 s M))`, one save in flight at a time.

    s is the stall, a the time until the copy is durable. Source: first-order waste `s/tau + (a + tau/2)/M`.

    >>> async_interval_seconds(stall_seconds=2, persist_seconds=900, mean_between_failures_seconds=11124)
    900
    """
    _check(stall_seconds, mean_between_failures_seconds)
    return max(persist_seconds, math.sqrt(2 * stall_seconds * mean_between_failures_seconds))


def saxena_period_seconds(*, save_seconds: float, recovery_seconds: float) -> float:
    """The availability-optimal period from one save to the next, save included: `Ts + sqrt(2 (Tf + Tr) Ts + Ts^2)`.

    Ts the save, Tf + Tr (`recovery_seconds`) the mean time between failures and the time to recover together.
    Source: Saxena et al. 2024 (arXiv:2410.18124), abstract. Tends to Young's interval while the save is short against
    the rest. Where failures are found later than one period, the period must be at least the detection delay, or
    every checkpoint that is kept may already hold the fault.

    >>> round(saxena_period_seconds(save_seconds=20, recovery_seconds=3.09 * 3600 + 600) / 60, 1)
    11.8
    """
    _check(save_seconds, recovery_seconds)
    return save_seconds + math.sqrt(2 * recovery_seconds * save_seconds + save_seconds**2)


def first_order_waste(
    *,
    interval_seconds: float,
    stall_seconds: float,
    mean_between_failures_seconds: float,
    restart_seconds: float = 0.0,
    persist_seconds: float = 0.0,
) -> float:
    """Seconds wasted per useful second, to first order: `s/tau + (a + tau/2 + R)/M`.

    s the stall of a save, a the time until it is durable (0 for a blocking save), R detection and restart. Its minimum
    over tau is Young's interval. Too high by a few points where a failure costs more than a tenth of M.

    >>> round(first_order_waste(interval_seconds=900, stall_seconds=2, persist_seconds=900, restart_seconds=540,
    ...                         mean_between_failures_seconds=11124), 3)
    0.172
    """
    _check(interval_seconds, mean_between_failures_seconds)
    lost = persist_seconds + interval_seconds / 2 + restart_seconds
    return stall_seconds / interval_seconds + lost / mean_between_failures_seconds


def _check(save_seconds: float, mean_between_failures_seconds: float) -> None:
    if not save_seconds > 0 or not mean_between_failures_seconds > 0:
        raise UsageError(
            f"a checkpoint interval needs a save time and a mean time between failures above zero; "
            f"got {save_seconds} s and {mean_between_failures_seconds} s"
        )
