"""JSON from a server that is not trusted: one meaning, finite numbers, no surprises.

`json.loads` alone accepts NaN and Infinity, reads 1e400 as infinity, keeps the last of two equal keys, and fails with
RecursionError on deep nesting. Here all of these are one error.
"""

import json
import math
from typing import Any, NoReturn

MOST_DIGITS = 18
"""Of an integer: every count and time of an API fits in 64 bits."""


class StrictJsonError(ValueError):
    """A text is not JSON with one meaning; the message says why, without the text."""


def strict_loads(body: bytes) -> Any:
    """The value of a UTF-8 text of JSON.

    >>> strict_loads(b'{"a": [1, 2.5, null]}')
    {'a': [1, 2.5, None]}
    """
    try:
        return _DECODER.decode(body.decode("utf-8"))
    except StrictJsonError:
        raise
    except RecursionError:
        raise StrictJsonError("is nested too deep") from None
    except UnicodeDecodeError:
        raise StrictJsonError("is not UTF-8") from None
    except ValueError as error:
        where = f" (at character {error.pos})" if isinstance(error, json.JSONDecodeError) else ""
        raise StrictJsonError(f"is not JSON{where}") from None


def is_encodable(text: str) -> bool:
    """Return True if a text has no half of a surrogate pair, which JSON can spell but UTF-8 cannot hold."""
    return text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text)


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise StrictJsonError("has the same key twice")
    return members


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise StrictJsonError("has a number beyond all bounds")
    return value


def _int(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise StrictJsonError(f"has an integer of more than {MOST_DIGITS} digits")
    return int(text)


def _constant(name: str) -> NoReturn:
    raise StrictJsonError(f"has the number {name}")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_pairs, parse_float=_float, parse_int=_int, parse_constant=_constant, strict=True
)
