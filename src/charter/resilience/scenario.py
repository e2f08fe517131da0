"""One question about failures, answered twice: by the closed form and by simulation."""

import math
from dataclasses import dataclass, replace

from charter.resilience.expected_time import ExpectedTime, Interruptions, best_interval_seconds, expected_time
from charter.resilience.failures import waiting_share
from charter.resilience.simulate import MAX_INTERRUPTIONS, SimulatedJob, SparePool, simulate
from charter.resilience.spot import Durations, Exponential, Periods, Pool, SpotMarket, Weibull
from charter.units import SECONDS_PER_DAY

SWEEP_FACTORS = (0.125, 0.25, 0.5, 0.71, 1.0, 1.41, 2.0, 4.0, 8.0)


@dataclass(frozen=True, kw_only=True)
class SpotPool:
    """A pool of spot machines: what the simulation draws from, and the means that the closed form needs."""

    pool: Pool
    mean_up_seconds: float
    mean_down_seconds: float
    first_wait_seconds: float
    """Mean wait of a job that asks at a random moment."""

    @classmethod
    def of_market(cls, market: SpotMarket, first_wait_seconds: float) -> "SpotPool":
        """A drawn market."""
        return cls(
            pool=market,
            mean_up_seconds=market.up.mean_seconds,
            mean_down_seconds=market.down.mean_seconds,
            first_wait_seconds=first_wait_seconds,
        )

    @classmethod
    def of_periods(cls, periods: Periods) -> "SpotPool":
        """A recorded pool, repeated: its spans, those that reach over the end of the record joined."""
        up = [end - start for start, end in zip(periods.starts, periods.ends, strict=True)]
        total = sum(up)
        if len(up) > 1 and periods.starts[0] <= 0 and periods.ends[-1] >= periods.length_seconds:
            up = [up[0] + up[-1], *up[1:-1]]
        later = (*periods.starts[1:], periods.starts[0] + periods.length_seconds)
        down = [start - end for end, start in zip(periods.ends, later, strict=True) if start > end]
        return cls(
            pool=periods,
            mean_up_seconds=total / len(up) if down else math.inf,
            mean_down_seconds=(periods.length_seconds - total) / len(down) if down else 0.0,
            first_wait_seconds=sum(span**2 for span in down) / 2 / periods.length_seconds,
        )


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A job on machines that fail, preempt and are waited for; all times in seconds."""

    useful_seconds: float
    num_nodes: int
    mean_between_failures_seconds: float
    """Of the machines of the whole job, without preemptions."""
    save_seconds: float
    persist_seconds: float = 0.0
    """Until an asynchronous save is durable; `save_seconds` is then its stall."""
    restart_seconds: float = 0.0
    detection_seconds: float = 0.0
    preemption_detection_seconds: float = 0.0
    shape: float = 1.0
    """Weibull shape of the times between failures; 1: exponential."""
    capacity_wait_seconds: float = 0.0
    """Mean wait for another machine after a failure."""
    spot: SpotPool | None = None
    notice_success: float = 0.0
    spares: int | None = None
    repair_days: float = 3.0

    @property
    def interruptions(self) -> Interruptions:
        """Failures and preemptions as one exponential process, delays and waits weighted by their rates."""
        failing = 0.0 if math.isinf(self.mean_between_failures_seconds) else 1 / self.mean_between_failures_seconds
        preempted = 0.0 if self.spot is None else 1 / self.spot.mean_up_seconds
        together = failing + preempted
        share = preempted / together if together else 0.0
        after_failure = self.capacity_wait_seconds + self._repair_wait_seconds()
        outage = 0.0 if self.spot is None else self.spot.mean_down_seconds
        return Interruptions(
            mean_between_failures_seconds=1 / together if together else math.inf,
            restart_seconds=self.restart_seconds,
            detection_seconds=share * self.preemption_detection_seconds + (1 - share) * self.detection_seconds,
            capacity_wait_seconds=share * outage + (1 - share) * after_failure,
            notice_success=share * self.notice_success,
        )

    @property
    def best_interval_seconds(self) -> float:
        """Daly's interval for all interruptions together."""
        return best_interval_seconds(
            self.useful_seconds,
            save_seconds=self.save_seconds,
            interruptions=self.interruptions,
            persist_seconds=self.persist_seconds,
        )

    def closed_form(self, interval_seconds: float) -> ExpectedTime:
        """Expected time with exponential failures; the first wait for a spot pool is in it."""
        spent = expected_time(
            self.useful_seconds,
            save_seconds=self.save_seconds,
            persist_seconds=self.persist_seconds,
            interval_seconds=interval_seconds,
            interruptions=self.interruptions,
        )
        first = 0.0 if self.spot is None else self.spot.first_wait_seconds
        return replace(spent, wait_seconds=spent.wait_seconds + first)

    def job(self, interval_seconds: float) -> SimulatedJob:
        """The same for the simulator."""
        spares = None
        if self.spares is not None:
            spares = SparePool(spares=self.spares, repair=Exponential(mean_seconds=self.repair_days * SECONDS_PER_DAY))
        return SimulatedJob(
            useful_seconds=self.useful_seconds,
            interval_seconds=interval_seconds,
            save_seconds=self.save_seconds,
            persist_seconds=self.persist_seconds,
            restart_seconds=self.restart_seconds,
            detection_seconds=self.detection_seconds,
            failures=self._failures(),
            capacity_wait=Exponential(mean_seconds=self.capacity_wait_seconds),
            spares=spares,
            spot=None if self.spot is None else self.spot.pool,
            preemption_detection_seconds=self.preemption_detection_seconds,
            notice_success=self.notice_success,
        )

    def _failures(self) -> Durations:
        if self.shape == 1.0 or math.isinf(self.mean_between_failures_seconds):
            return Exponential(mean_seconds=self.mean_between_failures_seconds)
        return Weibull(mean_seconds=self.mean_between_failures_seconds, shape=self.shape)

    def _repair_wait_seconds(self) -> float:
        """Mean wait for a repair per failure, with the given spares: `M B / (1 - B)`."""
        mean = self.mean_between_failures_seconds
        if self.spares is None or math.isinf(mean):
            return 0.0
        rate = SECONDS_PER_DAY / mean / self.num_nodes
        waited = waiting_share(
            num_nodes=self.num_nodes,
            failures_per_node_day=rate,
            repair_days=self.repair_days,
            spares=self.spares,
        )
        return mean * waited / (1 - waited)


