"""One record as a page shows it: its texts by turn, its label, and where it came from. Pure."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from charter.report.data_page.browsing import RawRecord

LONG_TEXT = 1200
"""Characters of a text that are shown at once; the rest is behind a line to open."""
MOST_TURNS = 60
MOST_TEXT = 60_000
_TEXTS = (
    "prompt", "messages", "completion", "text", "question", "choices", "chosen", "rejected", "init_prompt",
    "init_response", "critic_prompt", "critic_response", "revision_prompt", "revision_response", "reply", "answer",
)  # fmt: skip
"""Fields that hold what was said, in the order of a page."""
_CRITIQUE = ("init_prompt", "init_response", "critic_prompt", "critic_response", "revision_prompt", "revision_response")


@dataclass(frozen=True, kw_only=True)
class ShownTurn:
    """One text with who says it."""

    role: str
    text: str
    rest: str
    """What is behind the line to open."""
    tone: str
    """`chosen`, `rejected` or nothing."""


@dataclass(frozen=True, kw_only=True)
class RecordView:
    """One record."""

    id: str
    offset: int
    turns: tuple[ShownTurn, ...]
    facts: tuple[tuple[str, str], ...]
    """Everything that is no text: label, principle, judge, seed."""
    problem: str


def record_view(raw: RawRecord) -> RecordView:
    """A record's texts and facts."""
    value = raw.value
    if value is None:
        return RecordView(id="", offset=raw.offset, turns=(), facts=(), problem=raw.problem)
    texts = list(_TEXTS)
    if all(name in value for name in _CRITIQUE):
        texts.remove("messages")  # the prompt and the revision, which stand among the six texts
    turns = [turn for name in texts if name in value for turn in _turns(name, value[name])]
    if len(turns) > MOST_TURNS:
        more = len(turns) - MOST_TURNS
        turns = [*turns[:MOST_TURNS], _turn("", f"and {more} more texts", "")]
    facts = tuple((name, _plain(item)) for name, item in value.items() if name not in _TEXTS and name != "id")
    return RecordView(id=_plain(value.get("id", "")), offset=raw.offset, turns=tuple(turns), facts=facts, problem="")


def _turns(field: str, value: Any) -> list[ShownTurn]:
    tone = field if field in ("chosen", "rejected") else ""
    words = field.replace("_", " ")
    if isinstance(value, list):
        return [_of_item(words, item, tone) for item in value]
    return [_turn(words, _plain(value), tone)]


def _of_item(words: str, item: Any, tone: str) -> ShownTurn:
    if isinstance(item, Mapping):
        role = _plain(item.get("role", ""))
        shown = f"{words}: {role}" if tone else role or words
        return _turn(shown, _plain(item.get("content", item)), tone)
    return _turn(words, _plain(item), tone)


def _turn(role: str, text: str, tone: str) -> ShownTurn:
    if len(text) > MOST_TEXT:
        text = f"{text[:MOST_TEXT]} [{len(text) - MOST_TEXT:,} more characters are not shown]"
    return ShownTurn(role=role[:80], text=text[:LONG_TEXT], rest=text[LONG_TEXT:], tone=tone)


def _plain(value: Any) -> str:
    """A value as text; halves of characters and control characters are shown as marks, not sent to a browser."""
    if isinstance(value, str):
        text = value
    elif isinstance(value, float):
        text = f"{value:.6g}"
    elif isinstance(value, Mapping | Sequence):
        text = json.dumps(value, ensure_ascii=False)
    else:
        text = "-" if value is None else str(value)
    clean = text.encode("utf-8", "replace").decode("utf-8")
    return "".join(
        letter if letter in "\n\t" or letter.isprintable() or letter == " " else "\N{REPLACEMENT CHARACTER}"
        for letter in clean
    )
