"""Statistics of evaluations: intervals, agreement, logistic regression, calibration, drift, bag of words."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from charter.errors import DataError

Floats = NDArray[np.float64]

Z_95 = 1.959963984540054
"""97.5 % point of the standard normal distribution."""
RESAMPLES = 4000
_TO_UNIT = 2.0**-53
_AT_ONCE = 2**22
"""Drawn rows that are held at once: 32 MiB of counts."""


@dataclass(frozen=True, kw_only=True)
class ConfidenceInterval:
    """The ends of a 95 % interval."""

    low: float
    high: float


def wilson(successes: float, n: int) -> ConfidenceInterval:
    """Score interval of a proportion.

    centre = (k + z^2/2) / (n + z^2), half width = z/(n + z^2) sqrt(k(n-k)/n + z^2/4), z = 1.96. A tie counts as half
    a success, which only makes the interval a little wide. Source: Wilson 1927; Newcombe 1998, method 3. Rows must be
    independent.

    >>> found = wilson(81, 263); round(found.low, 4), round(found.high, 4)
    (0.2553, 0.3662)
    """
    require_rows(n)
    z2 = Z_95**2
    centre = (successes + z2 / 2) / (n + z2)
    half = Z_95 / (n + z2) * math.sqrt(max(successes * (n - successes) / n, 0.0) + z2 / 4)
    low, high, share = centre - half, centre + half, successes / n
    return ConfidenceInterval(low=max(min(low, share), 0.0), high=min(max(high, share), 1.0))  # rounding at 0 and n


def of_mean(values: Sequence[float]) -> ConfidenceInterval:
    """Normal interval of a mean: mean +- 1.96 s/sqrt(n), with s the sample deviation.

    Too narrow below about 30 rows, and for heavy tails.

    >>> found = of_mean([1.0, 2.0, 3.0]); round(found.low, 3), round(found.high, 3)
    (0.868, 3.132)
    """
    return of_ratio(values, [1.0] * len(values))


def of_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> ConfidenceInterval:
    """Interval of sum(y)/sum(x) over independent rows, by the linearised variance of a ratio.

    var = n/(n-1) sum((y_i - R x_i)^2) / sum(x)^2. Source: Cochran 1977, section 2.11. Nats per token over texts is
    such a ratio: tokens of one text are not independent, texts are.
    """
    n = len(numerators)
    require_rows(n, at_least=2)
    y, x = np.asarray(numerators, dtype=np.float64), np.asarray(denominators, dtype=np.float64)
    ratio = float(y.sum() / x.sum())
    half = Z_95 * math.sqrt(n / (n - 1) * float(((y - ratio * x) ** 2).sum())) / float(x.sum())
    return ConfidenceInterval(low=ratio - half, high=ratio + half)


def paired_bootstrap(differences: Sequence[float], *, seed: int) -> ConfidenceInterval:
    """Percentile interval of the mean of paired differences: 4,000 resamples of the rows.

    Resample r, position i takes row floor(n u) with u from Philox counted by `seed`, so the interval is a function of
    its arguments. Source: Efron 1979. With few rows, or rows that are all equal, it is too narrow.
    """
    n = len(differences)
    require_rows(n)
    values = np.asarray(differences, dtype=np.float64)
    means = np.sort(np.concatenate([values[rows].mean(1) for rows in _resamples(n, seed)]))
    return ConfidenceInterval(low=float(means[RESAMPLES // 40]), high=float(means[RESAMPLES - 1 - RESAMPLES // 40]))


def resampled_means(rows: Floats, *, seed: int) -> Floats:
    """The column means [resamples, columns] of 4,000 resamples of some rows [n, columns].

    What is computed of a table's column means (a slope, a correlation, an agreement beyond chance) gets its interval
    from these. The draws are those of `paired_bootstrap`.
    """
    n = len(rows)
    require_rows(n)
    blocks: list[Floats] = []
    for drawn in _resamples(n, seed):
        count = len(drawn)
        places = (drawn + n * np.arange(count)[:, None]).ravel()
        counts = np.bincount(places, minlength=count * n).reshape(count, n)
        blocks.append(counts @ rows / n)
    return np.concatenate(blocks)


def _resamples(n: int, seed: int) -> Iterator[NDArray[np.int64]]:
    """The rows [resamples, n] that each of the 4,000 resamples takes, in blocks: all need 32 kB a row."""
    source = np.random.Philox(key=seed)
    part = max(1, _AT_ONCE // n)
    for start in range(0, RESAMPLES, part):
        count = min(part, RESAMPLES - start)
        yield ((source.random_raw(count * n) >> np.uint64(11)) * _TO_UNIT * n).astype(np.int64).reshape(count, n)


def bootstrapped(
    statistic: Callable[[Floats], Floats], rows: Floats, *, seed: int
) -> tuple[float, ConfidenceInterval] | None:
    """A statistic of the column means of `rows` with its percentile interval; None where it has no value.

    `statistic` takes means [..., columns] and gives [...]. Resamples in which it has none (NaN: a kappa of judges who
    gave one answer only) are left out. The interval is widened to the value where all resamples lie on one side of it,
    as they do at a statistic's bound. Source: Efron 1979.
    """
    value = float(statistic(rows.mean(0)))
    if math.isnan(value):
        return None
    values = statistic(resampled_means(rows, seed=seed))
    values = np.sort(values[~np.isnan(values)])
    if not len(values):
        return None
    cut = len(values) // 40
    return value, ConfidenceInterval(
        low=min(float(values[cut]), value), high=max(float(values[len(values) - 1 - cut]), value)
    )


@dataclass(frozen=True, kw_only=True)
class SignTest:
    """On how many rows one measure is better or worse than another, and how probable so uneven a split is by chance."""

    better: int
    worse: int
    p_value: float


def sign_test(differences: Sequence[float]) -> SignTest:
    """The exact two-sided sign test of paired differences; rows without a difference do not count.

    p = min(1, 2 P(K <= min(better, worse))) with K binomial(better + worse, 1/2). On outcomes of 0 and 1 it is the
    exact test of McNemar 1947. Rows must be independent.

    >>> sign_test([1.0, 1.0, 1.0, 1.0, 1.0, -1.0, 0.0])
    SignTest(better=5, worse=1, p_value=0.21875)
    """
    better, worse = sum(value > 0 for value in differences), sum(value < 0 for value in differences)
    n = better + worse
    tail = sum(math.comb(n, count) for count in range(min(better, worse) + 1))
    return SignTest(better=better, worse=worse, p_value=min(1.0, 2 * tail / 2**n))


def standard_error(successes: float, n: int) -> float:
    """Standard error of a proportion, sqrt(p(1-p)/n).

    >>> round(standard_error(119, 208), 3)
    0.034
    """
    require_rows(n)
    share = successes / n
    return math.sqrt(share * (1 - share) / n)


def require_rows(n: int, *, at_least: int = 1) -> None:
    """Refuse an interval of too few rows."""
    if n < at_least:
        raise DataError(f"a 95 % interval needs {at_least} or more rows; there are {n}")


FIRST, SECOND, NEITHER = 0, 1, 2
CHOICES = 3


def choice_of(probability_first: float) -> int:
    """Return the answer that a probability prefers.

    >>> choice_of(0.7), choice_of(0.3), choice_of(0.5)
    (0, 1, 2)
    """
    return NEITHER if probability_first == 0.5 else FIRST if probability_first > 0.5 else SECOND


def cells(mine: Sequence[int], theirs: Sequence[int]) -> Floats:
    """One row per pair, with a 1 in the cell of the table of both choices."""
    table = np.zeros((len(mine), CHOICES * CHOICES))
    table[np.arange(len(mine)), np.asarray(mine) * CHOICES + np.asarray(theirs)] = 1
    return table


def kappa(shares: Floats) -> Floats:
    """Cohen's kappa of tables of shares [..., 9]; NaN where both always chose the same, so that chance explains all.

    >>> round(float(kappa(np.array([20, 5, 0, 10, 15, 0, 0, 0, 0]) / 50)), 3)
    0.4
    """
    table = shares.reshape(*shares.shape[:-1], CHOICES, CHOICES)
    observed = np.trace(table, axis1=-2, axis2=-1)
    expected = (table.sum(-1) * table.sum(-2)).sum(-1)
    certain = np.isclose(expected, 1)
    agreement: Floats = np.where(certain, np.nan, (observed - expected) / np.where(certain, 1, 1 - expected))
    return agreement


RIDGE = 1e-4
"""Weight of |w|^2/2 beside the mean log-loss: keeps weights finite where one side wins every row. It moves a share of
one half by nothing, one of 95 % by 0.03 points."""
MAX_STEPS, TOLERANCE = 100, 1e-10


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Fitted weights with their covariance."""

    values: Floats
    covariance: Floats
    """The sandwich H^-1 G H^-1, which holds for soft targets too. Source: Huber 1967; White 1982."""

    def interval(self, column: int) -> ConfidenceInterval:
        """95 % interval of one weight."""
        half = Z_95 * float(np.sqrt(self.covariance[column, column]))
        value = float(self.values[column])
        return ConfidenceInterval(low=value - half, high=value + half)


