"""Reads a choice out of a judge's own words, strictly: one of the choices, or why it is none of them.

Used where a server gives no log-probabilities. The text is untrusted: whatever is not plainly one choice is refused,
because a guessed label is worse than a missing one.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

LONGEST_ANSWER = 200
"""Characters: a choice with its wording and brackets is shorter; an essay is not searched for letters."""

_PLAIN = re.compile(
    r"(?:the better answer is|better answer|answer|choice|rating)?\s*:?\s*(?P<open>\*\*|\(|\[|\"|')?\s*"
    r"(?P<choice>[A-Za-z]|[0-9]{1,2})\s*(?P<close>\*\*|\)|\]|\"|')?\s*[.!]?",
    re.IGNORECASE | re.ASCII,
)
_CLOSES = {"**": "**", "(": ")", "[": "]", '"': '"', "'": "'"}
_KEYS = ("answer", "choice", "rating")


@dataclass(frozen=True)
class Unreadable:
    """Why a text is no choice."""

    reason: str


def choice_in(text: str, choices: Sequence[str], *, opened: bool = False) -> str | Unreadable:
    """The one choice that a text states.

    `opened`: it goes on after "(", so that only what comes first counts.

    >>> choice_in(" (B). ", ("A", "B")), choice_in('{"answer": "A"}', ("A", "B"))
    ('B', 'A')
    >>> choice_in("A or B", ("A", "B")), choice_in("A) is better because", ("A", "B"), opened=True)
    (Unreadable(reason='not one of A, B alone'), 'A')
    """
    if opened:
        return _first(text, choices)
    kept = text.strip()
    if not kept:
        return Unreadable("empty answer")
    if len(kept) > LONGEST_ANSWER:
        return Unreadable("longer than an answer")
    if kept[0] in "{[" and kept[-1] in "}]" and kept[0] == "{":
        return _in_json(kept, choices)
    found = _PLAIN.fullmatch(kept)
    if found is None or not _brackets_match(found["open"], found["close"]):
        return Unreadable(f"not one of {', '.join(choices)} alone")
    return _named(found["choice"], choices)


def _first(text: str, choices: Sequence[str]) -> str | Unreadable:
    """What stands before the closing bracket."""
    head, bracket, _ = text.lstrip().partition(")")
    if not bracket and len(head.strip()) > max(map(len, choices)):
        return Unreadable("no choice before a closing bracket")
    return _named(head.strip(), choices)


def _brackets_match(opening: str | None, closing: str | None) -> bool:
    """`A)` is common; `(A` is an answer that was cut."""
    return closing == _CLOSES[opening] if opening is not None else closing in (None, ")")


def _named(text: str, choices: Sequence[str]) -> str | Unreadable:
    same = [choice for choice in choices if choice.upper() == text.upper() and text.isascii()]
    return same[0] if len(same) == 1 else Unreadable(f"not one of {', '.join(choices)} alone")


def _in_json(text: str, choices: Sequence[str]) -> str | Unreadable:
    """`{"answer": "A"}`, with nothing else in it."""

    def unique(pairs: list[tuple[str, object]]) -> Mapping[str, object]:
        if len({key for key, _ in pairs}) != len(pairs):
            raise ValueError("a key is given twice")
        return dict(pairs)

    def refuse(constant: str) -> object:
        raise ValueError(f"{constant} is not JSON")

    try:
        value = json.loads(text, object_pairs_hook=unique, parse_constant=refuse)
    except (ValueError, RecursionError):
        return Unreadable("not valid JSON")
    if not isinstance(value, dict) or len(value) != 1 or next(iter(value)) not in _KEYS:
        return Unreadable("JSON without exactly one answer")
    (stated,) = value.values()
    if isinstance(stated, bool) or not isinstance(stated, str | int):
        return Unreadable("JSON whose answer is not text")
    return _named(str(stated), choices)
