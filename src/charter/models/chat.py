"""Conversations as token ids: what a model reads, which tokens are the answer; tokenizers trained, read and written."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from charter.data.dataset import TEXT_ROLE, Turn
from charter.data.rows import messages
from charter.errors import DataError


@dataclass(frozen=True)
class Encoded:
    """Token ids, and for each whether it belongs to an answer (the loss counts those)."""

    ids: tuple[int, ...]
    is_answer: tuple[bool, ...]


def _ids(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def _template(tokenizer: Any, turns: Sequence[Turn], *, generation: bool) -> str:
    try:
        text: str = tokenizer.apply_chat_template(messages(turns), tokenize=False, add_generation_prompt=generation)
    except TemplateError as error:
        roles = ", ".join(turn.role for turn in turns)
        raise DataError(
            f"the model's chat template takes no conversation of these turns: {roles}; it says: {error}\n"
            "  leave such rows out, or change them (a system turn may become the beginning of the user's)"
        ) from None
    return text


def encode_prompt(tokenizer: Any, turns: Sequence[Turn], *, max_tokens: int | None = None) -> list[int]:
    """The ids before an answer, the template's opening of the answer included; too long is cut at the left."""
    ids = _ids(tokenizer, _template(tokenizer, turns, generation=True))
    return ids if max_tokens is None else ids[-max_tokens:]


def encode_answer(tokenizer: Any, turns: Sequence[Turn], answer: str, *, max_tokens: int | None = None) -> list[int]:
    """The ids of an answer with the template's end of turn; too long is cut at the right."""
    ids = _ids(tokenizer, _texts(tokenizer, turns, answer)[1])
    return ids if max_tokens is None else ids[:max_tokens]


CUT = " ..."
"""Ends a reply that was cut."""
_MARK = "\ue000"
"""A character for private use, which no chat template knows, in the place of a text."""


def encode_reply(tokenizer: Any, text: str, *, role: str, most: int, end: int) -> tuple[list[int], str]:
    """The ids between an answer that ended and the next one, a reply in a chat turn, and the reply as it is shown.

    At most `most` tokens of the text are taken; what looks like a special token in it is plain text. The answer's own
    end token is there already, so what the template puts after it comes first.
    """
    opening = (Turn("user", _MARK),)
    before = _template(tokenizer, opening, generation=True)
    after = _template(tokenizer, (*opening, Turn("assistant", _MARK), Turn(role, _MARK)), generation=True)
    rest = after.removeprefix(before + _MARK)
    head, mark, tail = rest.removeprefix(str(tokenizer.convert_ids_to_tokens(end))).partition(_MARK)
    if rest == after or not mark:
        raise DataError(
            f"the tokenizer's chat template changes what comes before a turn of the role {role!r}, so a reply cannot "
            "be put behind an answer as it was sampled; give `environment` another role, or the tokenizer a template"
        )
    ids: list[int] = tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    if len(ids) > most:
        cut = _ids(tokenizer, CUT)
        ids = [*ids[: max(most - len(cut), 0)], *cut][:most]
        text = str(tokenizer.decode(ids))
    return [*_ids(tokenizer, head), *ids, *_ids(tokenizer, tail)], text


def encode_conversations(tokenizer: Any, conversations: Sequence[Sequence[Turn]], *, max_tokens: int) -> list[Encoded]:
    """Encode conversations with their assistant turns marked, by one call of the tokenizer, which uses threads.

    One that is too long is cut at the left, so that its last answer stays. A turn that nothing comes before answers
    nothing: it is read and not learnt.
    """
    pieces = [
        [
            _texts(tokenizer, turns[:index], turn.content)
            for index, turn in enumerate(turns)
            if index and turn.role == "assistant"
        ]
        for turns in conversations
    ]
    ids = iter(encode_texts(tokenizer, [text for row in pieces for pair in row for text in pair]))
    return [_joined([(next(ids), next(ids)) for _ in row], max_tokens) for row in pieces]


def encode_texts(tokenizer: Any, texts: Sequence[str], *, begins: bool = False) -> list[list[int]]:
    """The ids of many texts, each as if it were alone; with `begins`, after what the tokenizer begins a text with."""
    if not texts:
        return []
    ids: list[list[int]] = tokenizer(list(texts), add_special_tokens=begins)["input_ids"]
    return ids


