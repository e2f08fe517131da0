"""Questions of a stage to its models, and their answers: plain values, whoever computes them.

A stage's records are made by a generator (`records.Making`) that yields lists of these questions and is sent the
replies. It knows neither torch nor HTTP, so the same text is asked, and the same rules read the answer, whether the
model is in this process or behind an endpoint.

A judge answers with the log-odds of two choices. A question without a valid answer is asked again a bounded number of
times, with another seed; if it still has none, it is invalid. Nothing is guessed.
"""

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from charter.artifacts.draws import draw_seed
from charter.artifacts.job import Job
from charter.data.dataset import Turn
from charter.feedback.wording import AFTER_REASONING, REASON_FIRST, REASONING_PREFILL, Part, Question
from charter.spec.stage_base import Sampling


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Ask for text: one answer to a conversation."""

    role: str
    """Which of the stage's models is asked: `policy`, `critic`, `judge`."""
    turns: tuple[Turn, ...]
    seed: int
    """Of this answer alone (`draw_seed`); with the conversation it identifies the answer."""
    temperature: float
    top_p: float = 1.0
    max_new_tokens: int = 512
    min_new_tokens: int = 0
    max_prompt_tokens: int | None = 512
    """Where the model is in this process, longer prompts are cut at the left; None: a `Question` among the turns is
    shortened by its parts, so that all fits the model."""
    prefill: str = ""
    """How the answer begins; it is part of the reply's text."""


@dataclass(frozen=True, kw_only=True)
class Choose:
    """Ask which of a few letters comes next after a question."""

    role: str
    question: Question
    choices: tuple[str, ...]
    """One letter or figure each: `("A", "B")`, `("1", ..., "10")`."""
    turns: tuple[Turn, ...] = ()
    """Conversation before the question, for a judge that is asked as an assistant: after its chain of thought."""
    seed: int = 0
    """Tells attempts at one question apart: another one is another request to a server."""
    votes: int = 0
    """Sampled answers to be counted where a server gives no log-probabilities; 0: log-probabilities are wanted."""


Ask = Sample | Choose


@dataclass(frozen=True, kw_only=True)
class Text:
    """The reply to `Sample`."""

    text: str
    tokens: int
    """Generated, end token included."""
    is_finished: bool = True
    """Whether it ended by itself; false where `max_new_tokens` cut it."""
    prompt_tokens: int = 0
    model: str = ""
    """What the server says it is; empty for a model of this process."""
    refusal: str = ""
    """Why a server would not answer (content filter), in its words; the text is then empty."""


@dataclass(frozen=True, kw_only=True)
class ChoiceReply:
    """The reply to `Choose`."""

    log_probabilities: tuple[float, ...] | None
    """One for each choice, natural logarithm, not normalised among them; None where the model gave none."""
    missing: tuple[bool, ...] = ()
    """Which choices were not among the log-probabilities given: theirs is the upper bound that the rest leaves."""
    votes: tuple[int, ...] = ()
    """How many sampled answers stated each choice, where votes were asked for."""
    problem: str = ""
    """Why there are neither log-probabilities nor votes."""
    text: str = ""
    """What the model would have said, for the record of an invalid answer."""
    tokens: int = 0
    prompt_tokens: int = 0
    model: str = ""
    refusal: str = ""


Reply = Text | ChoiceReply


def sample_of(spec: Sampling, role: str, turns: Sequence[Turn], *, seed: int) -> Sample:
    """The question for one answer to a conversation."""
    return Sample(
        role=role,
        turns=tuple(turns),
        seed=seed,
        temperature=spec.temperature,
        top_p=spec.top_p,
        max_new_tokens=spec.max_new_tokens,
        min_new_tokens=spec.min_new_tokens,
        max_prompt_tokens=spec.max_prompt_tokens,
    )


def text_facts(job: Job, role: str, *texts: Text) -> dict[str, Any]:
    """Return the origin of a text: the model's fingerprint, the server's own name, the seed, the tokens generated."""
    return {
        role: job.only(role).fingerprint,
        f"{role}_model": texts[-1].model,
        "finished": texts[-1].is_finished,
        "tokens": sum(text.tokens for text in texts),
        "seed": job.seed,
    }


