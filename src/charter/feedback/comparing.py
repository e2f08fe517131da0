"""Has a judge compare two answers, or rate each, under several principles, after a chain of thought, as asked.

The label of a comparison, made in both orders, is soft: the normalised probability of the judge's choice, averaged over
the questions asked (Bai et al. 2022, section 4.1; Lee et al. 2023, section 2.1).

A rating is from 1 to 10 as in direct RLAIF (Lee et al. 2023, arXiv:2309.00267), or by criteria: the expectation over
the judge's own probabilities of the ten figures, so it is finer than the figure that the judge would write. A question
without a valid answer is asked again a bounded number of times; if it still has none, the answer has no rating.

Criteria are asked each apart, as a checklist, or against the other answers of the group. They are the constitution's
comparison questions, a file's, or a row's own (open-instruct and tinker-cookbook keep them in the row). Answers to one
prompt are asked under the same criteria. An answer of which one question has no valid reply has no rating: half a
checklist would be a low mark that nobody gave.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from charter.artifacts.draws import draw_seed, permuted
from charter.data.dataset import Pair, Turn
from charter.errors import DataError, SpecError
from charter.feedback.asking import (
    ATTEMPTS,
    LONGEST_TEXT,
    REFUSED,
    ChoiceReply,
    Choose,
    Invalid,
    Judgement,
    Manner,
    Odds,
    Reply,
    SeededQuestion,
    Verdict,
    odds_of,
    probability_of,
    verdict_of,
)
from charter.feedback.constitution import Constitution, Principle
from charter.feedback.records import Making
from charter.feedback.wording import (
    ANSWER,
    CHOICES,
    CONVERSATION,
    EXAMPLE,
    MULTIPLE_CHOICE,
    YES_NO,
    Part,
    Question,
    conversation_text,
    multiple_choice_text,
    one_answer_text,
    quoted,
)
from charter.spec.rewards import Rubric
from charter.spec.yaml_source import read_document

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


FIGURES = tuple(str(figure) for figure in range(1, 11))
MIDDLE, HALF_RANGE = 5.5, 4.5
"""Of the figures 1 to 10."""
NO_LOG_PROBABILITIES = "no log-probabilities"
CRITERION = "how helpful, honest and harmless"
"""The three aims of Askell et al. 2021 (arXiv:2112.00861), of which CAI and RLAIF train some or all."""


@dataclass(frozen=True, kw_only=True)
class Rated:
    """An answer to be rated; every draw hangs on the id."""

    id: str
    turns: tuple[Turn, ...]
    answer: str
    criterion: str = ""
    """A question or statement that the rating is about; without it, the three aims."""


@dataclass(frozen=True, kw_only=True)
class Rating:
    """Rating of one answer by the judge."""

    probabilities: tuple[float, ...]
    """Of the figures 1 to 10, normalised among them."""
    is_bounded: bool = False
    """Whether a server left out figures that it finds unlikely; they count as impossible."""
    model: str = ""
    """What a server says it is; empty for a model of this process."""
    tokens: int = 0

    @property
    def expected(self) -> float:
        """The mean figure, from 1 to 10."""
        return sum(figure * share for figure, share in enumerate(self.probabilities, start=1))

    @property
    def reward(self) -> float:
        """The mean figure moved to the range from -1 to 1, with 0 in its middle, as Lee et al. do."""
        return (self.expected - MIDDLE) / HALF_RANGE


def rating_text(turns: Sequence[Turn], answer: str, criterion: str = "") -> Question:
    """The question about one answer; the figure comes next."""
    request = f"Rate {CRITERION} the last answer of the assistant is: 1 is the worst, 10 is the best."
    if criterion:
        request = f"{criterion} Rate the last answer of the assistant by this alone: 1 is the worst, 10 is the best."
    return Question(
        Part("Conversation:\n"),
        Part(conversation_text(turns), CONVERSATION),
        Part("\nAssistant:"),
        Part(f" {quoted(answer)}", ANSWER),
        Part(f"\n\n{request}"),
        Part("\nRating from 1 to 10: ("),
    )


def rating(items: Sequence[Rated], *, seed: int, stage: str, role: str = "judge") -> Making[list[Rating | Invalid]]:
    """The rating of each answer, or why there is none."""
    ratings: list[Rating | Invalid] = [Invalid(reason="not asked")] * len(items)
    waiting = list(range(len(items)))
    for attempt in range(ATTEMPTS):
        if not waiting:
            break
        asks = [_ask(items[index], role, _seed(seed, stage, items[index], attempt)) for index in waiting]
        replies = yield asks
        for index, reply in zip(waiting, replies, strict=True):
            read = _read(reply)
            ratings[index] = replace(read, tokens=read.tokens + ratings[index].tokens)
        waiting = [index for index in waiting if isinstance(ratings[index], Invalid)]
    return ratings


def _ask(item: Rated, role: str, seed: int) -> Choose:
    return Choose(role=role, question=rating_text(item.turns, item.answer, item.criterion), choices=FIGURES, seed=seed)


def _seed(seed: int, stage: str, item: Rated, attempt: int) -> int:
    """The first attempt needs none: nothing is drawn, and equal questions share one stored answer."""
    return draw_seed(seed, stage, item.id, "rating", attempt) if attempt else 0


def _read(reply: Reply) -> Rating | Invalid:
    assert isinstance(reply, ChoiceReply), "choices are answered by a Choice"
    if reply.refusal:
        return Invalid(reason=REFUSED, text=reply.refusal[:LONGEST_TEXT], tokens=reply.tokens)
    if reply.log_probabilities is None:
        reason = reply.problem or NO_LOG_PROBABILITIES
        return Invalid(reason=reason, text=reply.text[:LONGEST_TEXT], tokens=reply.tokens)
    missing = reply.missing or (False,) * len(FIGURES)
    log_probabilities = [
        -math.inf if left_out else value for value, left_out in zip(reply.log_probabilities, missing, strict=True)
    ]
    return Rating(
        probabilities=normalised(log_probabilities), is_bounded=any(missing), model=reply.model, tokens=reply.tokens
    )


def normalised(log_probabilities: Sequence[float]) -> tuple[float, ...]:
    """Probabilities that sum to 1, from logarithms of which one at least is finite.

    >>> [round(share, 3) for share in normalised([math.log(0.2), math.log(0.1), -math.inf])]
    [0.667, 0.333, 0.0]
    """
    largest = max(log_probabilities)
    shares = [math.exp(value - largest) for value in log_probabilities]
    return tuple(share / sum(shares) for share in shares)


SCHEMA = "charter.rubric/v1"
ROW_COLUMN = "rubric"
"""Column of a prompt's row with criteria of its own."""


