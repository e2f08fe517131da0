"""Event simulation of a job under failures, preemptions and waits: many runs at once, one draw per interruption.

Between two interruptions nothing is random, so a whole period is advanced in one step: how many segments of compute
and save became durable, what was lost, how long the way back takes.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from charter.errors import InfeasibleError, UsageError
from charter.resilience.spot import Durations, Exponential, Fixed, Index, Pool, Seconds, Windows

BUCKETS = ("useful", "save", "lost", "detection", "restart", "wait")
QUANTILES = (0.5, 0.9, 0.99)


@dataclass(frozen=True, kw_only=True, eq=False)
class SimulationOutcome:
    """Seconds of every run, by what they were spent on; the buckets of a run add up to its wall time."""

    wall_seconds: Seconds
    useful_seconds: Seconds
    save_seconds: Seconds
    lost_seconds: Seconds
    detection_seconds: Seconds
    restart_seconds: Seconds
    wait_seconds: Seconds
    interruptions: NDArray[np.int64]

    @property
    def runs(self) -> int:
        """Number of runs."""
        return int(self.wall_seconds.size)

    @property
    def billed_seconds(self) -> Seconds:
        """Wall time without the wait for machines."""
        return self.wall_seconds - self.wait_seconds

    @property
    def mean_wall_seconds(self) -> float:
        """Mean wall time."""
        return float(np.mean(self.wall_seconds))

    @property
    def mean_billed_seconds(self) -> float:
        """Mean billed time."""
        return float(np.mean(self.billed_seconds))

    @property
    def standard_error_seconds(self) -> float:
        """Standard error of the mean wall time; infinite for a single run."""
        if self.runs < 2:
            return math.inf
        return float(np.std(self.wall_seconds, ddof=1)) / math.sqrt(self.runs)

    @property
    def ettr(self) -> float:
        """Useful over wall-clock time of all runs together, the wait for machines included."""
        return float(np.sum(self.useful_seconds) / np.sum(self.wall_seconds))

    @property
    def ettr_billed(self) -> float:
        """Useful over billed time: the wait for machines left out."""
        return float(np.sum(self.useful_seconds) / np.sum(self.billed_seconds))

    def quantiles(self, seconds: Seconds) -> dict[str, float]:
        """p50, p90 and p99 of one of the columns."""
        levels = np.quantile(seconds, QUANTILES)
        return {f"p{round(100 * level)}": float(value) for level, value in zip(QUANTILES, levels, strict=True)}

    def buckets(self) -> dict[str, float]:
        """Mean seconds by bucket; they add up to the mean wall time."""
        return {name: float(np.mean(getattr(self, f"{name}_seconds"))) for name in BUCKETS}

    def histogram(self, bins: int = 12) -> list[tuple[float, float, int]]:
        """Wall times in bins up to the 99th percentile, the last of which holds the rest: from, to, runs."""
        walls = self.wall_seconds
        low, high = float(np.min(walls)), float(np.quantile(walls, 0.99))
        if high - low <= 1e-9 * max(1.0, high):
            return [(low, float(np.max(walls)), self.runs)]
        counts, edges = np.histogram(np.minimum(walls, high), bins=bins, range=(low, high))
        ends = [*map(float, edges[1:-1]), float(np.max(walls))]
        return [(float(a), b, int(n)) for a, b, n in zip(edges[:-1], ends, counts, strict=True)]

    def to_json(self) -> dict[str, object]:
        """Means, quantiles and buckets, in seconds."""
        return {
            "runs": self.runs,
            "wall_seconds": {
                "mean": self.mean_wall_seconds,
                "standard_error": self.standard_error_seconds if self.runs > 1 else None,
                **self.quantiles(self.wall_seconds),
            },
            "billed_seconds": {"mean": self.mean_billed_seconds, **self.quantiles(self.billed_seconds)},
            "lost_seconds": {"mean": float(np.mean(self.lost_seconds)), **self.quantiles(self.lost_seconds)},
            "interruptions": {
                "mean": float(np.mean(self.interruptions)),
                **self.quantiles(self.interruptions.astype(np.float64)),
            },
            "ettr": self.ettr,
            "ettr_without_wait": self.ettr_billed,
            "buckets_seconds": self.buckets(),
        }


MAX_INTERRUPTIONS = 50_000
"""Of one run; a job that needs more will not be finished by anybody."""
MAX_WITHOUT_PROGRESS = 2_000
"""Interruptions after which every run must have kept something."""
NEVER = Exponential(mean_seconds=math.inf)
AT_ONCE = Fixed(mean_seconds=0.0)
STREAMS = 4
"""Independent random streams of a simulation: failures, waits and repairs, spot pool, notices."""


@dataclass(frozen=True, kw_only=True)
class SparePool:
    """Spare nodes of a job, and how long a failed node is in repair."""

    spares: int
    repair: Durations


@dataclass(frozen=True, kw_only=True)
class SimulatedJob:
    """Simulated job; every time in seconds."""

    useful_seconds: float
    interval_seconds: float
    save_seconds: float
    """What a save blocks the job: all of it, or the stall of an asynchronous one."""
    persist_seconds: float = 0.0
    """From the end of the stall until an asynchronous save is durable."""
    restart_seconds: float = 0.0
    """Rescheduling, loading, warm-up; a failure in it starts it again."""
    detection_seconds: float = 0.0
    failures: Durations = NEVER
    """Times between failures of the whole job, counted from each restart."""
    capacity_wait: Durations = AT_ONCE
    """Wait for another machine after a failure."""
    spares: SparePool | None = None
    """Own spare nodes; while one is free nothing is waited for, otherwise the next repair."""
    spot: Pool | None = None
    preemption_detection_seconds: float = 0.0
    notice_success: float = 0.0
    """Share of preemptions before which one more save succeeds."""

    def __post_init__(self) -> None:
        """Refuse what has no meaning."""
        if not self.interval_seconds > 0 or self.useful_seconds < 0 or self.save_seconds < 0:
            raise UsageError("a simulation needs an interval above zero, and neither work nor saves below zero")
        if self.persist_seconds > self.interval_seconds + self.save_seconds:
            raise UsageError(
                f"a save is durable {self.persist_seconds:g} s after its stall, but the next one starts after "
                f"{self.interval_seconds:g} s\n  give an interval of at least {self.persist_seconds:g} s"
            )


def simulate(job: SimulatedJob, *, runs: int = 1000, seed: int = 0) -> SimulationOutcome:
    """Run the job `runs` times; the same seed gives the same bytes.

    Draws come from counter-based Philox streams, one vector for all runs per interruption: the k-th failure of run r
    is the same whatever the interval, so that intervals are compared on common random numbers. Raises
    `InfeasibleError` for a job that makes no progress.

    >>> from charter.resilience.spot import Exponential
    >>> job = SimulatedJob(useful_seconds=864000, interval_seconds=654, save_seconds=20, restart_seconds=600,
    ...           failures=Exponential(mean_seconds=11124))
    >>> found = simulate(job, runs=500, seed=1)
    >>> round(found.mean_wall_seconds / 3600), round(found.ettr, 2)
    (269, 0.89)
    """
    if runs < 1:
        raise UsageError(f"runs: {runs}; at least one run is needed")
    return _Simulation(job, runs, seed).run()


class _Simulation:
    """The clocks and buckets of all runs."""

    def __init__(self, job: SimulatedJob, runs: int, seed: int) -> None:
        self._job = job
        self._runs = runs
        sources = np.random.SeedSequence(seed).spawn(STREAMS)
        self._failing, self._waiting, market, self._noticing = (
            np.random.Generator(np.random.Philox(source)) for source in sources
        )
        self._windows: Windows | None = None if job.spot is None else job.spot.open(runs, market)
        self._repaired: Seconds | None = None if job.spares is None else np.zeros((runs, max(1, job.spares.spares)))
        names = ("now", "done", "saves", "lost", "detection", "restart", "wait")
        self._total: dict[str, Seconds] = {name: np.zeros(runs) for name in names}
        self._count: NDArray[np.int64] = np.zeros(runs, dtype=np.int64)
        self._left = np.full(runs, np.inf)

    def run(self) -> SimulationOutcome:
        """Advance every run, one period between interruptions at a time, until all are done."""
        active: Index = np.arange(self._runs)
        self._acquire(active)
        restart = 0.0
        for interruption in range(1, MAX_INTERRUPTIONS + 1):
            life = self._job.failures.draw(self._failing, self._runs)[active]
            remaining_life = self._left[active]
            ended = self._period(
                active, np.minimum(life, remaining_life), preempted=remaining_life < life, restart=restart
            )
            active = active[~ended]
            if active.size == 0:
                return self._outcome()
            restart = self._job.restart_seconds
            if interruption == MAX_WITHOUT_PROGRESS and not np.all(self._total["done"]):
                break
        share = float(np.min(self._total["done"])) / self._job.useful_seconds
        raise InfeasibleError(
            f"after {interruption:,} interruptions {share:.1%} of the work is done: the job fails faster than it "
            "works\n  use a shorter interval, a faster restart, fewer nodes, or steadier machines"
        )

    def _period(self, runs: Index, life: Seconds, *, preempted: NDArray[np.bool_], restart: float) -> NDArray[np.bool_]:
        """One period of the given runs: restart, work until done or interrupted, way back. Who is done."""
        job, total = self._job, self._total
        working = np.maximum(life - restart, 0.0)
        remaining = job.useful_seconds - total["done"][runs]
        segments = np.ceil(remaining / job.interval_seconds - 1e-9)
        saves_left = segments * job.save_seconds + job.persist_seconds
        ended = (life >= restart) & (working >= remaining + saves_left)
        total["restart"][runs] += np.minimum(life, restart)
        self._finish(runs[ended], remaining[ended], saves_left[ended], restart)
        self._interrupt(runs[~ended], working[~ended], remaining[~ended], preempted[~ended])
        total["now"][runs[~ended]] += life[~ended]
        self._come_back(runs[~ended], preempted[~ended])
        return ended

    def _finish(self, runs: Index, remaining: Seconds, saves: Seconds, restart: float) -> None:
        total = self._total
        total["done"][runs] = self._job.useful_seconds
        total["saves"][runs] += saves
        total["now"][runs] += restart + remaining + saves

    def _interrupt(self, runs: Index, working: Seconds, remaining: Seconds, preempted: NDArray[np.bool_]) -> None:
        """Add the work of a period that became durable, and the work that is lost."""
        job, total = self._job, self._total
        segment = job.interval_seconds + job.save_seconds
        durable = np.maximum(np.floor((working - job.persist_seconds) / segment), 0.0)
        durable_compute, saved = durable * job.interval_seconds, durable * job.save_seconds
        if job.notice_success > 0:
            early = self._noticing.random(self._runs)[runs] < job.notice_success
            early &= preempted & (working > job.save_seconds)
            segments, rest = np.divmod(working - job.save_seconds, segment)
            computed = np.minimum(segments * job.interval_seconds + np.minimum(rest, job.interval_seconds), remaining)
            durable_compute, saved = (
                np.where(early, computed, durable_compute),
                np.where(early, working - computed, saved),
            )
        total["done"][runs] += durable_compute
        total["saves"][runs] += saved
        total["lost"][runs] += working - durable_compute - saved
        self._count[runs] += 1

    def _come_back(self, runs: Index, preempted: NDArray[np.bool_]) -> None:
        """Detection, then the wait for machines."""
        job, total = self._job, self._total
        unseen = np.where(preempted, job.preemption_detection_seconds, job.detection_seconds)
        total["detection"][runs] += unseen
        total["now"][runs] += unseen
        wait = np.where(preempted, 0.0, job.capacity_wait.draw(self._waiting, self._runs)[runs])
        if job.spares is not None:
            wait[~preempted] += self._swap(runs[~preempted], job.spares)
        total["wait"][runs] += wait
        total["now"][runs] += wait
        self._acquire(runs)

    def _swap(self, runs: Index, pool: SparePool) -> Seconds:
        """Wait until a spare stands in for the failed node: none while one is free, else until the next repair."""
        assert self._repaired is not None
        now = self._total["now"][runs]
        done = now + pool.repair.draw(self._waiting, self._runs)[runs]
        if pool.spares == 0:
            return done - now
        slot = np.argmin(self._repaired[runs], axis=1)
        first = self._repaired[runs, slot]
        own_is_first = (first > now) & (done < first)
        self._repaired[runs, slot] = np.where(own_is_first, first, done)
        wait: Seconds = np.maximum(np.where(own_is_first, done, first) - now, 0.0)
        return wait

    def _acquire(self, runs: Index) -> None:
        """Wait for the spot pool, if there is one, and note how long it has machines."""
        if self._windows is None:
            return
        wait, remaining_life = self._windows.next_up(self._total["now"][runs], runs)
        self._total["wait"][runs] += wait
        self._total["now"][runs] += wait
        self._left[runs] = remaining_life

    def _outcome(self) -> SimulationOutcome:
        total = self._total
        return SimulationOutcome(
            wall_seconds=total["now"],
            useful_seconds=total["done"],
            save_seconds=total["saves"],
            lost_seconds=total["lost"],
            detection_seconds=total["detection"],
            restart_seconds=total["restart"],
            wait_seconds=total["wait"],
            interruptions=self._count,
        )
