"""Rows as other projects publish them, as rows of TRL's formats: turns with roles.

- HH-RLHF: a whole conversation as one text, in which turns begin with "Human:" or "Assistant:" after a blank line; in
  `chosen` and `rejected`, in `transcript` (its red-team attempts) or in `prompt`;
- NeMo-Aligner: `conversations` of `{from, value}` with a `system` text, `prompt` with `chosen_response` and
  `rejected_response`, `input` with `output`; its texts may carry the `<extra_id_1>` marks of its chat template;
- rows that are in one of TRL's formats already pass as they are.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from charter.spec.data_row import BadRowError, Row, json_kind
from charter.spec.rows import row_kind

Turn = dict[str, str]
KEPT = ("id", "chosen_probability", "margin")
"""Fields that a row keeps beside its texts; the others are dropped and counted."""
_HUMAN_TURNS = re.compile(r"(?:^|\n\n)(Human|Assistant|System): ?")
_MARKED_TURNS = re.compile(r"<extra_id_[01]>(System|User|Assistant)\n")
_ROLES: Mapping[str, str] = {
    "human": "user",
    "user": "user",
    "prompter": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "system": "system",
}
"""Names of roles elsewhere, in lower case."""


def native_row(row: Row) -> dict[str, Any]:
    """A row of any of these layouts in one of TRL's formats."""
    value = row.value
    for fields, convert in _LAYOUTS.items():
        if all(name in value for name in fields) and (found := convert(row)) is not None:
            return {**{name: value[name] for name in KEPT if name in value}, **found}
    row_kind(row)
    return value


def dropped_fields(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Fields of a row that its converted form no longer has, whose content went nowhere."""
    return [] if after is before else [name for name in before if name not in after and name not in _CONSUMED]


def _hh_pair(row: Row) -> dict[str, Any] | None:
    """Two conversations that differ in their last turn."""
    if not (_is_human_text(row.value["chosen"]) and _is_human_text(row.value["rejected"])):
        return None
    chosen, rejected = (_human_turns(row, row.value[name]) for name in ("chosen", "rejected"))
    if chosen[:-1] != rejected[:-1] or not chosen[:-1]:
        row.refuse("`chosen` and `rejected` differ before their last turn, so there is no common prompt")
    if chosen[-1]["role"] != "assistant" or rejected[-1]["role"] != "assistant":
        row.refuse("`chosen` and `rejected` must end with a turn of the assistant")
    return {"prompt": chosen[:-1], "chosen": chosen[-1:], "rejected": rejected[-1:]}


def _hh_transcript(row: Row) -> dict[str, Any] | None:
    if not _is_human_text(row.value["transcript"]):
        return None
    return {"messages": _human_turns(row, row.value["transcript"])}


def _hh_prompt(row: Row) -> dict[str, Any] | None:
    """A prompt as text that ends in `Assistant:`, alone or with plain answers."""
    value = row.value
    if not _is_human_text(value["prompt"]):
        return None
    found: dict[str, Any] = {"prompt": _asked(row, _human_turns(row, value["prompt"]))}
    for name in ("chosen", "rejected", "completion"):
        if name in value:
            found[name] = _assistant(_text_of(row, name).strip())
    return found


def _conversations(row: Row) -> dict[str, Any]:
    turns: list[Turn] = []
    if isinstance(row.value.get("system"), str) and row.value["system"].strip():
        turns.append({"role": "system", "content": row.value["system"].strip()})
    found = row.value["conversations"]
    if not isinstance(found, list) or not found:
        row.refuse(f"`conversations` must be a list of turns, found {json_kind(found)}")
    for index, item in enumerate(found):
        if not isinstance(item, dict) or not isinstance(item.get("value"), str):
            row.refuse(f"`conversations[{index}]` must be a turn like {{from, value}}, found {json_kind(item)}")
        turns.append({"role": _role(row, str(item.get("from"))), "content": item["value"].strip()})
    return {"messages": turns}


def _responses(row: Row) -> dict[str, Any]:
    chosen, rejected = (_text_of(row, name) for name in ("chosen_response", "rejected_response"))
    prompt = _asked(row, _marked_turns(row, _text_of(row, "prompt")))
    return {"prompt": prompt, "chosen": _assistant(_bare(chosen)), "rejected": _assistant(_bare(rejected))}


def _input_output(row: Row) -> dict[str, Any]:
    prompt = _asked(row, _marked_turns(row, _text_of(row, "input")))
    return {"messages": [*prompt, {"role": "assistant", "content": _bare(_text_of(row, "output"))}]}


_LAYOUTS: Mapping[tuple[str, ...], Callable[[Row], dict[str, Any] | None]] = {
    ("conversations",): _conversations,
    ("prompt", "chosen_response", "rejected_response"): _responses,
    ("input", "output"): _input_output,
    ("transcript",): _hh_transcript,
    ("prompt",): _hh_prompt,
    ("chosen", "rejected"): _hh_pair,
}
_CONSUMED = frozenset({name for fields in _LAYOUTS for name in fields} | {"system", "completion"})


def _is_human_text(found: Any) -> bool:
    return isinstance(found, str) and _HUMAN_TURNS.match(found.lstrip(" ")) is not None


def _human_turns(row: Row, text: str) -> list[Turn]:
    """The turns of a text in which each begins with `Human:` or `Assistant:` after a blank line."""
    return _split(row, _HUMAN_TURNS, text.lstrip(" "))


def _marked_turns(row: Row, text: str) -> list[Turn]:
    """The turns of a text with the marks of NeMo's chat template; without any, it is one turn of the user."""
    if _MARKED_TURNS.search(text) is None:
        return [{"role": "user", "content": text.strip()}]
    return _split(row, _MARKED_TURNS, text)


def _split(row: Row, pattern: re.Pattern[str], text: str) -> list[Turn]:
    pieces = pattern.split(text)
    if pieces[0].strip():
        row.refuse("the conversation begins before its first turn is named")
    named = zip(pieces[1::2], pieces[2::2], strict=True)
    turns = [{"role": _role(row, name), "content": content.strip()} for name, content in named]
    kept = [turn for turn in turns[:-1] if turn["content"] or turn["role"] != "system"]
    if any(not turn["content"] for turn in kept):
        row.refuse("a turn of the conversation is empty")
    return [*kept, *turns[-1:]]


def _asked(row: Row, turns: list[Turn]) -> list[Turn]:
    """Turns up to the last one of the user: the empty `Assistant:` that they end in is left out."""
    asked = turns[:-1] if turns[-1]["role"] == "assistant" and not turns[-1]["content"] else turns
    if not asked or asked[-1]["role"] != "user" or not asked[-1]["content"]:
        row.refuse("the prompt must end with a turn of the user")
    return asked


def _role(row: Row, name: str) -> str:
    if name.lower() not in _ROLES:
        row.refuse(f"the role {name[:40]!r} is not known; known: {', '.join(_ROLES)}")
    return _ROLES[name.lower()]


def _text_of(row: Row, name: str) -> str:
    found = row.value[name]
    if not isinstance(found, str) or not found.strip():
        raise BadRowError(f"{row.where}: `{name}` must be a text that is not empty, found {json_kind(found)}")
    return found


def _assistant(text: str) -> list[Turn]:
    return [{"role": "assistant", "content": text}]


def _bare(text: str) -> str:
    """An answer without the mark of the turn that would come next."""
    return re.sub(r"\s*<extra_id_1>\s*$", "", text).strip()