BY_LOG_PROBABILITIES, BY_VOTES = "log_probabilities", "votes"
LARGEST_LOG_ODDS = 60.0
"""Beyond this a probability differs from 0 or 1 by less than the last bit of a double."""


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """The valid answer to one question: one principle, one order."""

    principle: str
    log_odds: float
    """In favour of the first answer of the comparison, whichever was shown first."""
    is_swapped: bool = False
    """Whether the second answer was shown as (A)."""
    how: str = BY_LOG_PROBABILITIES
    is_bounded: bool = False
    """Whether a choice was not among the alternatives that a server gave, so that its bound stands in."""
    attempts: int = 1
    """Times that it was asked until the answer was valid."""
    model: str = ""
    """What a server says it is; empty for a model of this process."""
    tokens: int = 0
    """Generated for it, attempts that came to nothing included."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Verdict of the judge on one comparison."""

    probability_first: float
    """Normalised probability that the first answer is better: the soft label."""
    judgements: tuple[Judgement, ...]
    """One for each question: by principle, then by order."""

    @property
    def log_odds(self) -> tuple[float, ...]:
        """One for each question asked, always in favour of the first answer."""
        return tuple(item.log_odds for item in self.judgements)

    @property
    def orders_agree(self) -> bool:
        """Return True if the questions in either order, taken together, gave the same winner."""
        by_order = [
            [probability_of(item.log_odds) for item in self.judgements if item.is_swapped is swapped]
            for swapped in (False, True)
        ]
        return len({sum(wins) > len(wins) / 2 for wins in by_order if wins}) == 1

    @property
    def tokens(self) -> int:
        """Generated for all questions."""
        return sum(item.tokens for item in self.judgements)


@dataclass(frozen=True, kw_only=True)
class Invalid:
    """No verdict: a question has no answer that can be read."""

    reason: str
    text: str = ""
    """What it said instead, at most `LONGEST_TEXT` characters."""
    tokens: int = 0


LONGEST_TEXT = 500
"""Characters of an invalid answer that are kept: enough to see what went wrong."""


def probability_of(log_odds: float) -> float:
    """The probability with these log-odds.

    >>> probability_of(0.0), probability_of(-1e9) > 0
    (0.5, True)
    """
    return 1 / (1 + math.exp(-min(max(log_odds, -LARGEST_LOG_ODDS), LARGEST_LOG_ODDS)))


def clamped(probability: float, clamp: float | None) -> float:
    """A probability kept within `clamp` and its complement (Bai et al. 2022, section 4.1).

    >>> clamped(0.99, 0.4), clamped(0.45, 0.4), clamped(0.99, None)
    (0.6, 0.45, 0.99)
    """
    return probability if clamp is None else min(max(probability, clamp), 1 - clamp)


def verdict_of(judgements: Sequence[Judgement], *, clamp: float | None = None) -> Verdict:
    """The mean probability over principles and orders (Lee et al. 2023, section 2.1), then clamped.

    Not the other way round: where the effect of the position is larger than the clamp, both orders would be clamped
    to opposite ends, and every pair would be a tie.
    """
    probabilities = [probability_of(item.log_odds) for item in judgements]
    mean = sum(probabilities) / len(probabilities)
    return Verdict(probability_first=clamped(mean, clamp), judgements=tuple(judgements))


ATTEMPTS = 3
"""Times that a question is asked before it counts as invalid."""
OWN_TEMPERATURE = 1.0
"""Of chains of thought and of votes: shares of draws then estimate the judge's own probabilities."""

REFUSED, NOTHING = "refused", "no valid answer"


@dataclass(frozen=True, kw_only=True)
class Manner:
    """Manner of asking a judge, whatever the question."""

    role: str = "judge"
    chain_of_thought: bool = False
    reasoning_tokens: int = 256
    votes: int = 0


@dataclass(frozen=True, kw_only=True)
class SeededQuestion:
    """One question, and the seed that all draws for it hang on."""

    question: Question
    seed: int


@dataclass(frozen=True, kw_only=True)
class Odds:
    """A valid answer: log p(first choice) - log p(second), and how it came about."""

    log_odds: float
    how: str = BY_LOG_PROBABILITIES
    is_bounded: bool = False
    attempt: int = 0
    model: str = ""
    tokens: int = 0


Asking = Generator[Sequence[Ask], list[Reply], list[Odds | Invalid]]


