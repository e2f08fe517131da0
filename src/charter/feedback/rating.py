"""Has a judge rate single answers from 1 to 10: the reward of direct RLAIF (Lee et al. 2023, arXiv:2309.00267).

The rating is the expectation over the judge's own probabilities of the ten figures, so it is finer than the figure
that the judge would write. A question without a valid answer is asked again a bounded number of times; if it still has
none, the answer has no rating. Nothing is guessed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from charter.artifacts.draws import draw_seed
from charter.data.dataset import Turn
from charter.feedback.asking import ATTEMPTS, LONGEST_TEXT, REFUSED, Invalid
from charter.feedback.asks import ChoiceReply, Choose, Reply
from charter.feedback.records import Making
from charter.feedback.wording import ANSWER, CONVERSATION, Part, Question, conversation_text, quoted

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
