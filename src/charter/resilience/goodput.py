"""Effective training time ratio (ETTR): productive time over wall-clock time, without time in a queue."""


def ettr_small_loss(
    *,
    interval_seconds: float,
    save_seconds: float,
    mean_between_failures_seconds: float,
    restart_seconds: float,
) -> float:
    """Expected ETTR while losses are small: `(1 - (R + tau/2)/M) / (1 + delta/tau)`.

    Source: Kokolis et al. 2024 (arXiv:2410.21680), with N r = 1/M; second-hand. It ignores detection time
    and falls below zero when a failure costs more than M: use `ettr_renewal` there.

    >>> round(ettr_small_loss(interval_seconds=1800, save_seconds=2, mean_between_failures_seconds=11124,
    ...                       restart_seconds=540), 3)
    0.87
    """
    lost_share = (restart_seconds + interval_seconds / 2) / mean_between_failures_seconds
    return (1 - lost_share) / (1 + save_seconds / interval_seconds)


def ettr_renewal(
    *,
    interval_seconds: float,
    stall_seconds: float,
    mean_between_failures_seconds: float,
    restart_seconds: float,
    persist_seconds: float = 0.0,
) -> float:
    """Expected ETTR of a renewal process: `1 / (1 + s/tau) / (1 + (a + tau/2 + R)/M)`.

    s stall, a time until a save is durable, R detection and restart. Stays within 0..1 for lossy jobs; it
    lies slightly above an event simulation where the first-order form lies below.

    >>> round(ettr_renewal(interval_seconds=900, stall_seconds=2, mean_between_failures_seconds=11124,
    ...                    restart_seconds=540, persist_seconds=900), 3)
    0.853
    """
    lost_per_failure = persist_seconds + interval_seconds / 2 + restart_seconds
    return 1 / (1 + stall_seconds / interval_seconds) / (1 + lost_per_failure / mean_between_failures_seconds)