def odds_of(questions: Sequence[SeededQuestion], choices: tuple[str, str], manner: Manner) -> Asking:
    """The log-odds of each question; several attempts at those that have no valid answer."""
    odds: list[Odds | Invalid] = [Invalid(reason="not asked")] * len(questions)
    waiting = list(range(len(questions)))
    for attempt in range(ATTEMPTS):
        if not waiting:
            break
        answers = yield from _attempt([questions[index] for index in waiting], choices, manner, attempt)
        for index, answer in zip(waiting, answers, strict=True):
            odds[index] = replace(answer, tokens=answer.tokens + odds[index].tokens)
        waiting = [index for index in waiting if isinstance(odds[index], Invalid)]
    return odds


def _attempt(questions: Sequence[SeededQuestion], choices: tuple[str, str], manner: Manner, attempt: int) -> Asking:
    """Every question once, after a chain of thought where one is wanted; no choice is asked of a judge that refused."""
    if not manner.chain_of_thought:
        asks = [_choose(item, None, choices, manner, attempt) for item in questions]
        return (yield from _chosen(asks, manner, attempt))
    replies = yield [_reasoning(item, manner, attempt) for item in questions]
    thoughts = [reply for reply in replies if isinstance(reply, Text)]
    odds: list[Odds | Invalid] = [Invalid(reason=REFUSED, text=thought.refusal) for thought in thoughts]
    willing = [index for index, thought in enumerate(thoughts) if not thought.refusal]
    asks = [_choose(questions[index], thoughts[index], choices, manner, attempt) for index in willing]
    for index, answer in zip(willing, (yield from _chosen(asks, manner, attempt)), strict=True):
        odds[index] = answer
    return [
        replace(answer, tokens=answer.tokens + thought.tokens) for answer, thought in zip(odds, thoughts, strict=True)
    ]


def _chosen(asks: Sequence[Choose], manner: Manner, attempt: int) -> Asking:
    """The choices by log-probabilities; by votes where there are none."""
    if not asks:
        return []
    answers = [reply for reply in (yield asks) if isinstance(reply, ChoiceReply)]
    silent = [index for index, answer in enumerate(answers) if answer.log_probabilities is None and not answer.refusal]
    if silent and manner.votes:
        votes = yield [replace(asks[index], votes=manner.votes) for index in silent]
        for index, reply in zip(silent, votes, strict=True):
            if isinstance(reply, ChoiceReply):
                answers[index] = replace(reply, tokens=reply.tokens + answers[index].tokens)
    return [_read(answer, attempt) for answer in answers]


def _reasoning(item: SeededQuestion, manner: Manner, attempt: int) -> Sample:
    """Ask for reasons before the choice (Bai et al. 2022, section 4.1)."""
    return Sample(
        role=manner.role,
        turns=(_reasoning_turn(item),),
        seed=draw_seed(item.seed, "reasoning", attempt),
        temperature=OWN_TEMPERATURE,
        max_new_tokens=manner.reasoning_tokens,
        max_prompt_tokens=None,
        prefill=REASONING_PREFILL,
    )


def _reasoning_turn(item: SeededQuestion) -> Turn:
    return Turn("user", Question(*item.question.parts[:-1], Part(REASON_FIRST)))


def _choose(
    item: SeededQuestion, thought: Text | None, choices: tuple[str, str], manner: Manner, attempt: int
) -> Choose:
    """Ask for the choice, after the chain of thought where there is one."""
    question, turns = item.question, tuple[Turn, ...]()
    if thought is not None:
        question = Question(Part(AFTER_REASONING), item.question.parts[-1])
        turns = (_reasoning_turn(item), Turn("assistant", thought.text))
    seed = draw_seed(item.seed, "choice", attempt) if attempt else 0
    return Choose(role=manner.role, question=question, choices=choices, turns=turns, seed=seed)


def _read(answer: ChoiceReply, attempt: int) -> Odds | Invalid:
    if answer.refusal:
        return Invalid(reason=REFUSED, text=answer.refusal[:LONGEST_TEXT], tokens=answer.tokens)
    if answer.votes:
        for_first, for_second = answer.votes
        # Krichevsky and Trofimov 1981: half a vote for each, so that unanimous votes do not claim certainty.
        odds = math.log((for_first + 0.5) / (for_second + 0.5))
        return Odds(log_odds=odds, how=BY_VOTES, attempt=attempt, model=answer.model, tokens=answer.tokens)
    if answer.log_probabilities is None:
        return Invalid(reason=answer.problem or NOTHING, text=answer.text[:LONGEST_TEXT], tokens=answer.tokens)
    first, second = answer.log_probabilities
    return Odds(
        log_odds=first - second,
        is_bounded=any(answer.missing),
        attempt=attempt,
        model=answer.model,
        tokens=answer.tokens,
    )
