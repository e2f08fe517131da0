"""What became of a comparison: a verdict, or the reason why there is none."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

BY_LOG_PROBABILITIES, BY_VOTES = "log_probabilities", "votes"
LARGEST_LOG_ODDS = 60.0
"""Beyond this a probability differs from 0 or 1 by less than the last bit of a double."""


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """The valid answer to one question: one principle, one order."""

    principle: str
    log_odds: float
    """In favour of the first answer of the comparison, whichever was shown first."""
    is_swapped: bool = False
    """Whether the second answer was shown as (A)."""
    how: str = BY_LOG_PROBABILITIES
    is_bounded: bool = False
    """Whether a choice was not among the alternatives that a server gave, so that its bound stands in."""
    attempts: int = 1
    """Times that it was asked until the answer was valid."""
    model: str = ""
    """What a server says it is; empty for a model of this process."""
    tokens: int = 0
    """Generated for it, attempts that came to nothing included."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the judge said of one comparison."""

    probability_first: float
    """Normalised probability that the first answer is better: the soft label."""
    judgements: tuple[Judgement, ...]
    """One for each question: by principle, then by order."""

    @property
    def log_odds(self) -> tuple[float, ...]:
        """One for each question asked, always in favour of the first answer."""
        return tuple(item.log_odds for item in self.judgements)

    @property
    def orders_agree(self) -> bool:
        """Whether the questions in either order, taken together, gave the same winner."""
        by_order = [
            [probability_of(item.log_odds) for item in self.judgements if item.is_swapped is swapped]
            for swapped in (False, True)
        ]
        return len({sum(found) > len(found) / 2 for found in by_order if found}) == 1

    @property
    def tokens(self) -> int:
        """Generated for all questions."""
        return sum(item.tokens for item in self.judgements)


@dataclass(frozen=True, kw_only=True)
class Invalid:
    """No verdict: a question has no answer that can be read."""

    reason: str
    text: str = ""
    """What it said instead, at most `LONGEST_TEXT` characters."""
    tokens: int = 0


LONGEST_TEXT = 500
"""Characters of an invalid answer that are kept: enough to see what went wrong."""


def probability_of(log_odds: float) -> float:
    """The probability with these log-odds.

    >>> probability_of(0.0), probability_of(-1e9) > 0
    (0.5, True)
    """
    return 1 / (1 + math.exp(-min(max(log_odds, -LARGEST_LOG_ODDS), LARGEST_LOG_ODDS)))


def clamped(probability: float, clamp: float | None) -> float:
    """A probability kept within `clamp` and its complement (Bai et al. 2022, section 4.1).

    >>> clamped(0.99, 0.4), clamped(0.45, 0.4), clamped(0.99, None)
    (0.6, 0.45, 0.99)
    """
    return probability if clamp is None else min(max(probability, clamp), 1 - clamp)


def verdict_of(judgements: Sequence[Judgement], *, clamp: float | None = None) -> Verdict:
    """The mean probability over principles and orders (Lee et al. 2023, section 2.1), then clamped.

    Not the other way round: where the effect of the position is larger than the clamp, both orders would be clamped
    to opposite ends, and every pair would be a tie.
    """
    probabilities = [probability_of(item.log_odds) for item in judgements]
    mean = sum(probabilities) / len(probabilities)
    return Verdict(probability_first=clamped(mean, clamp), judgements=tuple(judgements))
