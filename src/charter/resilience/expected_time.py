"""Expected wall-clock and billed time of a job that fails, restarts and waits, and how often it should save."""

import math
from dataclasses import dataclass

from charter.errors import UsageError

LARGEST_EXPONENT = 700.0
"""Above it `exp` overflows: such a job never ends."""


@dataclass(frozen=True, kw_only=True)
class Interruptions:
    """Causes of interruptions of a job and their costs, all in seconds."""

    mean_between_failures_seconds: float
    """Of the whole job, while it runs or restarts."""
    restart_seconds: float = 0.0
    """Rescheduling, loading and warm-up (and detection, where it is not given apart): billed, may fail itself."""
    capacity_wait_seconds: float = 0.0
    """Mean wait for machines after an interruption: not billed, cannot fail."""
    detection_seconds: float = 0.0
    """From the failure until somebody notices: billed, nothing runs that could fail again."""
    notice_success: float = 0.0
    """Share of interruptions that are announced early enough to write one more checkpoint."""


NEVER = Interruptions(mean_between_failures_seconds=math.inf)


@dataclass(frozen=True, kw_only=True)
class ExpectedTime:
    """Expected seconds by what they are spent on; they add up to `wall_seconds`."""

    useful_seconds: float
    save_seconds: float
    lost_seconds: float
    """Work that was done and must be done again."""
    detection_seconds: float
    restart_seconds: float
    wait_seconds: float
    """Waiting for machines: not billed."""
    interruptions: float

    @property
    def billed_seconds(self) -> float:
        """Everything but the wait for machines."""
        working = self.useful_seconds + self.save_seconds + self.lost_seconds
        return working + self.detection_seconds + self.restart_seconds

    @property
    def wall_seconds(self) -> float:
        """From start to end."""
        return self.billed_seconds + self.wait_seconds

    @property
    def useful_share(self) -> float:
        """Effective training time ratio: useful over wall-clock time, the wait for machines included."""
        return self.useful_seconds / self.wall_seconds if self.wall_seconds > 0 else 1.0


def expected_time(
    useful_seconds: float,
    *,
    save_seconds: float,
    interval_seconds: float,
    interruptions: Interruptions,
    persist_seconds: float = 0.0,
) -> ExpectedTime:
    """Expected time by bucket, from the renewal argument behind Daly's formula.

    A period between interruptions lasts M on average; `exp(-a/M) / (exp(x/M) - 1)` segments of x = tau + delta seconds
    become durable in it, where a is the time until an asynchronous save is durable (`persist_seconds`), so
    `M - x exp(-a/M) / (exp(x/M) - 1)` seconds are lost. With a notice that comes in time in a share p of the cases,
    only `(1 - p)` of that is lost, and a save more is written in the share p. A restart R fails itself `exp(R/M) - 1`
    times on average. The job ends when its last save is durable. Sources: Daly 2006 for p = a = D = 0; the rest
    follows from the same argument and agrees with `resilience.simulate` within 0.1 %. Infinite where the job cannot
    end. Failures are exponential: with the heavy-tailed outages of real spot pools the wall time of one job can
    differ by 30 % while the bill holds within 10 %.

    >>> job = Interruptions(mean_between_failures_seconds=11124, restart_seconds=480, detection_seconds=60)
    >>> spent = expected_time(720_000, save_seconds=2, persist_seconds=180, interval_seconds=210, interruptions=job)
    >>> round(spent.useful_share, 3), round(spent.interruptions)
    (0.919, 70)
    """
    mean = interruptions.mean_between_failures_seconds
    interval_seconds = min(interval_seconds, useful_seconds)
    segments = useful_seconds / interval_seconds if useful_seconds > 0 else 0.0
    saves = segments * save_seconds + (persist_seconds if segments else 0.0)
    if math.isinf(mean) or segments == 0:
        return _undisturbed(useful_seconds, saves)
    segment = interval_seconds + save_seconds
    restart = interruptions.restart_seconds
    if (segment + restart + persist_seconds) / mean > LARGEST_EXPONENT:
        return _undisturbed(useful_seconds, saves, lost_seconds=math.inf, interruptions=math.inf)
    durable = segment * math.exp(-persist_seconds / mean) / math.expm1(segment / mean)
    announced = interruptions.notice_success
    emergency_saves = announced * min(save_seconds, mean)
    lost = (1 - announced) * (mean - durable)
    periods = segments * segment / (mean - lost - emergency_saves)
    attempts = periods * math.exp(restart / mean)
    return ExpectedTime(
        useful_seconds=useful_seconds,
        save_seconds=saves + periods * emergency_saves,
        lost_seconds=periods * lost,
        detection_seconds=attempts * interruptions.detection_seconds,
        restart_seconds=periods * mean * math.expm1(restart / mean),
        wait_seconds=attempts * interruptions.capacity_wait_seconds,
        interruptions=attempts,
    )


