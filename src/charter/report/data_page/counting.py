"""Going through a data set: once whole, as a stage would read it, or a sample of a large file at once."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from charter.artifacts.durable import objects_in
from charter.data.dataset import selected_rows
from charter.data.formats import find_files
from charter.data.rows import BadRowError, Row, SkippedRows, parse_object, part_of
from charter.evaluate.statistics import wilson
from charter.report.data_stats import PROBABILITY_BINS, RecordTally, histogram, length_histogram
from charter.spec.checks import parse_part
from charter.spec.project import DataSpec

# -------- The figures of a data set from its tally, as plain values: histograms, labels, biases, duplicates. Pure.


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


def _share(wins: float, count: int) -> Share | None:
    """A share of `count` cases, of which a tie counts one half; None of no case.

    Cases that depend on each other (two orders of one pair) make its interval too narrow.
    """
    if not count:
        return None
    interval = wilson(wins, count)
    return Share(value=wins / count, low=interval.low, high=interval.high, count=count)


def _labels(tally: RecordTally) -> LabelFigures | None:
    count = len(tally.probabilities)
    longer = _share(tally.chosen_is_longer + tally.same_length / 2, count)
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
        position=_share(judged.first_wins, judged.questions),
        orders_agree=_share(judged.orders_agree, judged.asked_both_ways),
        bounded=judged.bounded,
        asked_again=judged.asked_again,
        questions=judged.questions,
        how=tuple(judged.how.most_common()),
    )


def _principles(tally: RecordTally) -> tuple[PrincipleUse, ...]:
    uses = [
        PrincipleUse(
            name=name,
            rows=item.rows,
            mean_chosen_probability=item.probability_sum / item.rows if item.probability_sum else None,
            orders_agree=_share(item.orders_agree, item.asked_both_ways),
        )
        for name, item in tally.principles.items()
    ]
    return tuple(sorted(uses, key=lambda item: (-item.rows, item.name)))


# -------- Going through a data set: once whole, as a stage would read it, or a sample of a large file at once.


SAMPLE_ROWS = 2000
LARGE_BYTES = 8 * 1024 * 1024
"""A smaller file is counted whole in about a second."""
TELL_EVERY = 2000
LONGEST_LINE_BYTES = 4 * 1024 * 1024


class _Bad(SkippedRows):
    """Takes every bad row, whatever the data set's policy."""

    def take(self, error: BadRowError, policy: Literal["fail", "skip"]) -> None:
        """Skip the row."""
        super().take(error, "skip")


def count_rows(
    path: Path, spec: DataSpec | None = None, *, tell: Callable[[int], None] = lambda _: None
) -> DataSummary:
    """Every row that a data set selects; `tell` hears how many so far. DataError for a file that is none."""
    tally, bad = RecordTally(), _Bad()
    for number, row in enumerate(selected_rows(path, spec, bad), start=1):
        try:
            tally.add(row)
        except BadRowError as error:
            bad.take(error, "skip")
        if number % TELL_EVERY == 0:
            tell(number)
    return summary_of(tally, size_bytes=size_of(path, spec), bad=bad.count, bad_reasons=bad.reasons)


def count_set_aside(path: Path) -> DataSummary:
    """Count the reasons for which rows were set aside, of a stage's `set_aside.jsonl`."""
    tally = RecordTally()
    for row in objects_in(path):
        tally.add_set_aside(row)
    return summary_of(tally, size_bytes=path.stat().st_size)


def sample_rows(path: Path, spec: DataSpec | None = None) -> DataSummary | None:
    """Rows at places spread evenly over one large JSONL file; None where the whole is soon counted, or cannot be.

    Longer rows are likelier to be before a place, so that the row after it is taken: with lengths that do not hang on
    those of the neighbour this is unbiased. The number of rows is the size over the mean length of a row.
    """
    data_files = find_files(path, "auto" if spec is None else spec.format)
    file = data_files.files[0]
    if data_files.format != "jsonl" or len(data_files.files) > 1 or file.stat().st_size < LARGE_BYTES:
        return None
    if spec is not None and spec.limit is not None:
        return None
    part, parts = (1, 1) if spec is None or spec.part is None else parse_part(spec.part)
    tally, bad, read_bytes, seen = RecordTally(), _Bad(), 0, 0
    for row, length in _rows_at(file, bad):
        seen += 1
        read_bytes += length
        try:
            if parts == 1 or part_of(row, parts) == part:
                tally.add(row)
        except BadRowError as error:
            bad.take(error, "skip")
    if not tally.rows:
        return None
    rows = file.stat().st_size / (read_bytes / seen) * tally.rows / seen
    return summary_of(tally, size_bytes=file.stat().st_size, sample_of=round(rows), bad_reasons=bad.reasons)


def _rows_at(file: Path, bad: SkippedRows) -> Iterator[tuple[Row, int]]:
    size = file.stat().st_size
    with file.open("rb") as lines:
        for index in range(SAMPLE_ROWS):
            lines.seek(index * size // SAMPLE_ROWS)
            if index:
                lines.readline(LONGEST_LINE_BYTES)
            at, line = lines.tell(), lines.readline(LONGEST_LINE_BYTES)
            where = f"{file}: byte {at}"
            try:
                value = parse_object(line.decode("utf-8"), where) if line.strip() else None
            except UnicodeDecodeError:
                continue
            except BadRowError as error:
                bad.take(error, "skip")
                continue
            if value is not None:
                yield Row(where=where, number=at + 1, value=value), len(line)


def size_of(path: Path, spec: DataSpec | None = None) -> int:
    """Bytes of all files of a data set."""
    return sum(file.stat().st_size for file in find_files(path, "auto" if spec is None else spec.format).files)
