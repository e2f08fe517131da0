"""Lengths of generated answers: their distribution, the longest of a batch, and how a batch drains.

A batch that starts together ends with its longest answer; an engine that admits waiting requests at once is only held
by the tail at the end of the work. Both follow from the survival function of the length.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from charter.physics.arrays import Array, array

QUANTILES = 24
"""Points at which a distribution is read when a batch drains."""
_LEVELS = tuple((index + 0.5) / QUANTILES for index in range(QUANTILES))
_NORMAL = NormalDist()
USUAL_SPREAD = 0.6
"""Standard deviation over mean of answer lengths where nobody measured them. Judgement: between a geometric length (1)
and answers that mostly run into their limit (0)."""


@dataclass(frozen=True, kw_only=True)
class ResponseLengths:
    """Lognormal lengths with a mean and a spread, cut at a limit; spread 0 is a fixed length.

    The mean is the one measured, after the cut: what lies above the limit is moved to the limit, and the body is
    stretched until the mean is kept. Where it stops being true: lengths with two humps (short refusals, long proofs).

    >>> lengths = ResponseLengths(mean=500.0, limit=1000.0, spread=0.6)
    >>> round(lengths.longest_of(1)), round(lengths.longest_of(8)), round(lengths.longest_of(1000))
    (500, 883, 1000)
    >>> ResponseLengths.fixed(256.0).longest_of(64)
    256.0
    """

    mean: float
    limit: float = math.inf
    spread: float = 0.0

    @classmethod
    def fixed(cls, tokens: float) -> "ResponseLengths":
        """Every answer has the same length (`ignore_eos`)."""
        return cls(mean=tokens, limit=tokens)

    @property
    def quantiles(self) -> Array:
        """Lengths at the middle of `QUANTILES` equal shares, rising; their mean is `mean`."""
        if self.spread <= 0 or self.mean >= self.limit:
            return np.full(QUANTILES, min(self.mean, self.limit))
        body = self._body(_LEVELS)
        return np.minimum(self._stretch(body) * body, self.limit)

    @property
    def _sigma(self) -> float:
        return math.sqrt(math.log1p(self.spread**2))

    def _stretch(self, body: Array) -> float:
        """The factor that keeps the mean once long answers are cut."""
        low, high = 0.0, self.limit / float(body[0])
        for _ in range(60):
            middle = (low + high) / 2
            short = float(np.mean(np.minimum(middle * body, self.limit))) < self.mean
            low, high = (middle, high) if short else (low, middle)
        return (low + high) / 2

    def longest_of(self, count: float) -> float:
        """Expected length of the longest of `count` answers: the mean of the quantiles at `u^(1/count)`, u even."""
        if self.spread <= 0 or self.mean >= self.limit:
            return min(self.mean, self.limit)
        body = self._body(_LEVELS)
        top = self._body([min(level ** (1 / max(count, 1.0)), 1 - 1e-12) for level in _LEVELS])
        return float(np.mean(np.minimum(self._stretch(body) * top, self.limit)))

    def _body(self, levels: Sequence[float]) -> Array:
        """Quantiles before the cut, for a median of 1."""
        return np.exp(self._sigma * array([_NORMAL.inv_cdf(level) for level in levels]))


@dataclass(frozen=True, kw_only=True)
class Drain:
    """A batch that empties: for `steps` decode steps `alive` of it is still running, at `position` generated tokens.

    Arrays have one row per configuration and one column per piece.
    """

    steps: Array
    alive: Array
    position: Array

    @classmethod
    def of(cls, lengths: Sequence[ResponseLengths], counts: Sequence[float]) -> "Drain":
        """The drain of batches of `counts` answers that start together; the last piece ends at their longest.

        Shares that stand for less than one answer are not counted: the smallest share alive is one answer.
        """
        ends = np.stack([_ends(one, count) for one, count in zip(lengths, counts, strict=True)])
        starts = np.concatenate([np.zeros((len(ends), 1)), ends[:, :-1]], axis=1)
        floor = 1 / np.maximum(array(counts), 1.0)
        share = 1 - np.arange(ends.shape[1]) / QUANTILES
        alive = np.maximum(np.minimum(share, 1.0)[None, :], floor[:, None])
        alive[:, -1] = floor
        return cls(steps=ends - starts, alive=alive, position=(starts + ends) / 2)


def _ends(lengths: ResponseLengths, count: float) -> Array:
    longest = lengths.longest_of(count)
    return array(np.maximum.accumulate(np.append(np.minimum(lengths.quantiles, longest), longest)))