def _undisturbed(
    useful_seconds: float, save_seconds: float, *, lost_seconds: float = 0.0, interruptions: float = 0.0
) -> ExpectedTime:
    return ExpectedTime(
        useful_seconds=useful_seconds,
        save_seconds=save_seconds,
        lost_seconds=lost_seconds,
        detection_seconds=0.0,
        restart_seconds=0.0,
        wait_seconds=0.0,
        interruptions=interruptions,
    )


def best_interval_seconds(
    useful_seconds: float, *, save_seconds: float, interruptions: Interruptions, persist_seconds: float = 0.0
) -> float:
    """Daly's interval, but never longer than the work itself; one save at the end is always needed.

    With asynchronous saves `save_seconds` is the stall, and the interval is at least the time until a save is
    durable, so that one is in flight at a time: persist time and restart are constant factors of the expected time
    and do not move its minimum. Where a share p of the interruptions is announced early enough to save, only the rest
    loses work: M / (1 - p) takes the place of M.

    >>> best_interval_seconds(100.0, save_seconds=20, interruptions=NEVER)
    100.0
    """
    unannounced = 1 - interruptions.notice_success
    if math.isinf(interruptions.mean_between_failures_seconds) or save_seconds <= 0 or unannounced <= 0:
        return useful_seconds
    mean = interruptions.mean_between_failures_seconds / unannounced
    daly = daly_interval_seconds(save_seconds=save_seconds, mean_between_failures_seconds=mean)
    return min(useful_seconds, max(daly, persist_seconds))


def daly_interval_seconds(*, save_seconds: float, mean_between_failures_seconds: float) -> float:
    """Return Daly's higher-order checkpoint interval: seconds of work from the end of a save to the start of the next.

    `sqrt(2 delta M) (1 + sqrt(delta / 2M) / 3 + (delta / 2M) / 9) - delta` while delta < 2M, else M.
    delta the seconds a save blocks the job, M the mean seconds between failures of all its nodes together.
    Source: J. T. Daly 2006, Future Generation Computer Systems 22(3), equation 37. Within 1e-5 of the true
    optimum of expected time up to delta = M/2. It assumes exponential failures and saves that block.

    >>> round(daly_interval_seconds(save_seconds=300, mean_between_failures_seconds=3.09 * 3600) / 60, 1)
    39.8
    """
    if not save_seconds > 0 or not mean_between_failures_seconds > 0:
        raise UsageError(
            f"a checkpoint interval needs a save time and a mean time between failures above zero; "
            f"got {save_seconds} s and {mean_between_failures_seconds} s"
        )
    if math.isinf(mean_between_failures_seconds):
        return math.inf
    if save_seconds >= 2 * mean_between_failures_seconds:
        return mean_between_failures_seconds
    ratio = save_seconds / (2 * mean_between_failures_seconds)
    young = math.sqrt(2 * save_seconds * mean_between_failures_seconds)
    return young * (1 + math.sqrt(ratio) / 3 + ratio / 9) - save_seconds
