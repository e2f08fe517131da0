"""Answers the questions of a stage with models of this process: at once, and the same bits for the same questions.

Logits depend on the shape of a batch, so what one `submit` is given is computed as one fixed unit: all texts wanted of
a role in one batch, in the order given.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace

from charter.errors import DataError
from charter.feedback.asks import Ask, Choice, Choose, Reply, Sample, Text
from charter.feedback.judge import choice_log_probabilities, question_ids, question_limit, shortened_parts
from charter.feedback.question import Part, Question
from charter.feedback.sampling import sample_texts
from charter.models.chat import encode_prompt
from charter.models.language_model import LanguageModel
from charter.spec.dataset import Turn


class LocalModels:
    """The models of some roles, with their weights here."""

    batches_at_once = 1

    def __init__(self, models: Mapping[str, LanguageModel], *, dtype: str = "fp32") -> None:
        self._models, self._dtype = models, dtype

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

    def _choices(self, model: LanguageModel, asks: Sequence[Choose]) -> list[Choice]:
        if not asks:
            return []
        if len({ask.choices for ask in asks}) > 1:
            raise DataError("questions with different choices are asked one kind after the other")
        limit = question_limit(model)
        encoded = [_encoded(model, ask, limit) for ask in asks]
        found = choice_log_probabilities(model, encoded, asks[0].choices, dtype=self._dtype)
        return [Choice(log_probabilities=values, missing=(False,) * len(values)) for values in found]

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
    """Where the prompt may not simply be cut at the left, its question shortened by parts."""
    if ask.max_prompt_tokens is not None:
        return ask
    room = question_limit(model) + 1 - ask.max_new_tokens
    return replace(ask, turns=fitted(model, ask.turns, room), max_prompt_tokens=max(room, 1))


def fitted(model: LanguageModel, turns: Sequence[Turn], room: int) -> tuple[Turn, ...]:
    """A conversation of at most `room` tokens, of which the questions are shortened where it is longer."""
    kept = [Turn(turn.role, without_control_tokens(model, turn.content)) for turn in turns]
    too_many = len(encode_prompt(model.tokenizer, kept)) - room
    for index, turn in enumerate(kept):
        if too_many > 0 and isinstance(turn.content, Question):
            length = sum(map(len, shortened_parts(model, turn.content, max_tokens=10**9)))
            pieces = shortened_parts(model, turn.content, max_tokens=max(length - too_many, 1))
            kept[index] = Turn(turn.role, str(model.tokenizer.decode([token for piece in pieces for token in piece])))
            too_many = len(encode_prompt(model.tokenizer, kept)) - room
    return tuple(kept)


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
