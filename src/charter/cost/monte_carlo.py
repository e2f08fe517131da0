"""Distribution of a project's cost and finish: uncertain multipliers by cause, joint draws, the share of each cause."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from statistics import NormalDist
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from charter.errors import UsageError
from charter.physics.terms import Z90, Interval

# -------- Uncertain multipliers: a cause, and the distribution of the factor that it contributes.
#
# Two quantities that name the same cause move together: one provider's prices, one estimator's error.

Draws = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Lognormal:
    """`median x exp(sigma z)`."""

    median: float = 1.0
    sigma: float

    def draws(self, noise: "Noise", cause: str) -> Draws:
        """One factor per draw."""
        return self.median * np.exp(self.sigma * noise.normal(cause))


@dataclass(frozen=True, kw_only=True)
class Uniform:
    """Evenly between two factors."""

    low: float
    high: float

    def draws(self, noise: "Noise", cause: str) -> Draws:
        """One factor per draw."""
        return self.low + (self.high - self.low) * noise.uniform(cause)


@dataclass(frozen=True, kw_only=True)
class LogUniform:
    """Evenly on a logarithmic scale: every doubling is as likely."""

    low: float
    high: float

    def draws(self, noise: "Noise", cause: str) -> Draws:
        """One factor per draw."""
        return self.low * np.exp(math.log(self.high / self.low) * noise.uniform(cause))


@dataclass(frozen=True, kw_only=True)
class Idle:
    """`1 / (1 - f)` with the idle share f evenly between two values."""

    low: float
    high: float

    def draws(self, noise: "Noise", cause: str) -> Draws:
        """One factor per draw."""
        return 1.0 / (1.0 - Uniform(low=self.low, high=self.high).draws(noise, cause))


@dataclass(frozen=True, kw_only=True)
class ThreePoint:
    """Known at its 10th, 50th and 90th percentile: straight lines between them over normal scores, never below 0."""

    p10: float
    p50: float
    p90: float

    def draws(self, noise: "Noise", cause: str) -> Draws:
        """One value per draw."""
        scores = noise.normal(cause) / Z90
        below, above = self.p50 - self.p10, self.p90 - self.p50
        return np.maximum(0.0, self.p50 + np.where(scores < 0, below, above) * scores)


@dataclass(frozen=True, kw_only=True)
class Quantiles:
    """Known at many levels between 0 and 1: straight lines between its quantiles."""

    levels: tuple[float, ...]
    values: tuple[float, ...]

    def draws(self, noise: "Noise", cause: str) -> Draws:
        """One value per draw."""
        return np.interp(noise.uniform(cause), self.levels, self.values)


@lru_cache(maxsize=8)
def _strata(kind: str, size: int) -> Draws:
    """The middles of equally likely strata, in order."""
    levels = (np.arange(size) + 0.5) / size
    if kind == "uniform":
        return levels
    normal = NormalDist()
    return np.array([normal.inv_cdf(level) for level in levels.tolist()])


Distribution = Lognormal | Uniform | LogUniform | Idle | ThreePoint | Quantiles


@dataclass(frozen=True, kw_only=True)
class Factor:
    """A cause and what it multiplies by."""

    cause: str
    distribution: Distribution


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Random numbers by cause: the same seed and cause give the same numbers, whatever else is drawn.

    Counter-based (Philox), keyed by SHA-256 of seed and cause, so no cause depends on the order of the others. Each
    cause takes the middle of every one of `size` equally likely strata once, in random order, so that its own quantiles
    are exact: Latin hypercube sampling. Source: McKay, Beckman and Conover 1979.
    """

    seed: int
    size: int
    _made: dict[str, Any] = field(default_factory=dict)

    def normal(self, cause: str) -> Draws:
        """Standard normal numbers of a cause."""
        return self._numbers(cause, "normal")

    def uniform(self, cause: str) -> Draws:
        """Numbers of a cause between 0 and 1."""
        return self._numbers(cause, "uniform")

    @property
    def causes(self) -> dict[str, Draws]:
        """Return the numbers drawn so far, by cause."""
        return {name.partition(":")[2]: values for name, values in self._made.items()}

    def _numbers(self, cause: str, kind: str) -> Draws:
        name = f"{kind}:{cause}"
        if name not in self._made:
            key = int.from_bytes(sha256(f"{self.seed}:{cause}".encode()).digest()[:16], "little")
            generator = np.random.Generator(np.random.Philox(key=key))
            self._made[name] = generator.permutation(_strata(kind, self.size))
        drawn: Draws = self._made[name]
        return drawn


