"""Counts over the rows of a data set, one row at a time: a few bytes per row are held, never its texts."""

from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from charter.data.rows import Row, chosen_probability_of, row_kind
from charter.feedback.prepare_rows import Candidate, candidate_of, exact_key
from charter.report.data_stats import PrincipleStats, add_principle, principles_of

MOST_NAMES = 500
"""Names of one sort that are counted apart; the rest are counted together."""
OTHERS = "others"


@dataclass
class Judged:
    """Counts of answers to the questions of label records."""

    questions: int = 0
    first_wins: float = 0.0
    """Questions in which the answer that was shown first won; a tie counts one half."""
    first_log_odds: float = 0.0
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
    judged.first_log_odds += shown_first
    judged.bounded += item.get("bounded") is True
    judged.asked_again += isinstance(item.get("attempts"), int) and item["attempts"] > 1
    judged.how[_name(judged.how, item.get("how"))] += 1


def _name(known: Mapping[str, Any], value: object) -> str:
    """A name to count by; data may hold anything, and as many of them as there are rows."""
    name = value[:120] if isinstance(value, str) and value else "not said"
    return name if name in known or len(known) < MOST_NAMES else OTHERS
