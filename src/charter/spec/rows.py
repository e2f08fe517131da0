"""One row of a data set in any of TRL's formats, as turns: conversations, prompts, preference pairs, plain text.

Formats (https://huggingface.co/docs/trl/dataset_formats): `messages`; `prompt`; `prompt` and `completion`;
`prompt`, `chosen` and `rejected` (texts or lists of turns, which may repeat the prompt); `chosen` and `rejected` as
whole conversations or texts (the prompt is what they share); `text`. Preference rows may add `chosen_probability`
(label records do) and `margin`. Multiple-choice questions (`question` and `choices`) are read by `choice_questions`;
their prompt is the question.
"""

import hashlib
import re
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Literal

from charter.spec.data_row import Row, is_unicode, json_kind

ROLES = ("system", "user", "assistant")
TEXT_ROLE = "text"
"""The role of plain text, which is not part of any conversation and gets no chat template."""
_MARKED_TURNS = re.compile(r"\s*(Human|Assistant|System):")
"""How HH-RLHF's texts begin."""
FORMATS = "messages | prompt | prompt + completion | prompt + chosen + rejected | text | question + choices | critiques"


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of a conversation."""

    role: str
    content: str


Turns = tuple[Turn, ...]
RowKind = Literal["messages", "prompt", "completion", "pair", "text", "question", "critique"]


def row_kind(row: Row) -> RowKind:
    """Which format a row is in."""
    keys = row.value.keys()
    if "chosen" in keys or "rejected" in keys:
        missing = [key for key in ("chosen", "rejected") if key not in keys]
        if missing:
            row.refuse(f"a preference row needs `chosen` and `rejected`; `{missing[0]}` is missing")
        return "pair"
    if "messages" in keys:
        return "messages"
    if "prompt" in keys:
        return "completion" if "completion" in keys else "prompt"
    if "question" in keys and "choices" in keys:
        return "question"
    if "init_prompt" in keys and "revision_response" in keys:
        return "critique"
    if "text" not in keys:
        row.refuse(f"no known format: found {_keys(row) or 'no field'}; known: {FORMATS}")
    return "text"


def prompt_of(row: Row) -> Turns:
    """The turns that a model is asked to answer; the last one is the user's."""
    kind = row_kind(row)
    if kind == "text":
        row.refuse("holds plain `text`; a prompt needs `prompt` or `messages`")
    if kind == "question":
        return (Turn("user", text_field(row, "question", row.value["question"])),)
    if kind == "critique":
        return critique_of(row)[:1]
    if kind == "messages":
        turns = _turns(row, "messages")
        turns = turns[:-1] if turns[-1].role == "assistant" else turns
    elif kind == "pair" and "prompt" not in row.value:
        return _implicit(row)[0]
    else:
        turns = _prompt_field(row)
    if not turns or turns[-1].role != "user":
        row.refuse("the last turn of the prompt must be the user's, so that there is something to answer")
    return turns


def pair_of(row: Row) -> tuple[Turns, str, str]:
    """Prompt, chosen answer and rejected answer of a preference row."""
    if row_kind(row) != "pair":
        row.refuse(f"is not a preference pair: needs `prompt`, `chosen` and `rejected`, found {_keys(row)}")
    if "prompt" not in row.value:
        return _implicit(row)
    prompt = prompt_of(row)
    return prompt, _answer(row, "chosen", after=prompt), _answer(row, "rejected", after=prompt)


def conversation_of(row: Row) -> Turns:
    """The turns of a row that is itself a conversation."""
    if row_kind(row) == "completion":
        return (*prompt_of(row), Turn("assistant", _answer(row, "completion")))
    if row_kind(row) == "critique":
        return critique_of(row)
    if row_kind(row) == "question":
        row.refuse("is a multiple-choice question; a conversation needs `messages`")
    turns = _turns(row, "messages")
    if not any(turn.role == "assistant" for turn in turns):
        row.refuse("the conversation has no assistant turn, so there is nothing to learn from it")
    return turns


CRITIQUE_FIELDS = ("init_prompt", "init_response", "critic_prompt", "critic_response", "revision_prompt")
"""Of a worked critique, before `revision_response`; the records of critique stages have them."""


def critique_of(row: Row) -> Turns:
    """A worked critique and revision as six turns, from its named texts or from `messages`."""
    names = (*CRITIQUE_FIELDS, "revision_response")
    missing = [name for name in names if name not in row.value]
    if not missing:
        roles = ("user", "assistant") * 3
        return tuple(
            Turn(role, text_field(row, name, row.value[name])) for role, name in zip(roles, names, strict=True)
        )
    if row_kind(row) != "messages":
        row.refuse(f"is no worked critique: it lacks {', '.join(missing)}, and has no `messages` of six turns either")
    turns = _turns(row, "messages")
    if [turn.role for turn in turns] != ["user", "assistant"] * 3:
        row.refuse(
            "a worked critique has six turns: prompt, answer, critique asked, critique, revision asked, revision"
        )
    return turns


