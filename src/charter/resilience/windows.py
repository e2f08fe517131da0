"""When a pool of spot machines has enough of them for a whole job: windows of time, drawn or replayed."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from charter.resilience.durations import Durations, LogNormal, Seconds

Index = NDArray[np.intp]

MEAN_UP_HOURS = 2.75
MEDIAN_UP_HOURS = 0.6
MEDIAN_DOWN_HOURS = 0.5
AVAILABILITY = 0.65
SPOT_SOURCE = "medians of public AWS spot traces of 2022-23 (V100, K80); none is public for A100 or H100"

BURN_IN_CYCLES = 20.0
"""Mean cycles of a drawn history before the first run may start in it."""


class Windows(Protocol):
    """The windows of many runs, each with its own history."""

    def next_up(self, now: Seconds, runs: Index) -> tuple[Seconds, Seconds]:
        """Seconds until the pool has the machines at or after `now`, and how long it has them from then on."""
        ...


class Pool(Protocol):
    """A spot pool, before any run draws from it."""

    def open(self, count: int, random: np.random.Generator) -> Windows:
        """Windows for so many runs."""
        ...


@dataclass(frozen=True, kw_only=True)
class SpotMarket:
    """A pool that is up and down in turn; a gang gets all its machines or none, and loses them together."""

    up: Durations
    down: Durations

    @property
    def availability(self) -> float:
        """Share of time up."""
        return self.up.mean_seconds / (self.up.mean_seconds + self.down.mean_seconds)

    def open(self, count: int, random: np.random.Generator) -> Windows:
        """Every run starts at a random moment of a history that has run for a while: up or down."""
        return _DrawnWindows(self, count, random)


def heavy_tailed_market(
    *, mean_up_seconds: float = MEAN_UP_HOURS * 3600, availability: float = AVAILABILITY
) -> SpotMarket:
    """A market whose times are lognormal, with the ratios of mean to median of the traces behind the defaults.

    Up: median 0.6 h of a mean of 2.75 h. Down: median 0.5 h of a mean of 1.48 h, which puts the 95th percentile at
    5.6 h (the traces: 3 to 8 h). Correlation between machines is in the pool: the gang is one customer.

    >>> market = heavy_tailed_market()
    >>> round(market.availability, 2), round(market.down.mean_seconds / 3600, 2)
    (0.65, 1.48)
    """
    mean_down = mean_up_seconds * (1 - availability) / availability
    default_down = MEAN_UP_HOURS * (1 - AVAILABILITY) / AVAILABILITY
    return SpotMarket(
        up=LogNormal(mean_seconds=mean_up_seconds, median_seconds=mean_up_seconds * MEDIAN_UP_HOURS / MEAN_UP_HOURS),
        down=LogNormal(mean_seconds=mean_down, median_seconds=mean_down * MEDIAN_DOWN_HOURS / default_down),
    )


class _DrawnWindows:
    """One window per run, drawn anew when the run's clock has passed its end."""

    def __init__(self, market: SpotMarket, count: int, random: np.random.Generator) -> None:
        self._market = market
        self._random = random
        self._start = np.zeros(count)
        self._end = market.up.draw(random, count)
        cycle_seconds = market.up.mean_seconds + market.down.mean_seconds
        begin = (1 + random.random(count)) * BURN_IN_CYCLES * cycle_seconds
        self.next_up(begin, np.arange(count))
        self._start -= begin
        self._end -= begin

    def next_up(self, now: Seconds, runs: Index) -> tuple[Seconds, Seconds]:
        """See `Windows`."""
        late = runs[now >= self._end[runs]]
        clock = np.zeros_like(self._end)
        clock[runs] = now
        while late.size:
            self._start[late] = self._end[late] + self._market.down.draw(self._random, late.size)
            self._end[late] = self._start[late] + self._market.up.draw(self._random, late.size)
            late = late[clock[late] >= self._end[late]]
        begin = np.maximum(now, self._start[runs])
        return begin - now, self._end[runs] - begin


@dataclass(frozen=True, kw_only=True)
class Periods:
    """Windows of a recorded pool, repeated for ever: seconds at which they start and end within one pass."""

    starts: tuple[float, ...]
    ends: tuple[float, ...]
    length_seconds: float

    def open(self, count: int, random: np.random.Generator) -> Windows:
        """Every run starts at a random moment of the record."""
        return _ReplayedWindows(self, random.random(count) * self.length_seconds)


class _ReplayedWindows:
    """The recorded windows, seen from each run's own starting moment."""

    def __init__(self, periods: Periods, offset: Seconds) -> None:
        self._length = periods.length_seconds
        self._starts = np.asarray(periods.starts)
        self._ends = np.asarray(periods.ends)
        self._offset = offset
        self._always = periods.starts[0] <= 0.0 and periods.ends[0] >= periods.length_seconds

    def next_up(self, now: Seconds, runs: Index) -> tuple[Seconds, Seconds]:
        """See `Windows`; a window that reaches the end of the record goes on into its repetition."""
        moment = (now + self._offset[runs]) % self._length
        found = np.searchsorted(self._ends, moment, side="right")
        wrapped = found == self._ends.size
        found[wrapped] = 0
        start = self._starts[found] + np.where(wrapped, self._length, 0.0)
        end = self._ends[found] + np.where(wrapped, self._length, 0.0)
        begin = np.maximum(moment, start)
        joins = (self._ends[found] >= self._length) & (self._starts[0] <= 0.0)
        left = end - begin + np.where(joins, self._ends[0], 0.0)
        return begin - moment, np.full_like(left, np.inf) if self._always else left
