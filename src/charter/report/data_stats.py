"""Faults and figures of a data set before anything is trained on it: unreadable rows, lengths, labels, principles."""

import math
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from charter.data.dataset import each_row, selected_rows
from charter.data.rows import (
    CRITIQUE_FIELDS,
    BadRowError,
    Row,
    SkippedRows,
    chosen_probability_of,
    critique_of,
    margin_of,
    row_kind,
)
from charter.feedback.prepare_rows import Candidate, candidate_of, exact_key
from charter.spec.project import DataSpec

BAR_WIDTH = 40
"""Columns of the longest bar, so that a line fits a terminal of 80."""
LENGTH_BINS = 10
PROBABILITY_BINS = 10
_BLOCKS = " ▏▎▍▌▋▊▉█"
QUANTILES = (0.5, 0.95, 0.99)


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
class PrincipleStats:
    """Uses of a principle, and the judge's answers under it."""

    rows: int = 0
    asked_both_ways: int = 0
    orders_agree: int = 0
    probability_sum: float = 0.0


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
    chosen_is_longer: int = 0
    same_length: int = 0
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
            self.chosen_is_longer += chosen > rejected
            self.same_length += chosen == rejected

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


def principles_of(value: Mapping[str, Any]) -> Iterator[str]:
    """The principles that a record of a critique or label stage was made under."""
    names = value.get("principles") or [value.get("principle")]
    yield from (name for name in names if isinstance(name, str)) if isinstance(names, list) else ()


def add_principle(found: PrincipleStats, value: Mapping[str, Any]) -> None:
    """Count one record that was made under a principle."""
    found.rows += 1
    probability, orders = value.get("chosen_probability"), value.get("both_orders")
    if isinstance(probability, int | float):
        found.probability_sum += probability
    if isinstance(orders, dict) and isinstance(orders.get("agree"), bool):
        found.asked_both_ways += 1
        found.orders_agree += orders["agree"]


@dataclass
class DataStats:
    """Counts of one data set, and the rows that were left out of them."""

    path: Path
    tally: RecordTally = field(default_factory=RecordTally)
    skipped: SkippedRows = field(default_factory=SkippedRows)


def data_stats(path: Path, spec: DataSpec | None = None) -> DataStats:
    """Go through a data set once."""
    stats = DataStats(path)

    def add(row: Row) -> tuple[Row]:
        stats.tally.add(row)
        return (row,)

    for _ in each_row(path, spec, stats.skipped, add):
        pass
    return stats


def stats_json(found: DataStats) -> dict[str, Any]:
    """The figures as plain JSON."""
    tally = found.tally
    return {
        "schema": "charter.data-stats/1",
        "path": str(found.path),
        "rows": tally.rows,
        "skipped_rows": found.skipped.count,
        "blank_rows": tally.blank,
        "kinds": dict(tally.kinds),
        "turns": {str(turns): count for turns, count in sorted(tally.turns.items())},
        "prompt_characters": _lengths(tally.prompts),
        "answer_characters": _lengths(tally.answers),
        "labels": _labels(tally),
        "principles": {name: _principle(item) for name, item in sorted(tally.principles.items())},
    }


def _lengths(values: Sequence[int]) -> dict[str, float] | None:
    if not len(values):
        return None
    numbers = np.asarray(values)
    quantiles = {f"p{int(share * 100)}": float(np.quantile(numbers, share)) for share in QUANTILES}
    return {"count": len(numbers), "mean": float(numbers.mean()), **quantiles, "max": int(numbers.max())}


def _labels(tally: RecordTally) -> dict[str, Any] | None:
    count = len(tally.probabilities)
    if not count:
        return None
    numbers = np.asarray(tally.probabilities)
    edges, heights = histogram(numbers, np.linspace(0, 1, PROBABILITY_BINS + 1))
    return {
        "count": count,
        "mean_chosen_probability": float(numbers.mean()),
        "hard_share": float((numbers == 1).mean()),
        "below_half_share": float((numbers < 0.5).mean()),
        "chosen_longer_share": tally.chosen_is_longer / count,
        "same_length_share": tally.same_length / count,
        "histogram": {"edges": edges, "counts": heights},
    }