def text_of(row: Row) -> Turns:
    """The plain text of a row, as one turn of the role `text`."""
    return (Turn(TEXT_ROLE, text_field(row, "text", row.value["text"])),)


def part_of(row: Row, count: int) -> int:
    """Which of `count` parts a row belongs to, from 1: the SHA-256 of its first user turn decides.

    Rows with the same first user turn are therefore always in one part. Outer whitespace does not count.
    """
    key = _first_user_turn(row).strip().encode()
    return int.from_bytes(hashlib.sha256(key).digest(), "big") % count + 1


def _first_user_turn(row: Row) -> str:
    kind = row_kind(row)
    if kind == "text":
        turns = text_of(row)
    elif kind == "messages":
        turns = _turns(row, "messages")
    else:
        turns = prompt_of(row)
    return next((turn.content for turn in turns if turn.role == "user"), turns[0].content)


def _keys(row: Row) -> str:
    return ", ".join(f"`{key}`" for key in row.value)


def _prompt_field(row: Row) -> Turns:
    found = row.value["prompt"]
    if isinstance(found, str):
        return (Turn("user", text_field(row, "prompt", found)),)
    return _turns(row, "prompt")


def _turns(row: Row, key: str) -> Turns:
    found = row.value[key]
    if not isinstance(found, list) or not found:
        row.refuse(f"`{key}` must be a list of turns, found {json_kind(found)}")
    return tuple(_turn(row, f"{key}[{index}]", item) for index, item in enumerate(found))


def _turn(row: Row, place: str, item: Any) -> Turn:
    if not isinstance(item, dict):
        row.refuse(f"`{place}` must be a turn like {{role, content}}, found {json_kind(item)}")
    role = item.get("role")
    if role not in ROLES:
        shown = repr(role) if isinstance(role, str) else "nothing" if role is None else json_kind(role)
        row.refuse(f"`{place}.role` must be {', '.join(ROLES[:-1])} or {ROLES[-1]}, found {shown}")
    if "content" not in item:
        row.refuse(f"`{place}.content` is missing")
    return Turn(role, text_field(row, f"{place}.content", item["content"]))


def text_field(row: Row, place: str, found: Any) -> str:
    """A text of a row that is not empty."""
    if not isinstance(found, str) or not found.strip():
        row.refuse(f"`{place}` must be a text that is not empty, found {json_kind(found)}")
    if not is_unicode(found):
        row.refuse(f"`{place}` holds half of a surrogate pair (\\ud800 to \\udfff), which is not a character")
    return found


def _answer(row: Row, key: str, *, after: Turns = ()) -> str:
    """The one assistant turn of a field, which may repeat the prompt before it."""
    found = row.value[key]
    if isinstance(found, str):
        return text_field(row, key, found)
    turns = _turns(row, key)
    if after and turns[:-1] == after:
        turns = turns[-1:]
    if len(turns) != 1 or turns[0].role != "assistant":
        row.refuse(f"`{key}` must be one assistant turn, found {_described(turns)}")
    return turns[0].content


def _described(turns: Turns) -> str:
    return f"{len(turns)} turns" if len(turns) != 1 else f"one {turns[0].role} turn"


def _implicit(row: Row) -> tuple[Turns, str, str]:
    """Prompt and answers of two whole conversations that differ in the last turn only, or of two whole texts."""
    if isinstance(row.value["chosen"], str) and isinstance(row.value["rejected"], str):
        return _implicit_texts(row)
    chosen, rejected = _turns(row, "chosen"), _turns(row, "rejected")
    for key, turns in (("chosen", chosen), ("rejected", rejected)):
        if turns[-1].role != "assistant":
            row.refuse(f"`{key}` must end with an assistant turn")
    if chosen[:-1] != rejected[:-1]:
        row.refuse("`chosen` and `rejected` differ before their last turn; give the shared `prompt` explicitly")
    if len(chosen) < 2 or chosen[-2].role != "user":
        row.refuse("there is no `prompt`, and `chosen` and `rejected` do not begin with one")
    return chosen[:-1], chosen[-1].content, rejected[-1].content


def _implicit_texts(row: Row) -> tuple[Turns, str, str]:
    """The prompt is what both texts begin with; a space before the first difference belongs to the answers.

    So TRL 1.16.0 divides them too (its extract_prompt).
    """
    chosen, rejected = (text_field(row, key, row.value[key]) for key in ("chosen", "rejected"))
    if _MARKED_TURNS.match(chosen):
        row.refuse("`chosen` holds a conversation as one text; `charter data convert` makes turns of it")
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(chosen, rejected, strict=False)))
    shared -= shared > 0 and chosen[shared - 1] == " "
    if not chosen[:shared].strip():
        row.refuse("there is no `prompt`, and `chosen` and `rejected` do not begin with one")
    prompt = (Turn("user", chosen[:shared]),)
    if not chosen[shared:].strip() or not rejected[shared:].strip():
        row.refuse("one of `chosen` and `rejected` is the beginning of the other, so that its answer is empty")
    return prompt, chosen[shared:], rejected[shared:]
