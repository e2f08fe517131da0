"""Going through a data set: once whole, as a stage would read it, or a sample of a large file at once."""

from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from charter.artifacts.durable import objects_in
from charter.data.dataset import selected_rows
from charter.data.formats import find_files
from charter.data.rows import BadRowError, Row, SkippedRows, chosen_probability_of, parse_object, part_of, row_kind
from charter.feedback.prepare_rows import Candidate, candidate_of, exact_key
from charter.report.data_stats import PrincipleStats, add_principle, histogram, length_histogram, principles_of
from charter.spec.checks import parse_part
from charter.spec.project import DataSpec

# -------- Counts over the rows of a data set, one row at a time: a few bytes per row are held, never its texts.


MOST_NAMES = 500
"""Names of one sort that are counted apart; the rest are counted together."""
OTHERS = "others"


@dataclass
class Judged:
    """Counts of answers to the questions of label records."""

    questions: int = 0
    first_wins: float = 0.0
    """Questions in which the answer that was shown first won; a tie counts one half."""
    asked_both_ways: int = 0
    orders_agree: int = 0
    bounded: int = 0
    asked_again: int = 0
    how: Counter[str] = field(default_factory=Counter)


@dataclass
class RecordTally:
    """Counts so far."""

    rows: int = 0
    blank: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    turns: Counter[int] = field(default_factory=Counter)
    prompts: "array[int]" = field(default_factory=lambda: array("I"))
    """Characters of each prompt; likewise of each answer."""
    answers: "array[int]" = field(default_factory=lambda: array("I"))
    probabilities: "array[float]" = field(default_factory=lambda: array("f"))
    keys: "array[int]" = field(default_factory=lambda: array("Q"))
    """64 bits of each row's texts, to find exact duplicates."""
    generated_tokens: "array[int]" = field(default_factory=lambda: array("I"))
    chosen_longer: float = 0.0
    principles: dict[str, PrincipleStats] = field(default_factory=dict)
    sources: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    """Of set-aside rows: why."""
    judged: Judged = field(default_factory=Judged)

    def add(self, row: Row) -> None:
        """Count one row; BadRowError where nothing can be made of it."""
        kind, candidate = row_kind(row), candidate_of(row)
        probability = chosen_probability_of(row) if kind == "pair" else None
        self.rows += 1
        self.kinds[kind] += 1
        self._add_fields(row.value)
        if candidate.empty:
            self.blank += 1
            return
        self._add_texts(row, candidate)
        if probability is not None:
            self.probabilities.append(probability)
            chosen, rejected = map(len, candidate.answers)
            self.chosen_longer += 0.5 if chosen == rejected else float(chosen > rejected)

    def add_set_aside(self, value: Mapping[str, Any]) -> None:
        """Count one row that a stage has set aside."""
        self.rows += 1
        self.reasons[_name(self.reasons, value.get("reason"))] += 1

    def _add_texts(self, row: Row, candidate: Candidate) -> None:
        self.prompts.append(len(candidate.prompt))
        self.answers.extend(map(len, candidate.answers))
        self.keys.append(int.from_bytes(exact_key(candidate.parts)[:8], "little"))
        turns = row.value.get("messages") or row.value.get("prompt")
        self.turns[len(turns) if isinstance(turns, list) else 1] += 1

    def _add_fields(self, value: Mapping[str, Any]) -> None:
        for name in principles_of(value):
            counted_name = name if name in self.principles or len(self.principles) < MOST_NAMES else OTHERS
            add_principle(self.principles.setdefault(counted_name, PrincipleStats()), value)
        if isinstance(tokens := value.get("tokens"), int) and 0 < tokens < 2**32:
            self.generated_tokens.append(tokens)
        if isinstance(value.get("source"), str):
            self.sources[_name(self.sources, value["source"])] += 1
        orders = value.get("both_orders")
        if isinstance(orders, dict) and isinstance(orders.get("agree"), bool):
            self.judged.asked_both_ways += 1
            self.judged.orders_agree += orders["agree"]
        judgements = value.get("judgements")
        for item in judgements if isinstance(judgements, list) else ():
            if isinstance(item, dict):
                _add_judgement(self.judged, item)


def _add_judgement(judged: Judged, item: Mapping[str, Any]) -> None:
    odds, first = item.get("log_odds_chosen"), item.get("chosen_shown_first")
    if not isinstance(odds, int | float) or not isinstance(first, bool):
        return
    shown_first = odds if first else -odds
    judged.questions += 1
    judged.first_wins += 0.5 if shown_first == 0 else float(shown_first > 0)
    judged.bounded += item.get("bounded") is True
    judged.asked_again += isinstance(item.get("attempts"), int) and item["attempts"] > 1
    judged.how[_name(judged.how, item.get("how"))] += 1


def _name(known: Mapping[str, Any], value: object) -> str:
    """A name to count by; data may hold anything, and as many of them as there are rows."""
    name = value[:120] if isinstance(value, str) and value else "not said"
    return name if name in known or len(known) < MOST_NAMES else OTHERS


# -------- The figures of a data set from its tally, as plain values: histograms, labels, biases, duplicates. Pure.

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