def _principle(item: PrincipleStats) -> dict[str, Any]:
    both_ways = item.asked_both_ways
    return {
        "rows": item.rows,
        "mean_chosen_probability": item.probability_sum / item.rows if item.probability_sum else None,
        "orders_agree_share": item.orders_agree / both_ways if both_ways else None,
    }


def histogram(values: Any, edges: Any) -> tuple[list[float], list[int]]:
    """Counts between edges; the last bin has its upper edge too."""
    counts, bin_edges = np.histogram(values, bins=edges)
    return [float(edge) for edge in bin_edges], [int(count) for count in counts]


def length_histogram(values: Sequence[int]) -> tuple[list[float], list[int]]:
    """Counts of lengths in bins that double, since lengths of texts spread over orders of magnitude."""
    last = max(1, math.ceil(math.log2(max(values) + 1)))
    first = max(0, last - LENGTH_BINS)
    return histogram(np.asarray(values), [0, *(2**power for power in range(first + 1, last + 1))])


def bars(edges: Sequence[float], counts: Sequence[int], label: str) -> list[str]:
    """A histogram as lines of text; `label` is a format for the two edges of a bin."""
    most = max(counts, default=0)
    lines = []
    for low, high, count in zip(edges, edges[1:], counts, strict=False):
        eighths = round(8 * BAR_WIDTH * count / most) if most else 0
        bar = _BLOCKS[-1] * (eighths // 8) + _BLOCKS[eighths % 8].strip()
        lines.append(f"  {label.format(low, high)} {bar} {count:,}")
    return lines


def _rows_line(path: Path, count: int, kinds: Mapping[str, int], *, bad: int) -> str:
    """One line with the rows of a data set, by their kinds where there are several."""
    rows = f"{path}: {count:,} row{'' if count == 1 else 's'}"
    if list(kinds.values()) == [count]:
        return f"{rows} of kind {next(iter(kinds))}"
    parts = [f"{number:,} of kind {kind}" for kind, number in kinds.items()] + ([f"{bad:,} bad"] if bad else [])
    return f"{rows}{': ' if parts else ''}{', '.join(parts)}"


def stats_lines(found: DataStats) -> list[str]:
    """The figures for people."""
    tally = found.tally
    lines = [_rows_line(found.path, tally.rows, tally.kinds, bad=0), *found.skipped.lines()]
    lines += [f"rows with a blank text, without lengths and labels: {tally.blank:,}"] if tally.blank else []
    for title, values in (("prompt", tally.prompts), ("answer", tally.answers)):
        if (lengths := _lengths(values)) is not None:
            figures = ", ".join(f"{name} {lengths[name]:,.0f}" for name in ("mean", "p50", "p95", "p99", "max"))
            lines += [f"characters of {title}: {figures}", *bars(*length_histogram(values), "{:>7,.0f} - {:>7,.0f}")]
    return [*lines, *_label_lines(tally), *_principle_lines(tally)]


def _label_lines(tally: RecordTally) -> list[str]:
    figures = _labels(tally)
    if figures is None:
        return []
    return [
        f"labels: {figures['hard_share']:.1%} hard, "
        f"mean probability of chosen {figures['mean_chosen_probability']:.3f}; "
        f"chosen is the longer answer in {figures['chosen_longer_share']:.1%}",
        *bars(figures["histogram"]["edges"], figures["histogram"]["counts"], "{:.1f} - {:.1f}"),
    ]


def _principle_lines(tally: RecordTally) -> list[str]:
    if not tally.principles:
        return []
    width = max(map(len, tally.principles))
    lines = ["principles: rows, mean probability of chosen, orders that agree"]
    for name, item in sorted(tally.principles.items(), key=lambda pair: (-pair[1].rows, pair[0])):
        figures = _principle(item)
        shares = (figures["mean_chosen_probability"], figures["orders_agree_share"])
        cells = "  ".join("-" if share is None else f"{share:.3f}" for share in shares)
        lines.append(f"  {name:<{width}} {item.rows:>9,}  {cells}")
    return lines


WORKED_CRITIQUE = "worked critique"
SHOWN = 20
"""Of each sort of finding; all are counted."""


@dataclass
class FaultCount:
    """One sort of finding: how many, and the first of them."""

    count: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, what: str) -> None:
        """Count one more."""
        self.count += 1
        if len(self.first) < SHOWN:
            self.first.append(what)