def encode_documents(tokenizer: Any, conversations: Sequence[Sequence[Turn]]) -> list[list[int]]:
    """The ids of what a language model is trained on, end to end, each with the end-of-text token behind it.

    A conversation is as the chat template writes it; plain text is no turn of one, and has no template.
    """
    is_plain = [[turn.role for turn in turns] == [TEXT_ROLE] for turns in conversations]
    texts = [turns[0].content for turns, plain in zip(conversations, is_plain, strict=True) if plain]
    chats = [
        _template(tokenizer, turns, generation=False)
        for turns, plain in zip(conversations, is_plain, strict=True)
        if not plain
    ]
    plain_ids, chat_ids = iter(encode_texts(tokenizer, texts, begins=True)), iter(encode_texts(tokenizer, chats))
    end = tokenizer.eos_token_id
    ordered = [next(plain_ids if plain else chat_ids) for plain in is_plain]
    return [ids if ids[-1:] == [end] else [*ids, end] for ids in ordered]


@lru_cache(maxsize=16)
def turn_end(tokenizer: Any) -> int:
    """The token that ends an assistant's turn in the chat template, where that ends it with a special token; else the
    end-of-text token. Gemma's and Phi-3's templates, and ChatML over a base model's tokenizer, have one of their own.
    """
    tail = _texts(tokenizer, (Turn("user", _MARK),), _MARK)[1].partition(_MARK)[2]
    special = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    own = next((number for number in _ids(tokenizer, tail) if number in special), tokenizer.eos_token_id)
    if own is None:
        raise DataError(f"{tokenizer.name_or_path}: neither chat template nor tokenizer says how an answer ends")
    return int(own)


def _texts(tokenizer: Any, turns: Sequence[Turn], answer: str) -> tuple[str, str]:
    """Return the text before an answer, and the answer with the template's end of turn."""
    prefix = _template(tokenizer, turns, generation=True)
    conversation = _template(tokenizer, (*turns, Turn("assistant", answer)), generation=False)
    return prefix, conversation[len(prefix) :] if conversation.startswith(prefix) else answer + str(tokenizer.eos_token)


def _joined(pieces: Sequence[tuple[list[int], list[int]]], max_tokens: int) -> Encoded:
    """Prompts and answers of one conversation end to end; a prompt that does not go on from there starts it anew."""
    ids: list[int] = []
    marks: list[bool] = []
    for prompt, answer in pieces:
        context = prompt[len(ids) :] if prompt[: len(ids)] == ids else prompt
        if context is prompt:
            ids, marks = [], []
        ids += context + answer
        marks += [False] * len(context) + [True] * len(answer)
    return Encoded(tuple(ids[-max_tokens:]), tuple(marks[-max_tokens:]))


END_OF_TEXT, USER, ASSISTANT, PADDING = "<|endoftext|>", "<|user|>", "<|assistant|>", "<|pad|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{{ '<|assistant|>' + message['content'] + '<|endoftext|>' }}"
    "{% else %}{{ '<|user|>' + message['content'] }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def train_tokenizer(texts: Iterable[str], *, vocab_size: int) -> Any:
    """A byte-level BPE tokenizer with a two-role chat template (Sennrich et al. 2016; GPT-2's byte alphabet).

    Every byte string can be written, so there is no unknown token; the roles are special tokens.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PADDING, END_OF_TEXT, USER, ASSISTANT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    inner.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token=END_OF_TEXT, bos_token=END_OF_TEXT, pad_token=PADDING
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def load_tokenizer(path: Path) -> Any:
    """The tokenizer saved beside a model, with a padding token."""
    from transformers import AutoTokenizer

    if not any((path / name).exists() for name in ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")):
        raise DataError(f"{path}: no tokenizer here (tokenizer.json or tokenizer_config.json); copy the model's files")
    tokenizer = AutoTokenizer.from_pretrained(str(path), local_files_only=True)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    if tokenizer.chat_template is None:
        raise DataError(f"{path}: the tokenizer has no chat template; choose an instruct model or add one")
    return tokenizer