def exactly(value: float) -> Interval:
    """A quantity without spread.

    >>> exactly(3.0).p90
    3.0
    """
    return Interval(p10=value, p50=value, p90=value)


def lognormal(median: float, *sigmas: float) -> Interval:
    """The range of a product of independent lognormal factors with this median.

    Variances of the logarithms add: `sigma^2 = sum sigma_i^2`; `p90 = median x exp(1.2816 sigma)`.

    >>> round(lognormal(100.0, 0.20, 0.25).p90, 1)
    150.7
    """
    return Interval.around(median, sigma=math.hypot(*sigmas) if sigmas else 0.0)


def add(intervals: Iterable[Interval]) -> Interval:
    """The sum of quantities that err together: quantiles add.

    Stages share one estimator, one provider and one guess of the answer length, so their errors are taken
    as fully dependent. That keeps every column of a report equal to the sum of its parts; for independent
    errors it is too wide.

    >>> add([exactly(1.0), lognormal(2.0, 0.1)]).p50
    3.0
    """
    parts = list(intervals)
    return Interval(
        p10=math.fsum(part.p10 for part in parts),
        p50=math.fsum(part.p50 for part in parts),
        p90=math.fsum(part.p90 for part in parts),
    )


# -------- The distribution of a project's cost and finish, and which causes it comes from.
#
# Every amount is a median times factors; factors with the same cause move together, over stages and over amounts.

NOTHING: Mapping[str, float] = MappingProxyType({})
SLACK = 1e-9
"""Of a pool's capacity, for sums of what is held."""


@dataclass(frozen=True, kw_only=True)
class Duration:
    """Duration of one stage, the inputs it waits for, and the accelerators it holds while it runs."""

    stage: str
    seconds: float
    factors: tuple[Factor, ...] = ()
    waits: tuple[Factor, ...] = ()
    """Uncertain waits in seconds while it runs, added to the rest."""
    after: tuple[str, ...] = ()
    """Its inputs."""
    lags: Mapping[str, float] = field(default_factory=dict)
    """By input: from its end until its results are here."""
    queue: tuple[Factor, ...] = ()
    """Uncertain waits in seconds between the last input and the start."""
    not_before_seconds: float = 0.0
    """From the start of the project until its machines are to be had."""
    holds: Mapping[str, float] = field(default_factory=dict)
    """By pool, while it runs."""


@dataclass(frozen=True, kw_only=True)
class Finish:
    """Starts and ends of the stages in every draw."""

    names: tuple[str, ...]
    starts: Draws
    """Stages x draws."""
    ends: Draws
    waited_for: Draws
    """Position of the stage that had to end first; -1 where none had."""

    @property
    def total(self) -> Draws:
        """End of the last stage per draw."""
        last: Draws = self.ends.max(axis=0, initial=0.0)
        return last

    @property
    def critical_path(self) -> tuple[str, ...]:
        """The chain of stages that decides the end in more draws than any other, in the order of their starts."""
        if not self.names:
            return ()
        columns = np.arange(self.ends.shape[1])
        on_path = np.zeros(self.ends.shape, dtype=bool)
        at = self.ends.argmax(axis=0)
        while len(columns):
            on_path[at, columns] = True
            at = self.waited_for[at, columns].astype(np.intp)
            at, columns = at[at >= 0], columns[at >= 0]
        chains, counts = np.unique(np.packbits(on_path, axis=0), axis=1, return_counts=True)
        most = np.unpackbits(chains[:, counts.argmax()], count=len(self.names))
        starts = np.median(self.starts, axis=1)
        return tuple(self.names[row] for row in sorted(np.flatnonzero(most), key=lambda row: (starts[row], row)))


def drawn_finish(
    durations: Sequence[Duration],
    noise: Noise,
    *,
    capacity: Mapping[str, float] = NOTHING,
) -> Finish:
    """Every stage as early as its inputs, its queue and the pools allow, per draw; placed in the given order.

    `end = start + seconds x factors + waits`, and `start` the earliest moment after the inputs, the lags and the queue
    at which what runs until `end` holds no more than `capacity`. `durations` stand in an order in which every stage
    comes after its inputs.
    Quantiles of sums are those of the sums, since causes that stages share move together and others do not. The order
    of placing does not depend on the draw. Source: serial schedule generation (Kelley 1963); Monte Carlo of project
    networks (Van Slyke 1963).

    >>> two = [Duration(stage="a", seconds=3.0), Duration(stage="b", seconds=4.0, after=("a",))]
    >>> float(drawn_finish(two, Noise(seed=0, size=100)).total[0])
    7.0
    """
    placed = _Placed(size=noise.size)
    for item in durations:
        ready, last = _after(item, placed)
        ready = np.maximum(ready + _sum(item.queue, noise), item.not_before_seconds)
        duration = product(item.seconds, item.factors, noise) + _sum(item.waits, noise)
        others = placed.beside(item, capacity)
        start = _with_room(item, placed, others, ready, duration, capacity)
        for name in others:
            last = np.where((start > ready) & (placed.ends[name] == start), placed.position(name), last)
        placed.add(item, start, last, duration)
    return placed.finish()


