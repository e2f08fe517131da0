"""Spot pools: records of their capacity, windows with enough machines, and how long a job waits for them."""

import json
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from charter.errors import UsageError, loads_json

Seconds = NDArray[np.float64]


class Durations(Protocol):
    """A distribution of positive times in seconds."""

    @property
    def mean_seconds(self) -> float:
        """The mean."""
        ...

    def draw(self, random: np.random.Generator, count: int) -> Seconds:
        """So many independent times."""
        ...


@dataclass(frozen=True, kw_only=True)
class Exponential:
    """Memoryless times: independent failures of many parts."""

    mean_seconds: float

    def draw(self, random: np.random.Generator, count: int) -> Seconds:
        """Independent exponential times; infinite where the mean is."""
        if math.isinf(self.mean_seconds):
            return np.full(count, np.inf)
        return random.standard_exponential(count) * self.mean_seconds


@dataclass(frozen=True, kw_only=True)
class Weibull:
    """Times whose hazard falls (shape below 1: failures come in clusters) or rises with age (above 1).

    Shapes of 0.7 to 0.8 were fitted to failures of large systems: Schroeder and Gibson 2006, section 5.3.
    """

    mean_seconds: float
    shape: float

    def draw(self, random: np.random.Generator, count: int) -> Seconds:
        """Independent Weibull times of the given mean: the scale is `mean / gamma(1 + 1/shape)`."""
        scale = self.mean_seconds / math.gamma(1 + 1 / self.shape)
        return random.standard_exponential(count) ** (1 / self.shape) * scale


@dataclass(frozen=True, kw_only=True)
class LogNormal:
    """Heavy-tailed times by mean and median: most are short, a few are very long.

    The standard deviation of the logarithm is `sqrt(2 ln(mean / median))`.
    """

    mean_seconds: float
    median_seconds: float

    @property
    def sigma(self) -> float:
        """Standard deviation of the logarithm."""
        return math.sqrt(2 * math.log(self.mean_seconds / self.median_seconds))

    def draw(self, random: np.random.Generator, count: int) -> Seconds:
        """Independent lognormal times."""
        return np.exp(self.sigma * random.standard_normal(count)) * self.median_seconds


@dataclass(frozen=True, kw_only=True)
class Fixed:
    """Always the same time."""

    mean_seconds: float

    def draw(self, random: np.random.Generator, count: int) -> Seconds:
        """The time, `count` times."""
        return np.full(count, self.mean_seconds)


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
        window = np.searchsorted(self._ends, moment, side="right")
        wrapped = window == self._ends.size
        window[wrapped] = 0
        start = self._starts[window] + np.where(wrapped, self._length, 0.0)
        end = self._ends[window] + np.where(wrapped, self._length, 0.0)
        begin = np.maximum(moment, start)
        joins = (self._ends[window] >= self._length) & (self._starts[0] <= 0.0)
        remaining = end - begin + np.where(joins, self._ends[0], 0.0)
        return begin - moment, np.full_like(remaining, np.inf) if self._always else remaining


LEVELS = (0.1, 0.5, 0.9)
CURVE = (
    0.0,
    0.01,
    0.05,
    0.1,
    0.2,
    0.3,
    0.4,
    0.5,
    0.6,
    0.7,
    0.8,
    0.85,
    0.9,
    0.93,
    0.95,
    0.97,
    0.98,
    0.99,
    0.995,
    0.999,
    1.0,
)
"""Levels between which the quantile function is taken as straight: dense where the tail is."""
HISTORIES = 1500
CYCLES = 192
MOST_WINDOWS = 100.0
"""Beyond it quantiles follow the mean and the square root of the number of outages."""
STEPS_PER_E = 20
"""Needs are rounded to 5 % before they are looked up."""
_ROWS = tuple(CURVE.index(level) for level in LEVELS)


@dataclass(frozen=True, kw_only=True)
class SpotWaits:
    """Seconds of waiting in all of a job, over the pool's luck."""

    p10: float
    p50: float
    p90: float
    curve: tuple[float, ...] = ()
    """The quantiles at `CURVE`: three of them say too little about a tail that decides the sum of several waits."""