@dataclass(frozen=True, kw_only=True)
class IntervalPoint:
    """Useful share at one interval, by both ways; None where the job makes no progress."""

    interval_seconds: float
    ettr: float | None
    closed_form: float


def sweep(scenario: Scenario, interval_seconds: float, *, runs: int, seed: int) -> tuple[IntervalPoint, ...]:
    """Useful share over intervals from an eighth to eight times the given one, on the same random numbers."""
    points: list[IntervalPoint] = []
    for factor in SWEEP_FACTORS:
        interval = max(factor * interval_seconds, scenario.persist_seconds, 1e-3)
        if interval > max(scenario.useful_seconds, interval_seconds) or any(
            point.interval_seconds == interval for point in points
        ):
            continue
        form = scenario.closed_form(interval)
        hopeless = form.useful_share < LEAST_SHARE or form.interruptions > MOST_INTERRUPTIONS
        ettr = None if hopeless else simulate(scenario.job(interval), runs=runs, seed=seed).ettr
        points.append(IntervalPoint(interval_seconds=interval, ettr=ettr, closed_form=form.useful_share))
    return tuple(points)


LEAST_SHARE = 0.01
"""Below it an interval is not simulated in a sweep: nobody would run that job."""
MOST_INTERRUPTIONS = MAX_INTERRUPTIONS / 4
"""Expected of a run; above it an interval is not simulated either, since an unlucky run needs several times more."""
