"""JSONL files, line by line: every error names the file, the line and what was found there."""

import difflib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from charter.errors import DataError


@dataclass(frozen=True, kw_only=True)
class Row:
    """One JSON object of a file, and the place it stands at."""

    path: Path
    line: int
    value: dict[str, Any]

    @property
    def id(self) -> str:
        """The row's own `id`, or its line number: no path and no file name, so that copies have the same ids."""
        found = self.value.get("id")
        if found is None:
            return f"row-{self.line:06d}"
        if isinstance(found, bool) or not isinstance(found, str | int) or found == "":
            self.refuse(f"`id` must be a text or a whole number, found {json_kind(found)}")
        if not is_unicode(str(found)):
            self.refuse("`id` holds half of a surrogate pair, which is not a character")
        return str(found)

    def refuse(self, message: str) -> NoReturn:
        """Raise a `DataError` about this row."""
        raise DataError(f"{self.path}:{self.line}: {message}")


def read_rows(path: Path) -> Iterator[Row]:
    """The objects of a JSONL file, one per line; blank lines are skipped."""
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                text = _decode(path, number, line)
                if text.strip():
                    yield Row(path=path, line=number, value=_parse(path, number, text))
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; {_what_would_work(path)}") from None
    except IsADirectoryError:
        raise DataError(f"{path} is a directory; name one JSONL file in it") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None


def json_kind(value: object) -> str:
    """What a JSON value is, in words."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case int() | float():
            return f"the number {value}"
        case str():
            return "an empty text" if not value.strip() else "a text"
        case list():
            return "an empty list" if not value else "a list"
        case _:
            return "an object"


def is_unicode(text: str) -> bool:
    """Whether a text can be written as UTF-8; JSON's escapes can also spell halves of characters."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def _decode(path: Path, number: int, line: bytes) -> str:
    try:
        return line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        message = f"not UTF-8 text (byte {error.start + 1} of the line is 0x{line[error.start]:02x})"
        raise DataError(f"{path}:{number}: {message}; save the file as UTF-8") from None


def _parse(path: Path, number: int, text: str) -> dict[str, Any]:
    def refuse_constant(name: str) -> NoReturn:
        raise DataError(f"{path}:{number}: {name} is not a JSON value; leave the field out or give a number")

    try:
        value = json.loads(text, parse_constant=refuse_constant)
    except json.JSONDecodeError as error:
        hint = "; the file looks like one JSON array, write one object per line" if text.lstrip()[0] == "[" else ""
        where = f"{path}:{number}: not valid JSON: {error.msg} at column {error.colno}"
        raise DataError(where + hint) from None
    except (RecursionError, ValueError):
        raise DataError(f"{path}:{number}: the JSON is nested too deeply or holds a number too long") from None
    if not isinstance(value, dict):
        raise DataError(f"{path}:{number}: expected a JSON object ({{...}}), found {json_kind(value)}")
    return value


def _what_would_work(path: Path) -> str:
    if not path.parent.is_dir():
        return f"its directory {path.parent} does not exist either; correct `path` (relative to charter.yaml)"
    names = [item.name for item in path.parent.iterdir() if item.suffix == ".jsonl"]
    near = difflib.get_close_matches(path.name, names, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    hint = f"there are {', '.join(sorted(names)[:5])}" if names else "put the JSONL file there"
    return f"{hint}, or correct `path` (relative to charter.yaml)"