def fit(columns: Floats, targets: Floats) -> Weights:
    """argmin_w mean(log(1 + e^{x w}) - y x w) + RIDGE |w|^2/2 over rows x of `columns` [n, k], targets y in [0, 1]."""
    n, k = columns.shape
    weights = np.zeros(k)
    for _ in range(MAX_STEPS):
        probability = sigmoid(columns @ weights)
        gradient = columns.T @ (probability - targets) / n + RIDGE * weights
        curvature = _curvature(columns, probability)
        step = np.linalg.solve(curvature, gradient)
        weights = weights - step * min(1.0, 5.0 / max(float(np.abs(step).max()), 1e-30))
        if float(np.abs(step).max()) < TOLERANCE:
            return Weights(values=weights, covariance=_sandwich(columns, targets, weights))
    raise DataError(f"logistic regression did not converge in {MAX_STEPS} steps on {n} rows")


def sigmoid(values: Floats) -> Floats:
    """1 / (1 + e^-x), without overflow.

    >>> sigmoid(np.array([0.0, -1e9])).tolist()
    [0.5, 0.0]
    """
    positive = 1 / (1 + np.exp(-np.abs(values)))
    probabilities: Floats = np.where(values >= 0, positive, 1 - positive)
    return probabilities


def _curvature(columns: Floats, probability: Floats) -> Floats:
    n, k = columns.shape
    weighted = columns * (probability * (1 - probability))[:, None]
    hessian: Floats = columns.T @ weighted / n + RIDGE * np.eye(k)
    return hessian


