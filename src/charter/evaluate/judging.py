"""Verdicts of the judges of an eval stage, whether their weights are here or behind an endpoint."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from charter.artifacts.draws import draw_seed
from charter.artifacts.stage_dir import StageDir
from charter.data.dataset import Turn
from charter.errors import DataError, InterruptedRunError
from charter.evaluate.statistics import win_of
from charter.feedback.answering import open_answerer
from charter.feedback.asking import Manner, Odds, SeededQuestion, odds_of, probability_of
from charter.feedback.comparing import Comparison, Invalid, Rules, Verdict, comparing
from charter.feedback.constitution import Constitution
from charter.feedback.records import Answerer, Making, drive, in_batches
from charter.feedback.wording import Question
from charter.spec.stage import EvalStage

JUDGE, ALSO = "judge", "also_judges"
LETTERS = ("A", "B")
ONE_HALF = "one half is no preference for a place"
Item = TypeVar("Item")
Made = TypeVar("Made")


@dataclass(frozen=True, kw_only=True)
class Contest:
    """Two answers to be compared; the principle and all draws hang on the id."""

    id: str
    turns: tuple[Turn, ...]
    first: str
    second: str


@dataclass(frozen=True, kw_only=True)
class JudgedItem:
    """A valid verdict, and which contest it is about."""

    place: int
    principle: str
    verdict: Verdict


class Judging:
    """Asks the judges of a stage; they are loaded, or called, when first asked."""

    def __init__(self, stage: StageDir, constitution: Callable[[], Constitution]) -> None:
        self._stage, self._spec, self._constitution = stage, stage.job.spec_as(EvalStage), constitution
        self._open = ExitStack()

    def close(self) -> None:
        """Give back connections and call stores."""
        self._open.close()

    @property
    def roles(self) -> Mapping[str, str]:
        """The role of every judge by its name, the judge first."""
        inputs = self._stage.job.inputs
        others = inputs.get(ALSO, ())
        also = {item.name: f"{ALSO}/{item.name}" if len(others) > 1 else ALSO for item in others}
        return {**{item.name: JUDGE for item in inputs.get(JUDGE, ())}, **also}

    @cached_property
    def _answerer(self) -> Answerer:
        roles = [role for role in (JUDGE, ALSO) if self._stage.job.inputs.get(role)]
        return self._open.enter_context(open_answerer(self._stage, roles))

    def verdicts(self, contests: Sequence[Contest], *, role: str = JUDGE) -> list[JudgedItem]:
        """The valid verdicts in both orders, each contest under a principle drawn by its id."""
        job = self._stage.job
        rules = Rules(seed=job.seed, stage=job.stage, role=role, format=self._spec.judge_format)
        principles = [self._constitution().draw(draw_seed(job.seed, job.stage, JUDGE), item.id) for item in contests]
        items = [
            Comparison(id=item.id, turns=item.turns, first=item.first, second=item.second, principles=(principle,))
            for item, principle in zip(contests, principles, strict=True)
        ]
        verdicts = self._ask(items, lambda part: comparing(part, rules))
        judged = [
            JudgedItem(place=place, principle=principle.id, verdict=verdict)
            for place, (verdict, principle) in enumerate(zip(verdicts, principles, strict=True))
            if isinstance(verdict, Verdict)
        ]
        _require_some(job.stage, role, len(judged), verdicts)
        return judged

    def choices(
        self, questions: Sequence[tuple[Question, Question]], *, purpose: str, ids: Sequence[str]
    ) -> list[float | None]:
        """The judge's probability of the first statement of each question, asked in both orders.

        A question comes with the first statement as (A), then as (B). None where either has no valid answer.
        """
        job = self._stage.job
        requests = [
            SeededQuestion(question=question, seed=draw_seed(job.seed, job.stage, id, purpose, order))
            for both, id in zip(questions, ids, strict=True)
            for order, question in enumerate(both)
        ]
        answers = self._ask(requests, lambda part: odds_of(part, LETTERS, Manner()))
        read: list[float | None] = []
        for straight, swapped in zip(answers[::2], answers[1::2], strict=True):
            if isinstance(straight, Odds) and isinstance(swapped, Odds):
                read.append((probability_of(straight.log_odds) + probability_of(-swapped.log_odds)) / 2)
            else:
                read.append(None)
        _require_some(job.stage, JUDGE, sum(item is not None for item in read), answers)
        return read

    def _ask(self, items: Sequence[Item], make: Callable[[Sequence[Item]], Making[list[Made]]]) -> list[Made]:
        """Judge all items by batches: several at once where the judge is behind an endpoint."""
        makings = [(number, make(part)) for number, part in enumerate(in_batches(items, self._spec.rollout_batch))]
        stage = self._stage
        by_batch = dict(drive(makings, self._answerer, should_stop=stage.should_stop, tell=stage.alive))
        if len(by_batch) < len(makings):
            raise InterruptedRunError(
                f"stage {stage.job.stage} stopped inside a suite, which is measured again; stored answers are used"
            )
        return [item for number, _ in makings for item in by_batch[number]]


def _require_some(stage: str, role: str, valid: int, answers: Sequence[object]) -> None:
    """A judge that answered nothing in a way that can be read measures nothing."""
    if answers and not valid:
        invalid = next(item for item in answers if isinstance(item, Invalid))
        raise DataError(
            f"stage {stage}: {role} gave no valid answer to any of {len(answers)} questions ({invalid.reason}); "
            "look at its format and at `serving.log_probabilities`"
        )


def verdict_wins(judged: Sequence[JudgedItem]) -> list[float]:
    """1 where the first answer won, 0 where the second did, 1/2 where neither."""
    return [win_of(item.verdict.probability_first, 0.5) for item in judged]


def first_option_share(verdict: Verdict) -> float:
    """Share of the questions in which option (A) won; 1/2 when the judge has no position bias."""
    as_shown = [-item.log_odds if item.is_swapped else item.log_odds for item in verdict.judgements]
    return sum(win_of(value, 0) for value in as_shown) / len(as_shown)


def invalid_note(comparisons: int, valid: int) -> str:
    """Return the note of a figure about comparisons that have no verdict.

    >>> invalid_note(100, 98), invalid_note(100, 100)
    ('2 of 100 comparisons left out: no valid answer', '')
    """
    return (
        f"{comparisons - valid} of {comparisons} comparisons left out: no valid answer" if valid < comparisons else ""
    )
