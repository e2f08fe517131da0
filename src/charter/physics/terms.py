"""Parts of an estimate, each with its formula and source; memory as such parts by phase; intervals and Student's t."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from statistics import NormalDist

import numpy as np

from charter.physics.columns import Array, array

# -------- Parts of an estimate: named terms with their formula and source, and the interval around a total.

Z90 = 1.2815515655446004
"""The 90th percentile of the standard normal distribution."""


@dataclass(frozen=True, kw_only=True)
class Term:
    """One addend of an estimate, with what a reader needs to check it."""

    name: str
    part: str
    """The group it is reported under (`parameters`, `activations`, `compute`, ...)."""
    value: float
    unit: str
    """`bytes`, `seconds` or `flops`."""
    formula: str
    source: str


def bytes_term(name: str, part: str, value: float, formula: str, source: str) -> Term:
    """Return an addend in bytes."""
    return Term(name=name, part=part, value=value, unit="bytes", formula=formula, source=source)


@dataclass(frozen=True, kw_only=True)
class Interval:
    """The 10th, 50th and 90th percentile of a quantity."""

    p10: float
    p50: float
    p90: float

    @classmethod
    def around(cls, p50: float, *, sigma: float) -> Interval:
        """A lognormal interval: `p50 * exp(-+1.2816 sigma)`.

        >>> interval = Interval.around(100.0, sigma=0.2)
        >>> round(interval.p10, 1), round(interval.p90, 1)
        (77.4, 129.2)
        """
        spread = math.exp(Z90 * sigma)
        return cls(p10=p50 / spread, p50=p50, p90=p50 * spread)

    def probability_below(self, limit: float) -> float:
        """P(quantity <= limit), its logarithm being normal with p10 and p90: `Phi(ln(limit / p50) / sigma)`.

        Limit: far outside the interval a value is less unlikely than a normal distribution says, so no probability
        below 0.001 or above 0.999 is claimed.

        >>> need = Interval.around(60.0, sigma=0.1)
        >>> need.probability_below(60.0), round(need.probability_below(need.p90), 3), need.probability_below(600.0)
        (0.5, 0.9, 0.999)
        """
        probability = NormalDist(0.0, max(self._sigma, 1e-6)).cdf(math.log(limit / self.p50))
        return min(max(probability, 0.001), 0.999)

    def quantile(self, share: float) -> float:
        """The value that the quantity stays under with this probability, its logarithm being normal with p10 and p90.

        >>> need = Interval.around(60.0, sigma=0.1)
        >>> need.quantile(0.5), round(need.quantile(0.8), 1), need.quantile(0.9) == need.p90
        (60.0, 65.3, True)
        """
        return self.p50 * math.exp(self._sigma * NormalDist().inv_cdf(share)) if self.p50 else 0.0

    @property
    def _sigma(self) -> float:
        """Standard deviation of the logarithm."""
        return math.log(self.p90 / self.p10) / (2 * Z90)

    def scaled(self, factor: float) -> Interval:
        """The interval of a fixed multiple of the quantity."""
        return Interval(p10=self.p10 * factor, p50=self.p50 * factor, p90=self.p90 * factor)


@dataclass(frozen=True, kw_only=True)
class Breakdown:
    """Terms of one quantity; every total is their sum, so parts always add up."""

    terms: tuple[Term, ...]

    @property
    def total(self) -> float:
        """Sum of all terms."""
        return sum(term.value for term in self.terms)

    def part(self, *parts: str) -> float:
        """Sum of the terms of some parts."""
        return sum(term.value for term in self.terms if term.part in parts)

    def by_part(self) -> dict[str, float]:
        """Sum per part, in the order in which parts appear."""
        sums: dict[str, float] = {}
        for term in self.terms:
            sums[term.part] = sums.get(term.part, 0.0) + term.value
        return sums


@dataclass(frozen=True, kw_only=True)
class TermColumn:
    """One addend of many estimates at once; the formula is written in symbols, since the numbers differ."""

    name: str
    part: str
    values: Array
    unit: str
    formula: str
    source: str

    def at(self, index: int | tuple[int, ...] = ()) -> Term:
        """The addend of one configuration."""
        return self.of(float(np.broadcast_to(self.values, self.values.shape)[index]))

    def of(self, value: float) -> Term:
        """The addend with one of its values."""
        return Term(
            name=self.name, part=self.part, value=value, unit=self.unit, formula=self.formula, source=self.source
        )


@dataclass(frozen=True, kw_only=True)
class ExplainedColumn(TermColumn):
    """A column whose formula can be filled with the numbers of one configuration."""

    numbers: Mapping[str, Array] = field(default_factory=dict)

    def at(self, index: int | tuple[int, ...] = ()) -> Term:
        """The addend of one configuration, its formula with numbers."""
        if index == () and not self.values.shape:
            value = float(self.values)
            filled = {name: float(number) for name, number in self.numbers.items()}
        else:
            shape = self.values.shape
            value = float(self.values[index])
            filled = {name: float(np.broadcast_to(number, shape)[index]) for name, number in self.numbers.items()}
        formula = self.formula.format(**filled)
        return Term(name=self.name, part=self.part, value=value, unit=self.unit, formula=formula, source=self.source)


def column(name: str, part: str, values: Array, formula: str, source: str, **numbers: Array) -> ExplainedColumn:
    """A column in bytes."""
    return ExplainedColumn(
        name=name, part=part, values=array(values), unit="bytes", formula=formula, source=source, numbers=numbers
    )


@dataclass(frozen=True, kw_only=True)
class TermTable:
    """Addends of many estimates; their sum is the estimate of each."""

    columns: tuple[TermColumn, ...]

    @property
    def total(self) -> Array:
        """Sum of all addends, per configuration."""
        return array(sum((column.values for column in self.columns), start=np.float64(0.0)))

    def part(self, *parts: str) -> Array:
        """Sum of the addends of some parts."""
        return array(sum((column.values for column in self.columns if column.part in parts), start=np.float64(0.0)))

    def at(self, index: int | tuple[int, ...] = ()) -> tuple[Term, ...]:
        """The addends of one configuration that are not zero."""
        if not any(column.values.ndim for column in self.columns):
            return tuple(column.at() for column in self.columns if column.values)
        shape = np.broadcast_shapes(*(column.values.shape for column in self.columns))
        broadcast = ((column, np.broadcast_to(column.values, shape)) for column in self.columns)
        return tuple(replace(column, values=values).at(index) for column, values in broadcast if values[index])


@dataclass(frozen=True, kw_only=True)
class PhaseTables:
    """A table of terms for each phase of something."""

    phases: Mapping[str, TermTable]

    @cached_property
    def totals(self) -> Mapping[str, Array]:
        """Return the sums per phase."""
        return {phase: table.total for phase, table in self.phases.items()}


class PhaseTerms(Mapping[str, tuple[Term, ...]]):
    """The phases of tables with one configuration, their terms written out when they are asked for."""

    def __init__(self, tables: PhaseTables) -> None:
        self._tables = tables.phases

    def __getitem__(self, phase: str) -> tuple[Term, ...]:
        return self._tables[phase].at()

    def __iter__(self) -> Iterator[str]:
        return iter(self._tables)

    def __len__(self) -> int:
        return len(self._tables)


# -------- Memory of one configuration: the terms of its fullest phase, the other phases, the interval, and how much of
# it to plan with.

MEMORY_QUANTILE = 0.75
"""The share of jobs like it that need no more than the memory a job is planned with: three in four.

