"""Answers the questions of a stage with models of this process: at once, and the same bits for the same questions.

Logits depend on the shape of a batch, so what one `submit` is given is computed as one fixed unit: all texts wanted of
a role in one batch, in the order given. Each answer is sampled with a seed of its own.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from charter.data.dataset import Turn
from charter.errors import DataError
from charter.feedback.asking import Ask, ChoiceReply, Choose, Reply, Sample, Text
from charter.feedback.wording import CONVERSATION, Part, Question, shortened
from charter.inference.generate import Answers, SamplingSettings, answer_texts, generate
from charter.inference.score import (
    choice_ids,
    choice_values,
    first_token_ids,
    is_packable,
    next_token_log_probabilities,
)
from charter.models.chat import encode_prompt
from charter.models.language_model import LanguageModel
from charter.spec.stage_base import Sampling


@dataclass(frozen=True)
class SampledAnswers:
    """Answers to one batch of conversations."""

    texts: tuple[str, ...]
    answers: Answers

    @property
    def tokens(self) -> int:
        """Tokens generated, end tokens included."""
        return int(self.answers.answer_mask_BR.sum())


def sampling_settings(spec: Sampling) -> SamplingSettings:
    """A stage's sampling fields as the generator reads them."""
    return SamplingSettings(
        max_new_tokens=spec.max_new_tokens,
        min_new_tokens=spec.min_new_tokens,
        temperature=spec.temperature,
        top_p=spec.top_p,
    )


def check_context(language_model: LanguageModel, spec: Sampling, *, role: str) -> None:
    """Refuse prompts and answers that together are longer than the model was built for."""
    limit = getattr(language_model.model.config, "max_position_embeddings", None)
    needed = spec.max_prompt_tokens + spec.max_new_tokens
    if limit is not None and needed > limit:
        raise DataError(
            f"{role} takes {limit} tokens; max_prompt_tokens {spec.max_prompt_tokens} + max_new_tokens "
            f"{spec.max_new_tokens} = {needed}: lower one of them"
        )


def sample(
    language_model: LanguageModel, conversations: Sequence[Sequence[Turn]], *, seeds: Sequence[int], spec: Sampling
) -> SampledAnswers:
    """One answer per conversation; prompts are cut at the left to `max_prompt_tokens`.

    The batch is padded to its longest prompt, so its shape is a function of the batch alone and a replay of the
    whole batch is exact.
    """
    prompts = [
        encode_prompt(language_model.tokenizer, turns, max_tokens=spec.max_prompt_tokens) for turns in conversations
    ]
    answers = generate(language_model, prompts, seeds=seeds, settings=sampling_settings(spec))
    return SampledAnswers(tuple(answer_texts(language_model, answers)), answers)


def sample_texts(language_model: LanguageModel, asks: Sequence[Sample]) -> list[Text]:
    """The texts that were asked for, in one batch; a `prefill` is part of the prompt, and of the text."""
    settings = {
        SamplingSettings(
            max_new_tokens=ask.max_new_tokens,
            min_new_tokens=ask.min_new_tokens,
            temperature=ask.temperature,
            top_p=ask.top_p,
        )
        for ask in asks
    }
    if len(settings) > 1:
        raise DataError("texts drawn in different ways are asked for one kind after the other")
    prompts = [_prompt(language_model, ask) for ask in asks]
    answers = generate(language_model, prompts, seeds=[ask.seed for ask in asks], settings=settings.pop())
    ends = (answers.answer_BR == language_model.end_id).any(1).tolist()
    tokens = answers.answer_mask_BR.sum(1).tolist()
    return [
        Text(
            text=f"{ask.prefill} {text}".strip() if ask.prefill else text,
            tokens=count,
            is_finished=end,
            prompt_tokens=len(prompt),
        )
        for ask, text, count, end, prompt in zip(
            asks, answer_texts(language_model, answers), tokens, ends, prompts, strict=True
        )
    ]