@dataclass(kw_only=True)
class _Placed:
    """Schedule of the stages placed so far."""

    size: int
    items: dict[str, Duration] = field(default_factory=dict)
    starts: dict[str, Draws] = field(default_factory=dict)
    ends: dict[str, Draws] = field(default_factory=dict)
    waited_for: dict[str, Draws] = field(default_factory=dict)
    before: dict[str, frozenset[str]] = field(default_factory=dict)
    """Stages that must end before, directly or through others."""

    def add(self, item: Duration, start: Draws, last: Draws, taken: Draws) -> None:
        """One stage more."""
        inputs = self.inputs(item)
        self.before[item.stage] = frozenset(inputs).union(*(self.before[name] for name in inputs))
        self.items[item.stage] = item
        self.starts[item.stage], self.ends[item.stage] = start, start + taken
        self.waited_for[item.stage] = last

    def inputs(self, item: Duration) -> list[str]:
        """Those that are part of the project."""
        return [name for name in item.after if name in self.items]

    def position(self, name: str) -> int:
        """Row of a stage."""
        return list(self.items).index(name)

    def beside(self, item: Duration, capacity: Mapping[str, float]) -> list[str]:
        """Stages that may run at the same time and hold something of the same pool."""
        inputs = self.inputs(item)
        before = frozenset(inputs).union(*(self.before[name] for name in inputs))
        return [
            name
            for name, other in self.items.items()
            if name not in before and any(item.holds.get(pool) and other.holds.get(pool) for pool in capacity)
        ]

    def finish(self) -> Finish:
        """All of it."""
        none = np.zeros((0, self.size))
        starts, ends, last = (
            np.stack(list(values.values())) if values else none for values in (self.starts, self.ends, self.waited_for)
        )
        return Finish(names=tuple(self.items), starts=starts, ends=ends, waited_for=last)


def _after(item: Duration, placed: _Placed) -> tuple[Draws, Draws]:
    """Return the moment at which the last input is here, and the input that it is."""
    ready, last = np.zeros(placed.size), np.full(placed.size, -1.0)
    for name in placed.inputs(item):
        arrived = placed.ends[name] + item.lags.get(name, 0.0)
        last, ready = np.where(arrived > ready, placed.position(name), last), np.maximum(ready, arrived)
    return ready, last


def product(median: float, factors: Sequence[Factor], noise: Noise) -> Draws:
    """A median times uncertain factors."""
    values = np.full(noise.size, median)
    for factor in factors:
        values = values * factor.distribution.draws(noise, factor.cause)
    return values


def quantiles(values: Draws) -> Interval:
    """The 10th, 50th and 90th percentile of draws."""
    p10, p50, p90 = (float(value) for value in np.quantile(values, (0.1, 0.5, 0.9)))
    return Interval(p10=p10, p50=p50, p90=p90)


def _sum(factors: Sequence[Factor], noise: Noise) -> Draws:
    return sum((factor.distribution.draws(noise, factor.cause) for factor in factors), start=np.zeros(noise.size))


def _with_room(
    item: Duration, placed: _Placed, others: Sequence[str], ready: Draws, taken: Draws, capacity: Mapping[str, float]
) -> Draws:
    """The first moment from `ready` on at which the pools have room until the stage ends."""
    allocations = [placed.items[name].holds for name in others]
    starts, ends = [placed.starts[name] for name in others], [placed.ends[name] for name in others]
    scarce = [
        pool
        for pool, most in capacity.items()
        if item.holds.get(pool) and item.holds[pool] + sum(of.get(pool, 0.0) for of in allocations) > most * (1 + SLACK)
    ]
    if not scarce:
        return ready
    earliest = np.full_like(ready, np.inf)
    moments = [ready, *(np.maximum(end, ready) for end in ends)]
    for moment in moments:
        room = np.ones(len(ready), dtype=bool)
        for point in (moment, *starts):
            inside = (point == moment) | ((point > moment) & (point < moment + taken))
            running = [(start <= point) & (end > point) for start, end in zip(starts, ends, strict=True)]
            for pool in scarce:
                load = sum((of.get(pool, 0.0) * on for of, on in zip(allocations, running, strict=True)), start=0.0)
                room &= (load + item.holds[pool] <= capacity[pool] * (1 + SLACK)) | ~inside
        earliest = np.where(room, np.minimum(earliest, moment), earliest)
    last: Draws = np.max(moments, axis=0)
    return np.where(np.isfinite(earliest), earliest, last)