@dataclass
class _BadRows(SkippedRows):
    """Takes bad rows as they come, and keeps more of their reasons than a stage's log has room for."""

    found: FaultCount = field(default_factory=FaultCount)

    def take(self, error: BadRowError, policy: Literal["fail", "skip"]) -> None:
        """Skip the row, and count its fault."""
        super().take(error, "skip")
        self.found.add(str(error))


@dataclass(frozen=True)
class DataCheck:
    """Faults of one data set."""

    path: Path
    rows: int
    """Bad ones too."""
    kinds: Mapping[str, int]
    bad: FaultCount
    blank: FaultCount
    repeated_ids: FaultCount
    duplicates: FaultCount

    @property
    def is_sound(self) -> bool:
        """Return True if every row can be read and has its texts."""
        return not self.bad.count and not self.blank.count

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        sorts = {"bad": self.bad, "blank": self.blank, "repeated_ids": self.repeated_ids, "duplicates": self.duplicates}
        return {
            "schema": "charter.data-check/1",
            "path": str(self.path),
            "rows": self.rows,
            "kinds": dict(self.kinds),
            **{name: {"count": sort.count, "first": sort.first} for name, sort in sorts.items()},
        }


def check_data(path: Path, spec: DataSpec | None = None) -> DataCheck:
    """Read every row as a stage would; one hash per row is held."""
    bad = _BadRows()
    kinds: Counter[str] = Counter()
    blank, repeated, duplicates = FaultCount(), FaultCount(), FaultCount()
    ids: dict[str, str] = {}
    texts: dict[bytes, str] = {}
    rows = 0
    for row in selected_rows(path, spec, bad):
        rows += 1
        try:
            kind, key = _kind(row), _key(row)
        except BadRowError as error:
            bad.take(error, "skip")
            continue
        kinds[kind] += 1
        if key is None:
            blank.add(f"{row.where}: a text is missing or blank")
            continue
        if "id" in row.value and (first := ids.setdefault(row.id, row.where)) != row.where:
            repeated.add(f"{row.where}: the id {row.id!r} is that of {_place(first)}")
        if (first := texts.setdefault(key, row.where)) != row.where:
            duplicates.add(f"{row.where}: says the same as {_place(first)}")
    return DataCheck(path, kinds.total() + bad.found.count, kinds, bad.found, blank, repeated, duplicates)


def check_lines(found: DataCheck) -> list[str]:
    """The findings for people."""
    lines = [_rows_line(found.path, found.rows, found.kinds, bad=found.bad.count)]
    if len(found.kinds) > 1:
        lines.append("  warning: rows of several kinds; a stage reads one of them")
    sorts = (
        ("error", "bad rows", found.bad),
        ("error", "rows with a blank text", found.blank),
        ("warning", "ids that an earlier row has", found.repeated_ids),
        ("warning", "exact duplicates; a `prepare` stage takes them out", found.duplicates),
    )
    for level, words, what in sorts:
        if what.count:
            lines.append(f"  {level}: {what.count:,} {words}")
            lines += [f"    {line}" for line in what.first]
            lines += [f"    and {what.count - len(what.first):,} more"] if what.count > len(what.first) else []
    return lines


def _kind(row: Row) -> str:
    if _is_worked_critique(row):
        return WORKED_CRITIQUE
    kind = row_kind(row)
    if kind == "pair":
        chosen_probability_of(row)
        margin_of(row)
    return kind


def _key(row: Row) -> bytes | None:
    """128 bits of the texts of a row, None when one is missing or blank."""
    if _is_worked_critique(row):
        return exact_key([turn.content for turn in critique_of(row)])
    candidate = candidate_of(row)
    return None if candidate.empty else exact_key(candidate.parts)


def _is_worked_critique(row: Row) -> bool:
    """Return True if a row is an example for critique stages, which has named texts instead of turns."""
    return "messages" not in row.value and all(name in row.value for name in CRITIQUE_FIELDS)


def _place(where: str) -> str:
    """The place of a row without its file: `line 7`."""
    _, _, place = where.rpartition(":")
    return f"line {place}" if place.isdecimal() else place.strip()