@dataclass(frozen=True, kw_only=True)
class AnswerGroup:
    """Answers to one prompt, with the criteria that hold for all of them; every draw hangs on the id."""

    id: str
    turns: tuple[Turn, ...]
    answers: tuple[str, ...]
    criteria: tuple[Principle, ...]


def load_rubric(path: Path) -> tuple[Principle, ...]:
    """Criteria of a file; all that is wrong with it is said at once."""
    try:
        raw = read_document(path).value
    except (OSError, SpecError) as error:
        raise DataError(f"{path}: no rubric that can be read: {error}") from None
    if not isinstance(raw, Mapping) or raw.get("schema") != SCHEMA or not isinstance(raw.get("criteria"), list):
        raise DataError(f"{path}: expected `schema: {SCHEMA}` and a list `criteria`")
    return criteria_of(raw["criteria"], origin=str(path))


def criteria_of(items: Sequence[Any], *, origin: str) -> tuple[Principle, ...]:
    """Criteria as a file or a row lists them: texts, or `{id, text, weight}`.

    >>> [(item.id, item.compare) for item in criteria_of(["Is it true?", {"id": "brief", "text": "Is it brief?"}],
    ...                                                  origin="row")]
    [('1', 'Is it true?'), ('brief', 'Is it brief?')]
    """
    criteria, problems = [], []
    for number, item in enumerate(items, start=1):
        entry = {"text": item} if isinstance(item, str) else item if isinstance(item, Mapping) else {}
        text, weight, name = entry.get("text"), entry.get("weight", 1.0), str(entry.get("id", number))
        if not isinstance(text, str) or not text.strip():
            problems.append(f"criterion {number} has no text")
        elif isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < float("inf"):
            problems.append(f"criterion {name!r}: weight is not a positive number")
        else:
            criteria.append(Principle(id=name, critique="", revision="", compare=text.strip(), weight=float(weight)))
    ids = [item.id for item in criteria]
    problems += [f"criterion id {name!r} is used twice" for name in sorted({i for i in ids if ids.count(i) > 1})]
    if not items:
        problems.append("no criterion")
    if problems:
        raise DataError(f"{origin}: " + "; ".join(problems))
    return tuple(criteria)


def chosen_criteria(criteria: Sequence[Principle], rubric: Rubric) -> tuple[Principle, ...]:
    """Those that the rubric names by id, in its order; all of them where it names none."""
    if not rubric.only:
        return tuple(criteria)
    by_id = {item.id: item for item in criteria}
    unknown = [name for name in rubric.only if name not in by_id]
    if unknown:
        raise DataError(f"the rubric has no criteria {', '.join(unknown)}; it has {', '.join(by_id)}")
    return tuple(by_id[name] for name in rubric.only)