def spot_waits(up_seconds: float, *, mean_up_seconds: float, availability: float) -> SpotWaits:
    """Quantiles of the time that a job waits which needs `up_seconds` of machines from a heavy-tailed pool.

    The wait for the first window, at a random moment, is in it. Together with the expected billed time it gives the
    wall time of `resilience.simulate` within 5 % at p50 and 12 % at p90 for jobs of a day or more; for jobs of a few
    hours p90 is up to 17 % too low, because the billed time varies as well.

    >>> day = spot_waits(24 * 3600, mean_up_seconds=2.75 * 3600, availability=0.65)
    >>> [round(wait / 3600) for wait in (day.p10, day.p50, day.p90)]
    [0, 12, 37]
    """
    mean_outage = mean_up_seconds * (1 - availability) / availability
    windows = up_seconds / mean_up_seconds
    if windows <= 0 or mean_outage <= 0:
        return SpotWaits(p10=0.0, p50=0.0, p90=0.0)
    capped = min(windows, MOST_WINDOWS)
    outage_waits = _in_outages(round(STEPS_PER_E * math.log(capped)), round(availability, 3))
    spread = math.sqrt(windows / capped)
    curve = tuple(mean_outage * max(0.0, windows + (outages - capped) * spread) for outages in outage_waits)
    p10, p50, p90 = (curve[row] for row in _ROWS)
    return SpotWaits(p10=p10, p50=p50, p90=p90, curve=curve)


def first_wait_seconds(*, mean_up_seconds: float, availability: float) -> float:
    """Mean wait of a job that asks at a random moment: `(1 - availability) E[down^2] / (2 E[down])`.

    >>> round(first_wait_seconds(mean_up_seconds=2.75 * 3600, availability=0.65) / 3600, 2)
    2.27
    """
    if availability >= 1:
        return 0.0
    down = heavy_tailed_market(mean_up_seconds=mean_up_seconds, availability=availability).down
    return (1 - availability) * down.mean_seconds * math.exp(_unit_sigma() ** 2) / 2


@lru_cache(maxsize=4096)
def _in_outages(log_windows: int, availability: float) -> tuple[float, ...]:
    """Quantiles of the wait, in mean outages."""
    ends, waits = _histories(availability)
    begun = np.count_nonzero(ends < math.exp(log_windows / STEPS_PER_E), axis=1)
    return tuple(float(value) for value in np.quantile(waits[np.arange(len(waits)), begun], CURVE))


@lru_cache(maxsize=8)
def _histories(availability: float) -> tuple[Seconds, Seconds]:
    """Of each history: on the clock of machine time, when outages begin; and the wait after so many of them."""
    random = np.random.Generator(np.random.Philox(1))
    market = heavy_tailed_market(mean_up_seconds=1.0, availability=min(availability, 0.999))
    count = HISTORIES * CYCLES
    up = market.up.draw(random, count).reshape(HISTORIES, CYCLES)
    down = market.down.draw(random, count).reshape(HISTORIES, CYCLES) / market.down.mean_seconds
    cycle = up + down * market.down.mean_seconds
    start = (1 + random.random(HISTORIES)) * BURN_IN_CYCLES * (1 + market.down.mean_seconds)
    rows = np.arange(HISTORIES)
    passed = np.cumsum(cycle, axis=1)
    current = np.minimum(np.count_nonzero(passed <= start[:, None], axis=1), CYCLES - 1)
    into = start - (passed[rows, current] - cycle[rows, current])
    left_up = np.maximum(up[rows, current] - into, 0.0)
    rest = np.where(into > up[rows, current], (cycle[rows, current] - into) / market.down.mean_seconds, 0.0)
    outages = np.where(np.arange(CYCLES) >= current[:, None], down, 0.0)
    outages[rows, current] = np.where(left_up > 0, down[rows, current], 0.0)
    machine_time = np.where(np.arange(CYCLES) > current[:, None], up, 0.0)
    machine_time[rows, current] = left_up
    ends = np.cumsum(machine_time, axis=1)
    waits = np.concatenate([np.zeros((HISTORIES, 1)), np.cumsum(outages, axis=1)], axis=1) + rest[:, None]
    return ends, waits


@lru_cache(maxsize=1)
def _unit_sigma() -> float:
    return math.sqrt(2 * math.log(MEAN_UP_HOURS * (1 - AVAILABILITY) / AVAILABILITY / MEDIAN_DOWN_HOURS))


