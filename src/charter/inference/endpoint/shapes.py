"""Takes values of a wanted type out of untrusted JSON, or says what is wrong."""

from collections.abc import Mapping
from typing import Any

from charter.inference.endpoint.call import Usage
from charter.inference.endpoint.strict_json import is_encodable


class InvalidReplyError(Exception):
    """A reply that cannot be used; `usage` is what it is billed all the same, where it says so."""

    usage: Usage | None = None


def a_map(source: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """An object."""
    value = source.get(name)
    if not isinstance(value, dict):
        raise InvalidReplyError(f"{name} is {_what(value)}, not an object")
    return value


def a_list(source: Mapping[str, Any], name: str) -> list[Any]:
    """An array."""
    value = source.get(name)
    if not isinstance(value, list):
        raise InvalidReplyError(f"{name} is {_what(value)}, not an array")
    return value


def a_text(source: Mapping[str, Any], name: str, *, most: int | None = None, default: str | None = None) -> str:
    """A text that UTF-8 can hold; null is the default where there is one."""
    value = source.get(name)
    if value is None and default is not None:
        return default
    if not isinstance(value, str):
        raise InvalidReplyError(f"{name} is {_what(value)}, not a text")
    if most is not None and len(value) > most:
        raise InvalidReplyError(f"{name} has {len(value)} characters, {most} at most")
    if not is_encodable(value):
        raise InvalidReplyError(f"{name} has half of a surrogate pair")
    return value


def a_count(source: Mapping[str, Any], name: str) -> int:
    """A whole number, not negative."""
    value = source.get(name)
    if type(value) is not int or value < 0:
        raise InvalidReplyError(f"{name} is {_what(value)}, not a count")
    return value


def a_log_probability(value: object) -> float:
    """A logarithm of a probability: at most 0, but for rounding."""
    if type(value) not in (int, float) or not float(value) <= ROUNDING:  # type: ignore[arg-type]
        raise InvalidReplyError(f"a log-probability is {_what(value)}")
    return min(float(value), 0.0)  # type: ignore[arg-type]


ROUNDING = 1e-3
"""Log-probabilities are often computed in 16 bits: bf16 has 8 bits of mantissa, so that 0 comes out as up to 2^-10."""


def one_line(text: str, most: int) -> str:
    """A text for a message: printable, on one line, shortened."""
    shown = "".join(letter if letter.isprintable() else " " for letter in text[: 2 * most])
    shown = " ".join(shown.split())
    return shown if len(shown) <= most else shown[: most - 3] + "..."


def _what(value: object) -> str:
    if value is None:
        return "missing"
    if isinstance(value, bool | int | float):
        return f"{value}"[:40]
    if isinstance(value, str):
        return "a text"
    return "an array" if isinstance(value, list) else "an object"