A quantile q costs least where too little costs q / (1 - q) times as much as the same distance too much: here three
times. That ratio is judgement (a job that ran out of memory is lost, memory left over makes a step somewhat slower);
docs/decisions/0043-memory-to-plan-with.md has what other quantiles would give on stacks left out of the fit.
"""
PLANNED_BY_QUANTILE = ("training memory", "adapter memory")
"""Groups of measurements whose width comes from several stacks. That of answering is counted within a percent; that of
reinforcement learning rests on two rows of one stack, which is no distribution to take a quantile of."""


def enough_memory(need: Interval, group: str) -> float:
    """Return what to plan a job of a group of measurements with: `MEMORY_QUANTILE` of its need, else the estimate.

    >>> need = Interval.around(60.0, sigma=0.1)
    >>> round(enough_memory(need, "training memory"), 1), enough_memory(need, "inference memory")
    (64.2, 60.0)
    """
    return need.quantile(MEMORY_QUANTILE) if group in PLANNED_BY_QUANTILE else need.p50


@dataclass(frozen=True, kw_only=True)
class MemoryBreakdown(Breakdown):
    """Bytes on one accelerator; `total_bytes` is the sum of the terms of the fullest phase."""

    stage: str = "only"
    """Which pipeline stage the figures are of: the one that needs most."""
    phase: str = ""
    """When it needs most."""
    phases: Mapping[str, tuple[Term, ...]] = field(default_factory=dict)
    """Terms of every phase of that stage."""
    sigma: float = 0.0
    """Standard deviation of the logarithm of measured over predicted."""

    @property
    def total_bytes(self) -> float:
        """Everything."""
        return self.total

    @property
    def interval(self) -> Interval:
        """10th, 50th and 90th percentile."""
        return Interval.around(self.total, sigma=self.sigma)

    @property
    def p10(self) -> float:
        """Return the bytes that it needs at least, 9 times in 10."""
        return self.interval.p10

    @property
    def p50(self) -> float:
        """The estimate."""
        return self.total

    @property
    def p90(self) -> float:
        """Return the bytes that suffice 9 times in 10."""
        return self.interval.p90

    @property
    def phase_bytes(self) -> dict[str, float]:
        """Total of every phase."""
        return {phase: sum(term.value for term in terms) for phase, terms in self.phases.items()}

    @property
    def largest_term(self) -> Term:
        """The biggest single term of the peak: what overflows when it does not fit."""
        return max(self.terms, key=lambda term: term.value)

    @property
    def parameter_bytes(self) -> float:
        """Weights."""
        return self.part("parameters")

    @property
    def gradient_bytes(self) -> float:
        """Gradients."""
        return self.part("gradients")

    @property
    def optimizer_bytes(self) -> float:
        """Optimizer state."""
        return self.part("optimizer")

    @property
    def logits_bytes(self) -> float:
        """Logits and the loss."""
        return self.part("logits")

    def fits(self, capacity_bytes: float) -> bool:
        """Return True if it is within a capacity."""
        return self.total <= capacity_bytes

    def surely_fits(self, capacity_bytes: float) -> bool:
        """Return True if even the 90th percentile is within a capacity: a verdict that errs on the safe side."""
        return self.p90 <= capacity_bytes


# -------- Student's t: how far the mean of a few values may be off.

MOST_FREEDOM = 1000.0
"""Above it the distribution is that of so many degrees, 0.1 % from the normal one."""
_ANGLES = np.linspace(0.0, np.pi / 2, 100_001)


@lru_cache(maxsize=256)
def _within(freedom: float) -> Array:
    """Return P(|T| <= sqrt(freedom) tan(a)) at every angle a.

    With `T = sqrt(freedom) tan(a)` the density is proportional to `cos(a)^(freedom - 1)` on (-pi/2, pi/2).
    """
    density = np.cos(_ANGLES) ** (freedom - 1)
    share = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    within: Array = share / share[-1]
    return within


def _bounded(freedom: float) -> float:
    return min(max(float(freedom), 1.0), MOST_FREEDOM)


def t_within(t: float, freedom: float) -> float:
    """Return P(-t <= T <= t) for any degrees of freedom from 1 on; error below 1e-6.

    >>> round(t_within(12.706, 1), 4), round(t_within(2.228, 10), 4), round(t_within(2.365, 7), 4)
    (0.95, 0.95, 0.95)
    """
    bounded = _bounded(freedom)
    return float(np.interp(np.arctan(t / bounded**0.5), _ANGLES, _within(bounded)))


def t_quantile(level: float, freedom: float) -> float:
    """Return the t between whose two signs a value lies with the probability `level`, in standard errors.

    Error below 1e-4 for levels up to 0.99.

    >>> round(t_quantile(0.95, 2), 3), round(t_quantile(0.95, 30), 3), round(t_quantile(0.8, 1), 3)
    (4.303, 2.042, 3.078)
    """
    bounded = _bounded(freedom)
    return float(bounded**0.5 * np.tan(np.interp(level, _within(bounded), _ANGLES)))
