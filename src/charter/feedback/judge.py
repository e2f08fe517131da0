"""The judge: a language model that compares two answers under a principle, by the log-probability of its choice.

`multiple_choice` shows both answers, as (A) and (B), and reads log p(A) - log p(B) after "The better answer is (".
`yes_no` shows one answer at a time and reads log p(Y) - log p(N); the comparison is the difference. It has no order,
so both orders agree by construction; small models learn it where they fail at the first.
`yes_no_mean` asks before the answer and reads the same log-odds after every token of the answer; the mean is its
score. Only a judge that was fine-tuned so can answer it (docs/decisions/0009-judge-formats.md).
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from charter.errors import DataError
from charter.feedback.constitution import Principle
from charter.feedback.question import ANSWER, CONVERSATION, Part, Question, shortened
from charter.inference.score import first_token_ids, next_token_log_probabilities
from charter.models.language_model import LanguageModel
from charter.spec.dataset import Turn

MULTIPLE_CHOICE, YES_NO, YES_NO_MEAN = "multiple_choice", "yes_no", "yes_no_mean"
CHOICES = {MULTIPLE_CHOICE: ("A", "B"), YES_NO: ("Y", "N"), YES_NO_MEAN: ("Y", "N")}

QUESTIONS_AT_ONCE = 16


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two answers to one conversation, to be compared under a principle."""

    turns: tuple[Turn, ...]
    first: str
    second: str
    principle: Principle


def _conversation(turns: Sequence[Turn]) -> str:
    names = {"user": "Human", "assistant": "Assistant"}
    return "\n".join(f"{names.get(turn.role, turn.role)}: {turn.content}" for turn in turns)


def multiple_choice_text(item: Comparison, *, swapped: bool) -> Question:
    """The question that shows both answers; `swapped` shows the second one as (A)."""
    option_a, option_b = (item.second, item.first) if swapped else (item.first, item.second)
    return Question(
        Part("Conversation:\n"),
        Part(_conversation(item.turns), CONVERSATION),
        Part(f"\n\n{item.principle.compare}\n(A)"),
        Part(f" {option_a}", ANSWER),
        Part("\n(B)"),
        Part(f" {option_b}", ANSWER),
        Part("\nThe better answer is ("),
    )


def yes_no_text(turns: Sequence[Turn], answer: str, principle: Principle) -> Question:
    """The question about one answer alone."""
    return Question(
        Part(f"{principle.compare} Judge this answer.\n"),
        Part(_conversation(turns[-1:]), CONVERSATION),
        Part("\nAssistant:"),
        Part(f" {answer}", ANSWER),
        Part("\nGood (Y or N): ("),
    )


def yes_no_mean_text(turns: Sequence[Turn], answer: str, principle: Principle) -> Question:
    """The question about one answer, asked before it; read from the first token of the answer on."""
    return Question(
        Part(f"{principle.compare} Judge this answer, good (Y) or not (N).\n"),
        Part(_conversation(turns[-1:]), CONVERSATION),
        Part("\nAssistant:"),
        Part(f" {answer}", ANSWER),
        Part("\nGood (Y or N): ("),
        read_from=3,
    )


def one_answer_text(format: str, turns: Sequence[Turn], answer: str, principle: Principle) -> Question:
    """The question about one answer in a format that asks of each answer alone."""
    make = yes_no_mean_text if format == YES_NO_MEAN else yes_no_text
    return make(turns, answer, principle)


def template_fingerprint(format: str) -> str:
    """Hash of a format's wording: a label records it, so that labels asked differently can be told apart."""
    principle = Principle(id="", critique="", revision="", compare="{principle}")
    turns = (Turn("user", "{user}"), Turn("assistant", "{assistant}"), Turn("user", "{user}"))
    item = Comparison(turns=turns, first="{first}", second="{second}", principle=principle)
    if format == MULTIPLE_CHOICE:
        text: str = multiple_choice_text(item, swapped=False)
    else:
        text = one_answer_text(format, item.turns, item.first, item.principle)
    return hashlib.sha256(f"{text}{CHOICES[format]}".encode()).hexdigest()[:16]


def question_limit(judge: LanguageModel) -> int:
    """The longest question in tokens: what the model was built for less the choice, or what a judge was taught on.

    A fine-tuned judge states the length of its lessons as its tokenizer's `model_max_length`.
    """
    limit = getattr(judge.model.config, "max_position_embeddings", None)
    if not isinstance(limit, int):
        raise DataError("the judge's config.json has no max_position_embeddings; how long may a question be?")
    return min(limit - 1, int(judge.tokenizer.model_max_length))


def encode_question(judge: LanguageModel, text: str, *, max_tokens: int) -> list[int]:
    """A judge question as the ids before the choice.

    A question that is too long loses the beginning of its conversation first, then the ends of its answers; the
    principle and the wording around it always stay.
    """
    return _encode(judge, text, max_tokens=max_tokens)[0]


