"""A judge whose weights are in this process: its questions as token ids, and the log-probabilities of its choices."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from charter.errors import DataError
from charter.feedback.question import CONVERSATION, Question, shortened
from charter.inference.choices import choice_ids, choice_values
from charter.inference.packed_rows import is_packable
from charter.inference.score import first_token_ids, next_token_log_probabilities
from charter.models.language_model import LanguageModel

QUESTIONS_AT_ONCE = 16


def question_limit(judge: LanguageModel) -> int:
    """The longest question in tokens: what the model was built for less the choice, or what a judge was taught on.

    A fine-tuned judge states the length of its lessons as its tokenizer's `model_max_length`.
    """
    limit = getattr(judge.model.config, "max_position_embeddings", None)
    if not isinstance(limit, int):
        raise DataError("the judge's config.json has no max_position_embeddings; how long may a question be?")
    return min(limit - 1, int(judge.tokenizer.model_max_length))


def question_ids(judge: LanguageModel, text: str, *, max_tokens: int) -> tuple[list[int], int]:
    """The ids of a question, and after how many of its last tokens the choice is read."""
    if not isinstance(text, Question):
        return _ids(judge, text)[-max_tokens:], 1
    if text.read_from is None and len(ids := _ids(judge, text)) <= max_tokens:
        return ids, 1
    pieces = shortened_parts(judge, text, max_tokens=max_tokens)
    read = 1 if text.read_from is None else sum(len(piece) for piece in pieces[text.read_from :])
    return [token for piece in pieces for token in piece], read


def shortened_parts(judge: LanguageModel, question: Question, *, max_tokens: int) -> list[list[int]]:
    """The ids of each part of a question, cut so that all fit."""
    pieces = [_ids(judge, part.text) for part in question.parts]
    lengths = shortened([len(piece) for piece in pieces], [part.role for part in question.parts], max_tokens=max_tokens)
    return [
        piece[len(piece) - length :] if part.role == CONVERSATION else piece[:length]
        for part, piece, length in zip(question.parts, pieces, lengths, strict=True)
    ]


def _ids(judge: LanguageModel, piece: str) -> list[int]:
    """Plain text as ids: a judged answer that spells out a control token does not become one."""
    found: list[int] = judge.tokenizer(piece, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    return found


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
    encoded = [question_ids(judge, text, max_tokens=max_tokens) for text in texts]
    prompts, read = [ids for ids, _ in encoded], [count for _, count in encoded]
    ids = first_token_ids(judge.tokenizer, choices)
    both_B2 = next_token_log_probabilities(judge, prompts, ids, read=read, dtype=dtype, call=call)
    return both_B2[:, 0] - both_B2[:, 1], both_B2


@torch.no_grad()
def choice_log_probabilities(
    judge: LanguageModel, questions: Sequence[tuple[Sequence[int], int]], choices: Sequence[str], *, dtype: str
) -> list[tuple[float, ...]]:
    """log p of each choice after each question, given as ids and how many of the last ones it is read after.

    Questions that begin alike, or are of like length, are asked together, so that little is read twice or is padding.
    Which ones these are hangs on the questions alone, so a replay of the whole batch is exact.
    """
    judge.model.eval()
    ids = choice_ids(judge.tokenizer, choices)
    if all(count == 1 for _, count in questions) and is_packable(judge):
        values = choice_values(judge, [row for row, _ in questions], ids, dtype=dtype).tolist()
        return [tuple(row) for row in values]
    order = sorted(range(len(questions)), key=lambda index: len(questions[index][0]))
    found: list[tuple[float, ...]] = [()] * len(questions)
    for start in range(0, len(order), QUESTIONS_AT_ONCE):
        part = order[start : start + QUESTIONS_AT_ONCE]
        rows, read = [questions[index][0] for index in part], [questions[index][1] for index in part]
        values = choice_values(judge, rows, ids, read=read, dtype=dtype).tolist()
        for index, row in zip(part, values, strict=True):
            found[index] = tuple(row)
    return found
