"""A Bradley-Terry model on word counts: an independent proxy of human preference that shares nothing with a reward.

P(chosen beats rejected) = sigmoid(w . (f(chosen) - f(rejected))), where f holds log(1 + count) of each known word.
Convex (L2), fitted on all pairs at once, so that the fit depends on the pairs alone: no seed, no order.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from charter.errors import DataError

Floats = NDArray[np.float64]
WORD = re.compile(r"[a-z0-9']+")
MIN_ANSWERS = 2
"""A word must occur in so many answers to be a feature."""
MAX_WORDS = 5000
"""The most frequent words are kept, so that the matrix stays small: 10,000 pairs take 0.4 GB."""
L2 = 0.01
"""Weight of |w|^2/2 beside the mean log-loss; see docs/concepts/evaluation.md for how it was chosen."""
MAX_STEPS = 3000
GRADIENT_TOLERANCE = 1e-7


@dataclass(frozen=True, kw_only=True)
class BagOfWords:
    """Known words with their weights."""

    words: tuple[str, ...]
    weights: Floats

    def scores(self, texts: Sequence[str]) -> Floats:
        """One number per text; the larger one of two is preferred."""
        found: Floats = features(texts, self.words) @ self.weights
        return found

    def wins(self, texts: Sequence[str], others: Sequence[str]) -> list[float]:
        """1 where a text is preferred to the other, 0 where not, 1/2 where the model cannot tell."""
        mine, theirs = self.scores(texts), self.scores(others)
        return [win_of(a, b) for a, b in zip(mine.tolist(), theirs.tolist(), strict=True)]


def win_of(mine: float, theirs: float) -> float:
    """1 for a win, 0 for a loss, 1/2 for a tie.

    >>> win_of(2.0, 1.0), win_of(1.0, 1.0)
    (1.0, 0.5)
    """
    return 0.5 if mine == theirs else float(mine > theirs)


def words_of(text: str) -> list[str]:
    """Lower-case words.

    >>> words_of("Don't - I can't.")
    ["don't", 'i', "can't"]
    """
    return WORD.findall(text.lower())


def vocabulary(texts: Iterable[str]) -> tuple[str, ...]:
    """The words worth a weight: in at least two texts, the most frequent first, ties in alphabetical order."""
    counts = Counter(word for text in texts for word in set(words_of(text)))
    frequent = sorted((-count, word) for word, count in counts.items() if count >= MIN_ANSWERS)
    return tuple(word for _, word in frequent[:MAX_WORDS])


def features(texts: Sequence[str], words: Sequence[str]) -> Floats:
    """log(1 + count) of each word in each text."""
    column = {word: index for index, word in enumerate(words)}
    matrix = np.zeros((len(texts), len(words)))
    for row, text in enumerate(texts):
        for word, count in Counter(words_of(text)).items():
            if word in column:
                matrix[row, column[word]] = math.log1p(count)
    return matrix


def train(pairs: Sequence[tuple[str, str]], *, l2: float = L2) -> BagOfWords:
    """Fit the model to (chosen, rejected) answers."""
    words = vocabulary(text for pair in pairs for text in pair)
    if not words:
        raise DataError(f"bag of words: {len(pairs)} pairs have no word in common; give more pairs")
    difference = features([a for a, _ in pairs], words) - features([b for _, b in pairs], words)
    return BagOfWords(words=words, weights=_minimise(difference, l2))


def _minimise(difference: Floats, l2: float) -> Floats:
    """argmin_w mean(log(1 + exp(-D w))) + l2 |w|^2 / 2, by Nesterov's method for strongly convex functions.

    The Hessian lies between l2 and l2 + |D|^2/(4n), which fixes step and momentum.
    """
    rows = len(difference)
    curvature = l2 + _largest_eigenvalue(difference) / (4 * rows)
    root = math.sqrt(curvature / l2)
    momentum = (root - 1) / (root + 1)
    weights = ahead = np.zeros(difference.shape[1])
    for _ in range(MAX_STEPS):
        slope = 1 / (1 + np.exp(np.clip(difference @ ahead, -500, 500)))
        gradient = l2 * ahead - difference.T @ slope / rows
        if np.abs(gradient).max() < GRADIENT_TOLERANCE:
            return ahead
        new = ahead - gradient / curvature
        weights, ahead = new, new + momentum * (new - weights)
    raise DataError(f"bag of words did not converge in {MAX_STEPS} steps on {rows} pairs")


def _largest_eigenvalue(difference: Floats) -> float:
    """A bound on the largest eigenvalue of D^T D that holds whatever D is: the largest absolute row sum."""
    rows, columns = difference.shape
    gram = difference @ difference.T if rows <= columns else difference.T @ difference
    return float(max(np.abs(gram).sum(1).max(), 1e-12))