DATA = Path(__file__).parent / "data"


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Machines that a pool had, tick by tick."""

    name: str
    gap_seconds: float
    available: tuple[int, ...]

    @property
    def length_seconds(self) -> float:
        """Time from the first tick to the end of the last."""
        return self.gap_seconds * len(self.available)

    def periods(self, nodes: int = 1) -> Periods:
        """Return the periods in which at least `nodes` machines were there at once, for a gang of that size.

        Raises `UsageError` when that never was.
        """
        spans, position = [], 0
        for enough, ticks in groupby(count >= nodes for count in self.available):
            length = sum(1 for _ in ticks)
            if enough:
                spans.append((position * self.gap_seconds, (position + length) * self.gap_seconds))
            position += length
        if not spans:
            raise UsageError(
                f"trace {self.name}: {nodes} machines are never to be had at once; the most is {max(self.available)}\n"
                "  take fewer nodes or another trace"
            )
        starts, ends = zip(*spans, strict=True)
        return Periods(starts=starts, ends=ends, length_seconds=self.length_seconds)


@dataclass(frozen=True, kw_only=True)
class TraceStatistics:
    """Statistics of a trace for a gang: its share of the time, its duration, and the wait for it."""

    availability: float
    preemptions: int
    mean_up_seconds: float
    median_up_seconds: float
    mean_down_seconds: float
    median_down_seconds: float


def trace_statistics(trace: Trace, nodes: int = 1) -> TraceStatistics:
    """Statistics of the spans in which the pool has, or has not, `nodes` machines; both must occur.

    >>> steady = Trace(name="t", gap_seconds=600, available=(1, 1, 1, 0, 1, 0))
    >>> found = trace_statistics(steady)
    >>> round(found.availability, 2), found.preemptions, found.mean_up_seconds
    (0.67, 2, 1200.0)
    """
    up: list[float] = []
    down: list[float] = []
    for enough, ticks in groupby(count >= nodes for count in trace.available):
        (up if enough else down).append(sum(1 for _ in ticks) * trace.gap_seconds)
    if not up or not down:
        raise UsageError(f"trace {trace.name}: {nodes} machines are {'never' if not up else 'always'} to be had")
    ends_up = trace.available[-1] >= nodes
    return TraceStatistics(
        availability=sum(up) / trace.length_seconds,
        preemptions=len(up) - ends_up,
        mean_up_seconds=statistics.fmean(up),
        median_up_seconds=statistics.median(up),
        mean_down_seconds=statistics.fmean(down),
        median_down_seconds=statistics.median(down),
    )


LONGEST_GAP_SECONDS = 1e9
"""Between two looks of a trace: 30 years."""


def read_trace(path: Path) -> Trace:
    """The trace in a JSON file; a `UsageError` says what is wrong with it."""
    try:
        content = loads_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"trace {path}: {error.strerror}; shipped traces: {', '.join(shipped())}") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"trace {path}: not JSON ({error})") from None
    return trace_of(content, name=path.stem)


def trace_of(document: object, *, name: str) -> Trace:
    """A trace from read JSON."""
    wanted = 'a trace is {"metadata": {"gap_seconds": 195}, "data": [1, 1, 0, ...]}'
    metadata = document.get("metadata") if isinstance(document, Mapping) else None
    data = document.get("data") if isinstance(document, Mapping) else None
    gap = metadata.get("gap_seconds") if isinstance(metadata, Mapping) else None
    if not isinstance(gap, int | float) or isinstance(gap, bool) or not 0 < gap <= LONGEST_GAP_SECONDS:
        raise UsageError(f"trace {name}: metadata.gap_seconds is {gap!r}, not a time above zero; {wanted}")
    if not isinstance(data, list) or not data:
        raise UsageError(f"trace {name}: 'data' is not a list of counts; {wanted}")
    for position, count in enumerate(data):
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise UsageError(f"trace {name}: data[{position}] is {count!r}, not a number of machines; {wanted}")
    return Trace(name=name, gap_seconds=float(gap), available=tuple(data))


def shipped() -> tuple[str, ...]:
    """Names of the synthetic traces that come with Charter."""
    return tuple(sorted(path.stem for path in DATA.glob("*.json")))


def find_trace(name: str) -> Trace:
    """A shipped trace by name, or the one in a file.

    >>> find_trace("synthetic-usual").gap_seconds
    600.0
    """
    return read_trace(DATA / f"{name}.json" if name in shipped() else Path(name))
