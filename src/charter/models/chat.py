"""Conversations as token ids: what a model reads, and which tokens are the answer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from charter.spec.dataset import Turn


@dataclass(frozen=True)
class Encoded:
    """Token ids, and for each whether it belongs to an answer (the loss counts those)."""

    ids: tuple[int, ...]
    is_answer: tuple[bool, ...]


def _messages(turns: Sequence[Turn]) -> list[dict[str, str]]:
    return [{"role": turn.role, "content": turn.content} for turn in turns]


def _ids(tokenizer: Any, text: str) -> list[int]:
    found: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return found


def _template(tokenizer: Any, turns: Sequence[Turn], *, generation: bool) -> str:
    text: str = tokenizer.apply_chat_template(_messages(turns), tokenize=False, add_generation_prompt=generation)
    return text


def encode_prompt(tokenizer: Any, turns: Sequence[Turn], *, max_tokens: int | None = None) -> list[int]:
    """The ids before an answer, the template's opening of the answer included; too long is cut at the left."""
    ids = _ids(tokenizer, _template(tokenizer, turns, generation=True))
    return ids if max_tokens is None else ids[-max_tokens:]


def encode_answer(tokenizer: Any, turns: Sequence[Turn], answer: str, *, max_tokens: int | None = None) -> list[int]:
    """The ids of an answer with the template's end of turn; too long is cut at the right."""
    prefix = _template(tokenizer, turns, generation=True)
    whole = _template(tokenizer, (*turns, Turn("assistant", answer)), generation=False)
    text = whole[len(prefix) :] if whole.startswith(prefix) else answer + str(tokenizer.eos_token)
    ids = _ids(tokenizer, text)
    return ids if max_tokens is None else ids[:max_tokens]


def encode_conversation(tokenizer: Any, turns: Sequence[Turn], *, max_tokens: int) -> Encoded:
    """A conversation with its assistant turns marked; too long is cut at the left, so that the last answer stays."""
    ids: list[int] = []
    marks: list[bool] = []
    for index, turn in enumerate(turns):
        if turn.role != "assistant":
            continue
        prompt = _ids(tokenizer, _template(tokenizer, turns[:index], generation=True))
        context = prompt[len(ids) :] if prompt[: len(ids)] == ids else prompt
        if context is prompt:
            ids, marks = [], []
        answer = encode_answer(tokenizer, turns[:index], turn.content)
        ids += context + answer
        marks += [False] * len(context) + [True] * len(answer)
    return Encoded(tuple(ids[-max_tokens:]), tuple(marks[-max_tokens:]))