def drawn_criteria(criteria: Sequence[Principle], rubric: Rubric, seed: int) -> tuple[Principle, ...]:
    """Criteria of one prompt: all, or so many drawn by weight, which then count alike in the mean."""
    count = rubric.per_prompt
    if count is None or count >= len(criteria):
        return tuple(criteria)
    drawn = Constitution(name="", version="", principles=tuple(criteria)).draw_many(count, seed)
    return tuple(Principle(**{**vars(item), "weight": 1.0}) for item in drawn)


def combined(marks: Sequence[float], weights: Sequence[float], how: str) -> float:
    """One mark of several.

    >>> combined([1.0, 0.0], [3.0, 1.0], "mean"), combined([1.0, 0.0], [3.0, 1.0], "min")
    (0.75, 0.0)
    """
    if how == "min":
        return min(marks)
    return sum(mark * weight for mark, weight in zip(marks, weights, strict=True)) / sum(weights)


def rubric_rating(
    groups: Sequence[AnswerGroup], rubric: Rubric, *, seed: int, stage: str, role: str
) -> Making[list[float | Invalid]]:
    """The mark of every answer, group by group, or why it has none."""
    if rubric.ask == "pairwise":
        return (yield from _pairwise(groups, rubric, seed=seed, stage=stage, role=role))
    cells = [(group, answer, criterion) for group in groups for answer in group.answers for criterion in group.criteria]
    # Groups often hold an answer twice, above all early in training: it is asked about once.
    once = {(group.id, answer, criterion.id): (group, answer, criterion) for group, answer, criterion in cells}
    distinct = list(once.values())
    if rubric.ask == "pointwise":
        items = [
            Rated(id=f"{group.id}/{number}", turns=group.turns, answer=answer, criterion=criterion.compare)
            for number, (group, answer, criterion) in enumerate(distinct)
        ]
        ratings = yield from rating(items, seed=seed, stage=stage, role=role)
        marks = [item if isinstance(item, Invalid) else item.reward for item in ratings]
    else:
        questions = [
            SeededQuestion(
                question=one_answer_text(YES_NO, group.turns, answer, criterion.compare),
                seed=draw_seed(seed, stage, group.id, "checklist", number),
            )
            for number, (group, answer, criterion) in enumerate(distinct)
        ]
        odds = yield from odds_of(questions, CHOICES[YES_NO], Manner(role=role))
        marks = [probability_of(item.log_odds) if isinstance(item, Odds) else item for item in odds]
    by_cell = dict(zip(once, marks, strict=True))
    return [
        _of_answer([by_cell[group.id, answer, criterion.id] for criterion in group.criteria], group.criteria, rubric)
        for group in groups
        for answer in group.answers
    ]


def _of_answer(marks: Sequence[float | Invalid], criteria: Sequence[Principle], rubric: Rubric) -> float | Invalid:
    for mark in marks:
        if isinstance(mark, Invalid):
            return mark
    valid = [mark for mark in marks if not isinstance(mark, Invalid)]
    return combined(valid, [item.weight for item in criteria], rubric.combine)


def _pairwise(
    groups: Sequence[AnswerGroup], rubric: Rubric, *, seed: int, stage: str, role: str
) -> Making[list[float | Invalid]]:
    """Each answer against those that follow it in its group, as on a ring; equal answers are even without asking."""
    places = [
        (group, first, (first + step) % len(group.answers), criterion)
        for group in groups
        for first in range(len(group.answers))
        for step in range(1, min(rubric.opponents, len(group.answers) - 1) + 1)
        for criterion in group.criteria
    ]
    differing = [place for place in places if place[0].answers[place[1]] != place[0].answers[place[2]]]
    items = [
        Comparison(
            id=f"{group.id}/{first}-{second}/{criterion.id}",
            turns=group.turns,
            first=group.answers[first],
            second=group.answers[second],
            principles=(criterion,),
        )
        for group, first, second, criterion in differing
    ]
    verdicts = yield from comparing(items, Rules(seed=seed, stage=stage, role=role))
    shares: dict[tuple[str, int, str], list[float | Invalid]] = {}
    for (group, first, second, criterion), verdict in zip(differing, verdicts, strict=True):
        won = verdict.probability_first if isinstance(verdict, Verdict) else verdict
        shares.setdefault((group.id, first, criterion.id), []).append(won)
        shares.setdefault((group.id, second, criterion.id), []).append(1 - won if isinstance(won, float) else won)
    for group, first, second, criterion in places:
        if group.answers[first] == group.answers[second]:
            for place in (first, second):
                shares.setdefault((group.id, place, criterion.id), []).append(0.5)
    return [
        _of_answer(
            [_mean(shares[group.id, place, criterion.id]) for criterion in group.criteria], group.criteria, rubric
        )
        for group in groups
        for place in range(len(group.answers))
    ]


def _mean(shares: Sequence[float | Invalid]) -> float | Invalid:
    valid = [share for share in shares if isinstance(share, float)]
    invalid = [share for share in shares if isinstance(share, Invalid)]
    return invalid[0] if invalid else sum(valid) / len(valid)