def _sandwich(columns: Floats, targets: Floats, weights: Floats) -> Floats:
    n = len(columns)
    probability = sigmoid(columns @ weights)
    inverse = np.linalg.inv(_curvature(columns, probability))
    scores = columns * (probability - targets)[:, None]
    covariance: Floats = inverse @ (scores.T @ scores / n) @ inverse / n
    return covariance


BINS = 10
"""Bins of equal width, as in Guo et al. 2017 (arXiv:1706.04599), section 2."""


@dataclass(frozen=True, kw_only=True)
class Bin:
    """The rows whose confidence lies in one interval."""

    low: float
    high: float
    confidence: float
    """Mean over the rows."""
    right: tuple[float, ...]
    """1 where the more probable side was true, 0 where not, 1/2 where neither was more probable."""


def bins(confidences: Sequence[float], right: Sequence[float]) -> tuple[Bin, ...]:
    """The bins from 1/2 to 1 that hold any row."""
    member = _membership(confidences, 0.5)
    width = 0.5 / BINS
    return tuple(
        Bin(
            low=0.5 + number * width,
            high=0.5 + (number + 1) * width,
            confidence=sum(confidences[row] for row in rows) / len(rows),
            right=tuple(right[row] for row in rows),
        )
        for number in range(BINS)
        if (rows := [row for row, bin_number in enumerate(member) if bin_number == number])
    )


def gap_terms(confidences: Sequence[float], right: Sequence[float], *, lowest: float = 0.5) -> list[float]:
    """One term per row, whose mean is the expected calibration error.

    ECE = sum over bins of |sum of (confidence - right)| / n (Naeini et al. 2015). With the sign of each bin's sum held
    fixed it is a mean over rows, which gives it an interval.
    """
    member = _membership(confidences, lowest)
    sums = [0.0] * BINS
    for bin_number, confidence, outcome in zip(member, confidences, right, strict=True):
        sums[bin_number] += confidence - outcome
    return [
        math.copysign(1.0, sums[bin_number]) * (confidence - outcome)
        for bin_number, confidence, outcome in zip(member, confidences, right, strict=True)
    ]


