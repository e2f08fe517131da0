"""Reads the log-probabilities of a few choices out of the alternatives that a server gives for one token.

Servers give at most the 20 likeliest tokens, as text, each tokenizer with its own marks for spaces. All ways to write
a choice count for it. A choice that is not among them gets the largest log-probability that it can have, and is marked.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

TOP = 20
"""Alternatives asked for: the most that OpenAI's API gives, and vLLM's and SGLang's default limit."""
NONE_GIVEN = "no log-probabilities given"
LEAST_REST = 1e-6
"""Log-probabilities come as rounded 32-bit numbers: what 20 of them leave of 1 is not known better than this."""
_SPACE_MARKS = str.maketrans({"Ġ": " ", "▁": " ", "Ċ": "\n"})
"""How byte-level BPE and SentencePiece write a space and a line break in a token's name."""


@dataclass(frozen=True)
class ChoiceReading:
    """Log-probabilities of the choices, read from the alternatives of a reply."""

    log_probabilities: tuple[float, ...] | None
    missing: tuple[bool, ...] = ()
    problem: str = ""


def read_choices(top: Sequence[tuple[str, float]], choices: Sequence[str]) -> ChoiceReading:
    """The log-probability of each choice, summed over the tokens that write it.

    >>> found = read_choices([("A", math.log(0.5)), (" A", math.log(0.25)), ("B", math.log(0.125))], ("A", "B"))
    >>> [round(math.exp(value), 3) for value in found.log_probabilities], found.missing
    ([0.75, 0.125], (False, False))
    """
    if not top:
        return ChoiceReading(None, problem=NONE_GIVEN)
    if any(math.isnan(value) or value > LEAST_REST for _, value in top):
        return ChoiceReading(None, problem="log-probabilities that are none")
    masses = [sum(math.exp(value) for token, value in top if is_written(token, choice)) for choice in choices]
    missing = tuple(mass == 0 for mass in masses)
    if all(missing):
        return ChoiceReading(None, problem="none of the choices among the alternatives")
    bound = _bound(top)
    return ChoiceReading(tuple(bound if mass == 0 else math.log(mass) for mass in masses), missing)


def is_written(token: str, choice: str) -> bool:
    """Return True if a token is a way to write a choice: with space, bracket, full stop, or small if nothing precedes.

    >>> [is_written(token, "A") for token in ("A", " A", "ĠA", "▁A", "(A", "A)", "a", " a", "An", "B")]
    [True, True, True, True, True, True, True, False, False, False]
    """
    text = token.translate(_SPACE_MARKS)
    bare = text.strip().removeprefix("(").removesuffix(".").removesuffix(")")
    return bare == choice or (bare == choice.lower() and not text[:1].isspace())


def _bound(top: Sequence[tuple[str, float]]) -> float:
    """The most that a token outside the alternatives can have: no more than the least of them, nor than the rest."""
    rest = 1 - sum(math.exp(value) for _, value in top)
    return min(min(value for _, value in top), math.log(max(rest, LEAST_REST)))


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
    """Reason why a text is no choice."""

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
    stripped = text.strip()
    if not stripped:
        return Unreadable("empty answer")
    if len(stripped) > LONGEST_ANSWER:
        return Unreadable("longer than an answer")
    if stripped[0] in "{[" and stripped[-1] in "}]" and stripped[0] == "{":
        return _in_json(stripped, choices)
    match = _PLAIN.fullmatch(stripped)
    if match is None or not _brackets_match(match["open"], match["close"]):
        return Unreadable(f"not one of {', '.join(choices)} alone")
    return _named(match["choice"], choices)


def _first(text: str, choices: Sequence[str]) -> str | Unreadable:
    """Return the choice before the closing bracket."""
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