def _prompt(language_model: LanguageModel, ask: Sample) -> list[int]:
    tokenizer = language_model.tokenizer
    prompt = encode_prompt(tokenizer, ask.turns, max_tokens=ask.max_prompt_tokens)
    if not ask.prefill:
        return prompt
    opening: list[int] = tokenizer(ask.prefill, add_special_tokens=False)["input_ids"]
    return prompt + opening


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
    ids: list[int] = judge.tokenizer(piece, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    return ids


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
    by_question: list[tuple[float, ...]] = [()] * len(questions)
    for start in range(0, len(order), QUESTIONS_AT_ONCE):
        part = order[start : start + QUESTIONS_AT_ONCE]
        rows, read = [questions[index][0] for index in part], [questions[index][1] for index in part]
        values = choice_values(judge, rows, ids, read=read, dtype=dtype).tolist()
        for index, row in zip(part, values, strict=True):
            by_question[index] = tuple(row)
    return by_question


class LocalModels:
    """The models of some roles, with their weights here."""

    batches_at_once = 1

    def __init__(self, models: Mapping[str, LanguageModel]) -> None:
        self._models = models

    def submit(self, asks: Sequence[Ask]) -> "Future[list[Reply]]":
        """The replies, computed before this returns."""
        replies: dict[int, Reply] = {}
        for role, model in self._models.items():
            samples = [(i, ask) for i, ask in enumerate(asks) if isinstance(ask, Sample) and ask.role == role]
            chooses = [(i, ask) for i, ask in enumerate(asks) if isinstance(ask, Choose) and ask.role == role]
            texts, choices = _texts(model, [ask for _, ask in samples]), self._choices(model, [a for _, a in chooses])
            replies |= {index: text for (index, _), text in zip(samples, texts, strict=True)}
            replies |= {index: choice for (index, _), choice in zip(chooses, choices, strict=True)}
        done: Future[list[Reply]] = Future()
        done.set_result([replies[index] for index in range(len(asks))])
        return done

    def _choices(self, model: LanguageModel, asks: Sequence[Choose]) -> list[ChoiceReply]:
        if not asks:
            return []
        if len({ask.choices for ask in asks}) > 1:
            raise DataError("questions with different choices are asked one kind after the other")
        limit = question_limit(model)
        encoded = [_encoded(model, ask, limit) for ask in asks]
        by_question = choice_log_probabilities(model, encoded, asks[0].choices, dtype="fp32")
        return [ChoiceReply(log_probabilities=values, missing=(False,) * len(values)) for values in by_question]

    def confirm(self) -> None:
        """Nothing to look at: the weights are in this process."""

    def settled_micro_usd(self, role: str) -> int:
        """Nothing is paid."""
        return 0

    def close(self) -> None:
        """Nothing is held beyond the weights."""


def _texts(model: LanguageModel, asks: Sequence[Sample]) -> list[Text]:
    if not asks:
        return []
    return sample_texts(model, [_fitted(model, ask) for ask in asks])


def _encoded(model: LanguageModel, ask: Choose, limit: int) -> tuple[list[int], int]:
    """A question alone is plain text; after turns it is the next turn of that conversation."""
    if not ask.turns:
        return question_ids(model, ask.question, max_tokens=limit)
    lead_in: list[int] = model.tokenizer(ask.question.lead_in.strip(), add_special_tokens=False)["input_ids"]
    room = limit - len(lead_in)
    turns = fitted(model, (*ask.turns, Turn("user", ask.question.body)), room)
    return encode_prompt(model.tokenizer, turns, max_tokens=room) + lead_in, 1


def _fitted(model: LanguageModel, ask: Sample) -> Sample:
    """Return a question that fits the model: its parts are shortened where its prompt may not be cut at the left."""
    if ask.max_prompt_tokens is not None:
        return ask
    room = question_limit(model) + 1 - ask.max_new_tokens
    return replace(ask, turns=fitted(model, ask.turns, room), max_prompt_tokens=max(room, 1))


def fitted(model: LanguageModel, turns: Sequence[Turn], room: int) -> tuple[Turn, ...]:
    """A conversation of at most `room` tokens, of which the questions are shortened where it is longer."""
    cleaned = [Turn(turn.role, without_control_tokens(model, turn.content)) for turn in turns]
    too_many = len(encode_prompt(model.tokenizer, cleaned)) - room
    for index, turn in enumerate(cleaned):
        if too_many > 0 and isinstance(turn.content, Question):
            length = sum(map(len, shortened_parts(model, turn.content, max_tokens=10**9)))
            pieces = shortened_parts(model, turn.content, max_tokens=max(length - too_many, 1))
            cleaned[index] = Turn(
                turn.role, str(model.tokenizer.decode([token for piece in pieces for token in piece]))
            )
            too_many = len(encode_prompt(model.tokenizer, cleaned)) - room
    return tuple(cleaned)


def without_control_tokens(model: LanguageModel, text: str) -> str:
    """A question in which judged text that spells out a control token, an end of turn say, no longer does.

    A chat template is tokenized as one text, so its own control tokens could not be told from these.
    """
    if not isinstance(text, Question):
        return text
    names = [name for name in model.tokenizer.get_added_vocab() if name in text]
    parts = text.parts
    for name in sorted(names, key=len, reverse=True):
        parts = tuple(Part(part.text.replace(name, f"{name[0]} {name[1:]}"), part.role) for part in parts)
    return Question(*parts, read_from=text.read_from) if names else text