def chance_gap(confidences: Sequence[float], *, lowest: float = 0.5) -> float:
    """The calibration error that perfect calibration would show on so few rows.

    The sum of a bin's (confidence - right) is then about normal with variance sum c(1-c), so that its absolute value
    is sqrt(2/pi) deviations in the mean.
    """
    variances = [0.0] * BINS
    for bin_number, confidence in zip(_membership(confidences, lowest), confidences, strict=True):
        variances[bin_number] += confidence * (1 - confidence)
    return sum(math.sqrt(2 / math.pi * variance) for variance in variances) / len(confidences)


def sides(probabilities: Sequence[float], targets: Sequence[float]) -> tuple[list[float], list[float]]:
    """Confidence in the more probable side, and how far that side was right.

    >>> sides([0.9, 0.2, 0.5], [1.0, 1.0, 1.0])
    ([0.9, 0.8, 0.5], [1.0, 0.0, 0.5])
    """
    right = [
        0.5 if probability == 0.5 else target if probability > 0.5 else 1 - target
        for probability, target in zip(probabilities, targets, strict=True)
    ]
    return [max(probability, 1 - probability) for probability in probabilities], right


def log_losses(margins: Sequence[float], targets: Sequence[float]) -> list[float]:
    """-y log p - (1-y) log(1-p) with p = sigmoid(margin), in nats."""
    m, y = np.asarray(margins, dtype=np.float64), np.asarray(targets, dtype=np.float64)
    losses: list[float] = (np.logaddexp(0, -m) * y + np.logaddexp(0, m) * (1 - y)).tolist()
    return losses


def slope(margins: Sequence[float], targets: Sequence[float]) -> tuple[float, ConfidenceInterval]:
    """The factor on the margins that fits the targets best: 1 is calibrated, less is too sure of itself.

    It is one over the temperature of Guo et al. 2017, section 4.2; unlike that it may be 0 or less, where a model
    knows nothing.
    """
    columns: Floats = np.asarray(margins, dtype=np.float64)[:, None]
    scale = float(np.sqrt((columns**2).mean())) or 1.0
    fitted = fit(columns / scale, np.asarray(targets, dtype=np.float64))
    ends = fitted.interval(0)
    return float(fitted.values[0]) / scale, ConfidenceInterval(low=ends.low / scale, high=ends.high / scale)


def _membership(confidences: Sequence[float], lowest: float) -> list[int]:
    return [min(max(int((value - lowest) / (1 - lowest) * BINS), 0), BINS - 1) for value in confidences]


BAND_95 = math.sqrt(-math.log(0.05 / 2) / 2)
"""1.358: the 95 % point of Kolmogorov's distribution, by its first term (Smirnov 1948)."""


def ks_distance(mine: Sequence[float], theirs: Sequence[float]) -> tuple[float, ConfidenceInterval]:
    """The largest difference of the two empirical distribution functions, with its 95 % band.

    The band is +- 1.358 sqrt((n + m)/(n m)): it lies above 0 exactly where the two-sided test rejects at 5 %. Rows of
    one sample must be independent; that both samples judge the same pairs only makes the test more cautious.

    >>> ks_distance([1.0, 2.0, 3.0, 4.0], [3.0, 4.0, 5.0, 6.0])[0]
    0.5
    """
    n, m = len(mine), len(theirs)
    require_rows(min(n, m))
    a, b = np.sort(np.asarray(mine, dtype=np.float64)), np.sort(np.asarray(theirs, dtype=np.float64))
    places = np.concatenate([a, b])
    shares = np.searchsorted(a, places, side="right") / n - np.searchsorted(b, places, side="right") / m
    distance = float(np.abs(shares).max())
    half = BAND_95 * math.sqrt((n + m) / (n * m))
    return distance, ConfidenceInterval(low=max(distance - half, 0.0), high=min(distance + half, 1.0))