DRAWS = 10_000
REWORK_SIGMA, FAILURES, IDLE_SHARES = 0.25, (1.02, 1.12), (0.05, 0.25)
"""Deviation of the logarithm of runs per kept run; billed time over undisturbed time; share of paid time with nothing
running. Judgement, until a ledger of finished runs measures them."""
NUM_DRIVERS = 3
LEAST_SHARE = 0.0005
"""Causes below it are left out: among 10,000 draws a cause without any effect reaches 0.0004 in one case of 20."""


@dataclass(frozen=True, kw_only=True)
class CostTerm:
    """One addend of the cost: a median, uncertain factors, and usd per month of the project's length."""

    stage: str
    """Empty for what belongs to the project as a whole."""
    usd: float = 0.0
    factors: tuple[Factor, ...] = ()
    usd_per_second: float = 0.0
    """Paid from the first start to the last end."""


@dataclass(frozen=True, kw_only=True)
class CauseShare:
    """A cause and its share of the variance of the logarithm of the total."""

    cause: str
    share: float

    def to_json(self) -> dict[str, object]:
        """Both fields."""
        return {"cause": self.cause, "share": round(self.share, 4)}


@dataclass(frozen=True, kw_only=True)
class CostDistribution:
    """Quantiles of cost and finish over all draws, with the causes in order of their weight."""

    usd: Interval
    seconds: Interval
    causes: tuple[CauseShare, ...]
    """Of the cost, largest first; shares are first-order and need not add up to one."""
    seed: int
    draws: int

    @property
    def drivers(self) -> tuple[CauseShare, ...]:
        """The three that matter most."""
        return self.causes[:NUM_DRIVERS]

    def to_json(self) -> dict[str, object]:
        """As `charter plan --json` prints it."""
        return {
            "usd": {name: round(getattr(self.usd, name), 6) for name in ("p10", "p50", "p90")},
            "seconds": {name: round(getattr(self.seconds, name), 6) for name in ("p10", "p50", "p90")},
            "drivers": [item.to_json() for item in self.drivers],
            "causes": [item.to_json() for item in self.causes],
            "seed": self.seed,
            "draws": self.draws,
        }


def simulate(
    amounts: Sequence[CostTerm],
    durations: Sequence[Duration],
    *,
    capacity: Mapping[str, float] = NOTHING,
    seed: int = 0,
    draws: int = DRAWS,
    contingency: float = 0.0,
) -> CostDistribution:
    """Draw cost and finish `draws` times.

    `durations` in an order in which every stage comes after its inputs, `capacity` of what they hold. Shares of
    the causes are squared correlations of a cause's noise with the logarithm of the total: exact for a product of
    independent factors, first-order for sums of such products.
    """
    if draws < 100:
        raise UsageError(f"quantiles need at least 100 draws; got {draws}")
    noise = Noise(seed=seed, size=draws)
    finish = drawn_finish(durations, noise, capacity=capacity).total
    drawn = [product(item.usd, item.factors, noise) + item.usd_per_second * finish for item in amounts]
    total = sum(drawn, start=np.zeros(draws)) * (1 + contingency)
    return CostDistribution(
        usd=quantiles(total),
        seconds=quantiles(finish),
        causes=_shares(total, noise),
        seed=seed,
        draws=draws,
    )


def _shares(total: Draws, noise: Noise) -> tuple[CauseShare, ...]:
    if not (total > 0).all():
        return ()
    logs = np.log(total)
    if logs.std() == 0:
        return ()
    causes = [
        CauseShare(cause=cause, share=float(np.corrcoef(values, logs)[0, 1] ** 2))
        for cause, values in noise.causes.items()
    ]
    shares = [item for item in causes if item.share >= LEAST_SHARE]
    return tuple(sorted(shares, key=lambda item: (-item.share, item.cause)))
