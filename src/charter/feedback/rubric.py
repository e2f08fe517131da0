"""Has a judge rate answers by criteria: each apart, as a checklist, or against the other answers of its group.

Criteria are the constitution's comparison questions, a file's, or a row's own (open-instruct and tinker-cookbook keep
them in the row). Answers to one prompt are asked under the same criteria. An answer of which one question has no valid
reply has no rating: half a checklist would be a low mark that nobody gave.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from charter.artifacts.draws import draw_seed
from charter.data.dataset import Turn
from charter.errors import DataError, SpecError
from charter.feedback.asking import Invalid, Manner, Odds, SeededQuestion, Verdict, odds_of, probability_of
from charter.feedback.comparing import Comparison, Rules, comparing
from charter.feedback.constitution import Constitution, Principle
from charter.feedback.rating import Rated, rating
from charter.feedback.records import Making
from charter.feedback.wording import CHOICES, YES_NO, one_answer_text
from charter.spec.rewards import Rubric
from charter.spec.yaml_source import read_document

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