@dataclass(frozen=True, kw_only=True)
class LengthControl:
    """The win rate at equal length, and the weight of length; each with its interval."""

    win_rate: float
    interval: ConfidenceInterval
    weight: float
    """Log-odds by which a much longer answer is preferred; negative where the shorter one is."""
    weight_interval: ConfidenceInterval


def length_controlled(
    preferences: Sequence[float], lengths: Sequence[int], other_lengths: Sequence[int]
) -> LengthControl:
    """Fit preferences in [0, 1] for answers of `lengths` over answers of `other_lengths`.

    >>> found = length_controlled([0.9, 0.1] * 50, [30, 10] * 50, [10, 30] * 50)
    >>> round(found.win_rate, 3), found.weight > 1
    (0.5, True)
    """
    difference = np.asarray(lengths, dtype=np.float64) - np.asarray(other_lengths, dtype=np.float64)
    deviation = float(difference.std())
    scaled = np.tanh(difference / deviation) if deviation else np.zeros_like(difference)
    columns = np.stack([np.ones_like(scaled), scaled], 1)
    fitted = fit(columns, np.asarray(preferences, dtype=np.float64))
    ends = fitted.interval(0)
    middle, low, high = sigmoid(np.array([fitted.values[0], ends.low, ends.high])).tolist()
    return LengthControl(
        win_rate=middle,
        interval=ConfidenceInterval(low=low, high=high),
        weight=float(fitted.values[1]),
        weight_interval=fitted.interval(1),
    )


WORD = re.compile(r"(?:[^\W_]|')+")
"""Letters and digits of any script."""
MIN_ANSWERS = 2
"""A word must occur in so many answers to be a feature."""
MAX_WORDS = 5000
"""The most frequent words are kept, so that the matrix stays small: 10,000 pairs take 0.4 GB."""
L2 = 0.01
"""Weight of |w|^2/2 beside the mean log-loss; see docs/concepts/evaluation.md for how it was chosen."""
MAX_BAG_STEPS = 3000
GRADIENT_TOLERANCE = 1e-7


@dataclass(frozen=True, kw_only=True)
class BagOfWords:
    """Known words with their weights."""

    words: tuple[str, ...]
    weights: Floats

    def scores(self, texts: Sequence[str]) -> Floats:
        """One number per text; the larger one of two is preferred."""
        margins: Floats = features(texts, self.words) @ self.weights
        return margins

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


def train(pairs: Sequence[tuple[str, str]]) -> BagOfWords:
    """Fit the model to (chosen, rejected) answers."""
    words = vocabulary(text for pair in pairs for text in pair)
    if not words:
        raise DataError(f"bag of words: {len(pairs)} pairs have no word in common; give more pairs")
    difference = features([a for a, _ in pairs], words) - features([b for _, b in pairs], words)
    return BagOfWords(words=words, weights=_minimise(difference))


def _minimise(difference: Floats) -> Floats:
    """argmin_w mean(log(1 + exp(-D w))) + L2 |w|^2 / 2, by Nesterov's method for strongly convex functions.

    The Hessian lies between L2 and L2 + |D|^2/(4n), which fixes step and momentum.
    """
    rows = len(difference)
    curvature = L2 + _largest_eigenvalue(difference) / (4 * rows)
    root = math.sqrt(curvature / L2)
    momentum = (root - 1) / (root + 1)
    weights = ahead = np.zeros(difference.shape[1])
    for _ in range(MAX_BAG_STEPS):
        slope = 1 / (1 + np.exp(np.clip(difference @ ahead, -500, 500)))
        gradient = L2 * ahead - difference.T @ slope / rows
        if np.abs(gradient).max() < GRADIENT_TOLERANCE:
            return ahead
        new = ahead - gradient / curvature
        weights, ahead = new, new + momentum * (new - weights)
    raise DataError(f"bag of words did not converge in {MAX_BAG_STEPS} steps on {rows} pairs")


def _largest_eigenvalue(difference: Floats) -> float:
    """A bound on the largest eigenvalue of D^T D that holds whatever D is: the largest absolute row sum."""
    rows, columns = difference.shape
    gram = difference @ difference.T if rows <= columns else difference.T @ difference
    return float(max(np.abs(gram).sum(1).max(), 1e-12))
