"""The figures of a data set from its tally, as plain values: histograms, labels, biases, duplicates. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from charter.report.data_page.tally import Judged, RecordTally
from charter.report.data_stats import histogram, length_histogram

PROBABILITY_BINS = 10
Z_95 = 1.96


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """Counts between edges, and what the values are like."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    mean: float
    p50: float
    p95: float
    largest: float


@dataclass(frozen=True, kw_only=True)
class Share:
    """A share with its 95 % Wilson interval."""

    value: float
    low: float
    high: float
    count: int


@dataclass(frozen=True, kw_only=True)
class PrincipleUse:
    """Uses of one principle, and the judge's answers under it."""

    name: str
    rows: int
    mean_chosen_probability: float | None
    orders_agree: Share | None


@dataclass(frozen=True, kw_only=True)
class LabelFigures:
    """Figures of preference labels, and what they favour besides the better answer."""

    count: int
    mean_chosen_probability: float
    hard_share: float
    ties: int
    chosen_longer: Share
    probabilities: Histogram
    position: Share | None
    """Questions that the answer shown first has won; one half is unbiased."""
    orders_agree: Share | None
    bounded: int
    asked_again: int
    questions: int
    how: tuple[tuple[str, int], ...]


@dataclass(frozen=True, kw_only=True)
class DataSummary:
    """All figures of one data set; of a sample where `sampled` is not None."""

    rows: int
    sampled: int | None
    """How many rows were looked at, where not all were: counts are then scaled up, shares are those of the sample."""
    size_bytes: int
    bad: int
    bad_reasons: tuple[str, ...]
    blank: int
    kinds: tuple[tuple[str, int], ...]
    turns: tuple[tuple[int, int], ...]
    prompt_characters: Histogram | None
    answer_characters: Histogram | None
    generated_tokens: Histogram | None
    duplicates: int | None
    """Rows that say the same as an earlier one; not known of a sample."""
    labels: LabelFigures | None
    principles: tuple[PrincipleUse, ...]
    sources: tuple[tuple[str, int], ...]
    reasons: tuple[tuple[str, int], ...]


def summary_of(
    tally: RecordTally,
    *,
    size_bytes: int,
    bad: int = 0,
    bad_reasons: Sequence[str] = (),
    sample_of: int | None = None,
) -> DataSummary:
    """The figures; `sample_of` is the estimated number of rows that the tally is a sample of."""
    return DataSummary(
        rows=tally.rows if sample_of is None else sample_of,
        sampled=None if sample_of is None else tally.rows,
        size_bytes=size_bytes,
        bad=bad,
        bad_reasons=tuple(bad_reasons),
        blank=tally.blank,
        kinds=tuple(tally.kinds.most_common()),
        turns=tuple(sorted(tally.turns.items())),
        prompt_characters=lengths(tally.prompts),
        answer_characters=lengths(tally.answers),
        generated_tokens=lengths(tally.generated_tokens),
        duplicates=len(tally.keys) - len(np.unique(np.asarray(tally.keys))) if sample_of is None else None,
        labels=_labels(tally),
        principles=_principles(tally),
        sources=tuple(tally.sources.most_common()),
        reasons=tuple(tally.reasons.most_common()),
    )


def lengths(values: Sequence[int]) -> Histogram | None:
    """A histogram in bins that double; None without values."""
    if not len(values):
        return None
    edges, counts = length_histogram(values)
    return _histogram(np.asarray(values), edges, counts)


def _histogram(numbers: "np.ndarray[Any, np.dtype[Any]]", edges: Sequence[float], counts: Sequence[int]) -> Histogram:
    middle, high = (float(np.quantile(numbers, share)) for share in (0.5, 0.95))
    return Histogram(
        edges=tuple(edges),
        counts=tuple(counts),
        mean=float(numbers.mean()),
        p50=middle,
        p95=high,
        largest=float(numbers.max()),
    )


def wilson(wins: float, count: int) -> Share | None:
    """A share of `count` independent cases with its 95 % interval; None of no case.

    (p + z^2/2n +- z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n), dimensionless; Wilson 1927, JASA 22:209. Ties counted one
    half make it slightly too wide; cases that depend on each other (two orders of one pair) make it too narrow.

    >>> found = wilson(81, 263)  # Newcombe 1998, Statistics in Medicine 17:857, table I
    >>> round(found.low, 4), round(found.high, 4)
    (0.2553, 0.3662)
    """
    if not count:
        return None
    share, z = wins / count, Z_95
    middle = share + z * z / (2 * count)
    spread = z * float(np.sqrt(share * (1 - share) / count + z * z / (4 * count * count)))
    denominator = 1 + z * z / count
    return Share(value=share, low=(middle - spread) / denominator, high=(middle + spread) / denominator, count=count)


def _labels(tally: RecordTally) -> LabelFigures | None:
    count = len(tally.probabilities)
    longer = wilson(tally.chosen_longer, count)
    if longer is None:
        return None
    numbers, judged = np.asarray(tally.probabilities), tally.judged
    edges, counts = histogram(numbers, np.linspace(0, 1, PROBABILITY_BINS + 1))
    return LabelFigures(
        count=count,
        mean_chosen_probability=float(numbers.mean()),
        hard_share=float((numbers == 1).mean()),
        ties=int((numbers == 0.5).sum()),
        chosen_longer=longer,
        probabilities=_histogram(numbers, edges, counts),
        position=_position(judged),
        orders_agree=wilson(judged.orders_agree, judged.asked_both_ways),
        bounded=judged.bounded,
        asked_again=judged.asked_again,
        questions=judged.questions,
        how=tuple(judged.how.most_common()),
    )


def _position(judged: Judged) -> Share | None:
    return wilson(judged.first_wins, judged.questions)


def _principles(tally: RecordTally) -> tuple[PrincipleUse, ...]:
    uses = [
        PrincipleUse(
            name=name,
            rows=item.rows,
            mean_chosen_probability=item.probability_sum / item.rows if item.probability_sum else None,
            orders_agree=wilson(item.orders_agree, item.asked_both_ways),
        )
        for name, item in tally.principles.items()
    ]
    return tuple(sorted(uses, key=lambda item: (-item.rows, item.name)))
