"""Has a judge compare two answers: in both orders, under several principles, after a chain of thought, as asked.

The label is soft: the normalised probability of the judge's choice, averaged over the questions asked (Bai et al.
2022, section 4.1; Lee et al. 2023, section 2.1).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from charter.artifacts.draws import draw_seed, permuted
from charter.data.dataset import Pair, Turn
from charter.feedback.asking import Invalid, Judgement, Manner, Odds, SeededQuestion, Verdict, odds_of, verdict_of
from charter.feedback.constitution import Principle
from charter.feedback.records import Making
from charter.feedback.wording import (
    CHOICES,
    EXAMPLE,
    MULTIPLE_CHOICE,
    Part,
    Question,
    multiple_choice_text,
    one_answer_text,
)

__all__ = ["Comparison", "Invalid", "Judgement", "Rules", "Verdict", "comparing"]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two answers to one conversation, to be compared under principles; every draw hangs on the id."""

    id: str
    turns: tuple[Turn, ...]
    first: str
    second: str
    principles: tuple[Principle, ...]


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Rules by which a judge is asked."""

    seed: int
    stage: str
    role: str = "judge"
    format: str = MULTIPLE_CHOICE
    both_orders: bool = True
    chain_of_thought: bool = False
    reasoning_tokens: int = 256
    clamp: float | None = None
    votes: int = 0
    few_shot: int = 0
    demonstrations: tuple[Pair, ...] = ()
    """Judged pairs, `few_shot` of which every question begins with."""

    @property
    def manner(self) -> Manner:
        """Manner of asking: the part of the rules that does not depend on the question."""
        return Manner(
            role=self.role,
            chain_of_thought=self.chain_of_thought,
            reasoning_tokens=self.reasoning_tokens,
            votes=self.votes,
        )


@dataclass(frozen=True, kw_only=True)
class _Query:
    """A comparison under one principle in one order."""

    item: Comparison
    principle: Principle
    is_swapped: bool

    def asked(self, rules: Rules) -> list[SeededQuestion]:
        """One question that shows both answers, or one about each of them."""
        order = "swapped" if self.is_swapped else "straight"
        seed = draw_seed(rules.seed, rules.stage, self.item.id, "judge", self.principle.id, order)
        shown = (self.item.second, self.item.first) if self.is_swapped else (self.item.first, self.item.second)
        compare = self.principle.compare
        if rules.format == MULTIPLE_CHOICE:
            question = multiple_choice_text(self.item.turns, *shown, compare)
            examples = (Part(text, EXAMPLE) for text in demonstrations(rules, self.item, self.principle))
            return [SeededQuestion(question=Question(*examples, *question.parts), seed=seed)]
        return [
            SeededQuestion(
                question=one_answer_text(rules.format, self.item.turns, answer, compare),
                seed=draw_seed(seed, "answer", number),
            )
            for number, answer in enumerate(shown)
        ]

    def judgement(self, odds: Sequence[Odds | Invalid]) -> Judgement | Invalid:
        """Judge the first answer of the comparison from the answers to its questions."""
        tokens = sum(item.tokens for item in odds)
        valid = [item for item in odds if isinstance(item, Odds)]
        invalid = [item for item in odds if isinstance(item, Invalid)]
        if invalid:
            return replace(invalid[0], tokens=tokens)
        value = valid[0].log_odds - (valid[1].log_odds if len(valid) > 1 else 0.0)
        return Judgement(
            principle=self.principle.id,
            is_swapped=self.is_swapped,
            log_odds=-value if self.is_swapped else value,
            how=valid[0].how,
            is_bounded=any(item.is_bounded for item in valid),
            attempts=1 + max(item.attempt for item in valid),
            model=valid[0].model,
            tokens=tokens,
        )


def demonstrations(rules: Rules, item: Comparison, principle: Principle) -> Iterator[str]:
    """Judged pairs as questions with their answers: drawn anew for each comparison, the same in both orders.

    A pair about the same conversation is passed over: it would tell the judge the label.
    """
    seed = draw_seed(rules.seed, rules.stage, item.id, "demonstrations", principle.id)
    count = len(rules.demonstrations) if rules.few_shot else 0
    drawn = (rules.demonstrations[permuted(place, count, seed=seed)] for place in range(count))
    others = (pair for pair in drawn if pair.prompt != item.turns)
    for place, pair in enumerate(islice(others, rules.few_shot)):
        is_a = draw_seed(seed, "order", place) % 2 == 0
        shown = (pair.chosen, pair.rejected) if is_a else (pair.rejected, pair.chosen)
        yield f"{multiple_choice_text(pair.prompt, *shown, principle.compare)}{'A' if is_a else 'B'})\n\n"


def comparing(items: Sequence[Comparison], rules: Rules) -> Making[list[Verdict | Invalid]]:
    """The verdict on each comparison, or why there is none."""
    if not items:
        return []
    orders = (False, True) if rules.both_orders and rules.format == MULTIPLE_CHOICE else (False,)
    queries = [
        [
            _Query(item=item, principle=principle, is_swapped=swapped)
            for principle in item.principles
            for swapped in orders
        ]
        for item in items
    ]
    by_query = [[query.asked(rules) for query in row] for row in queries]
    flat = [question for row in by_query for group in row for question in group]
    odds = iter((yield from odds_of(flat, CHOICES[rules.format], rules.manner)))
    return [
        _verdict(
            [query.judgement([next(odds) for _ in group]) for query, group in zip(row, questions, strict=True)], rules
        )
        for row, questions in zip(queries, by_query, strict=True)
    ]


def _verdict(judgements: Sequence[Judgement | Invalid], rules: Rules) -> Verdict | Invalid:
    """A comparison counts with all its questions: half an order pair would bring the position's effect back."""
    tokens = sum(item.tokens for item in judgements)
    for item in judgements:
        if isinstance(item, Invalid):
            return replace(item, tokens=tokens)
    return verdict_of([item for item in judgements if isinstance(item, Judgement)], clamp=rules.clamp)