def _encode(judge: LanguageModel, text: str, *, max_tokens: int) -> tuple[list[int], int]:
    """The ids of a question, and after how many of its last tokens the choice is read."""

    def ids_of(piece: str) -> list[int]:
        found: list[int] = judge.tokenizer(piece, add_special_tokens=False)["input_ids"]
        return found

    if not isinstance(text, Question):
        return ids_of(text)[-max_tokens:], 1
    if text.read_from is None and len(ids := ids_of(text)) <= max_tokens:
        return ids, 1
    pieces = [ids_of(part.text) for part in text.parts]
    lengths = shortened([len(piece) for piece in pieces], [part.role for part in text.parts], max_tokens=max_tokens)
    kept: list[int] = []
    for part, piece, length in zip(text.parts, pieces, lengths, strict=True):
        kept += piece[len(piece) - length :] if part.role == CONVERSATION else piece[:length]
    return kept, 1 if text.read_from is None else sum(lengths[text.read_from :])


def log_odds(
    judge: LanguageModel,
    texts: Sequence[str],
    choices: tuple[str, str],
    *,
    max_tokens: int,
    dtype: str,
    call: Callable[..., Any] | None = None,
) -> tuple[Tensor, Tensor]:
    """log p(first choice) - log p(second) for each question, and both log-probabilities [B, 2]; differentiable.

    Means over the places where the question is read: the end, or every token from the answer on.
    """
    encoded = [_encode(judge, text, max_tokens=max_tokens) for text in texts]
    prompts, read = [ids for ids, _ in encoded], [count for _, count in encoded]
    ids = first_token_ids(judge.tokenizer, choices)
    both_B2 = next_token_log_probabilities(judge, prompts, ids, read=read, dtype=dtype, call=call)
    return both_B2[:, 0] - both_B2[:, 1], both_B2


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the judge said of one comparison."""

    probability_first: float
    """Normalised probability that the first answer is better: the soft label."""
    log_odds: tuple[float, ...]
    """One for each order asked, always in favour of the first answer."""

    @property
    def orders_agree(self) -> bool:
        """Whether every order gave the same winner."""
        return len({value > 0 for value in self.log_odds}) == 1


def _verdict(values: Sequence[float]) -> Verdict:
    """Average of the choice's normalised probability over the orders (Lee et al. 2023, section 3.1)."""
    probabilities = [1 / (1 + math.exp(-min(max(value, -60.0), 60.0))) for value in values]
    return Verdict(probability_first=sum(probabilities) / len(probabilities), log_odds=tuple(values))


@torch.no_grad()
def compare(
    judge: LanguageModel,
    items: Sequence[Comparison],
    *,
    format: str,
    both_orders: bool,
    max_tokens: int,
    dtype: str = "fp32",
) -> list[Verdict]:
    """The judge's verdict on each comparison; the batch is the unit that is replayed whole."""
    judge.model.eval()

    def odds_of(texts: Sequence[str]) -> list[float]:
        return _odds_by_length(judge, texts, CHOICES[format], max_tokens=max_tokens, dtype=dtype)

    if format != MULTIPLE_CHOICE:
        odds = odds_of(
            [
                one_answer_text(format, item.turns, answer, item.principle)
                for item in items
                for answer in (item.first, item.second)
            ]
        )
        return [_verdict([first - second]) for first, second in zip(odds[::2], odds[1::2], strict=True)]
    straight = odds_of([multiple_choice_text(item, swapped=False) for item in items])
    if not both_orders:
        return [_verdict([value]) for value in straight]
    swapped = odds_of([multiple_choice_text(item, swapped=True) for item in items])
    return [_verdict([value, -other]) for value, other in zip(straight, swapped, strict=True)]


def _odds_by_length(
    judge: LanguageModel, texts: Sequence[str], choices: tuple[str, str], *, max_tokens: int, dtype: str
) -> list[float]:
    """Log-odds of each question; questions of like length are asked together, so that little is padding.

    Which ones these are hangs on the texts alone, so a replay of the whole batch is exact.
    """
    lengths = [len(encode_question(judge, text, max_tokens=max_tokens)) for text in texts]
    order = sorted(range(len(texts)), key=lambda index: lengths[index])
    found = [0.0] * len(texts)
    for start in range(0, len(order), QUESTIONS_AT_ONCE):
        part = order[start : start + QUESTIONS_AT_ONCE]
        odds_B, _ = log_odds(judge, [texts[index] for index in part], choices, max_tokens=max_tokens, dtype=dtype)
        for index, value in zip(part, odds_B.tolist(), strict=True):
            found[index] = value
    return found
