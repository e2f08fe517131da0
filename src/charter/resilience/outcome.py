"""What many simulated runs of a job came to."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from charter.resilience.durations import Seconds

BUCKETS = ("useful", "save", "lost", "detection", "restart", "wait")
QUANTILES = (0.5, 0.9, 0.99)


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
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
        """How many runs there are."""
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
        found = np.quantile(seconds, QUANTILES)
        return {f"p{round(100 * level)}": float(value) for level, value in zip(QUANTILES, found, strict=True)}

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
