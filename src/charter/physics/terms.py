"""Parts of an estimate: named terms with their formula and source, and the interval around a total."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from charter.physics.arrays import Array, array

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
        sigma = max(math.log(self.p90 / self.p10) / (2 * Z90), 1e-6)
        probability = NormalDist(0.0, sigma).cdf(math.log(limit / self.p50))
        return min(max(probability, 0.001), 0.999)

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
        shape = np.broadcast_shapes(*(column.values.shape for column in self.columns)) if self.columns else ()
        broadcast = ((column, np.broadcast_to(column.values, shape)) for column in self.columns)
        return tuple(replace(column, values=values).at(index) for column, values in broadcast if values[index])
