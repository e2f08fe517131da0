"""Reads the log-probabilities of a few choices out of the alternatives that a server gives for one token.

Servers give at most the 20 likeliest tokens, as text, each tokenizer with its own marks for spaces. All ways to write
a choice count for it. A choice that is not among them gets the largest log-probability that it can have, and is marked.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

TOP = 20
"""Alternatives asked for: the most that OpenAI's API gives, and vLLM's and SGLang's default limit."""
NONE_GIVEN = "no log-probabilities given"
LEAST_REST = 1e-6
"""Log-probabilities come as rounded 32-bit numbers: what 20 of them leave of 1 is not known better than this."""
_SPACE_MARKS = str.maketrans({"Ġ": " ", "▁": " ", "Ċ": "\n"})
"""How byte-level BPE and SentencePiece write a space and a line break in a token's name."""


@dataclass(frozen=True)
class Reading:
    """What the alternatives say of the choices."""

    log_probabilities: tuple[float, ...] | None
    missing: tuple[bool, ...] = ()
    problem: str = ""


def read_choices(top: Sequence[tuple[str, float]], choices: Sequence[str]) -> Reading:
    """The log-probability of each choice, summed over the tokens that write it.

    >>> found = read_choices([("A", math.log(0.5)), (" A", math.log(0.25)), ("B", math.log(0.125))], ("A", "B"))
    >>> [round(math.exp(value), 3) for value in found.log_probabilities], found.missing
    ([0.75, 0.125], (False, False))
    """
    if not top:
        return Reading(None, problem=NONE_GIVEN)
    if any(math.isnan(value) or value > LEAST_REST for _, value in top):
        return Reading(None, problem="log-probabilities that are none")
    masses = [sum(math.exp(value) for token, value in top if is_written(token, choice)) for choice in choices]
    missing = tuple(mass == 0 for mass in masses)
    if all(missing):
        return Reading(None, problem="none of the choices among the alternatives")
    bound = _bound(top)
    return Reading(tuple(bound if mass == 0 else math.log(mass) for mass in masses), missing)


def is_written(token: str, choice: str) -> bool:
    """Whether a token is a way to write a choice: with space, bracket or full stop, or small where nothing precedes.

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
