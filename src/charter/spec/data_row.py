"""One row of a data set before anything is believed of it, and what becomes of rows that cannot be read."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn

from charter.errors import DataError

REASONS_KEPT = 5
"""How many of the rows left out are told one by one."""


class BadRowError(DataError):
    """One row cannot be read; the rows around it can."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One object of a data set, and the place it stands at."""

    where: str
    """For messages: `data.jsonl:7`, `data.parquet: row group 0, row 6`, `shard.tar: sample 000007`."""
    number: int
    """From 1, over all files of the data set; of JSONL, the line."""
    value: dict[str, Any]

    @property
    def id(self) -> str:
        """The row's own `id`, or its number: no path and no file name, so that copies have the same ids."""
        found = self.value.get("id")
        if found is None:
            return f"row-{self.number:06d}"
        if isinstance(found, bool) or not isinstance(found, str | int) or found == "":
            self.refuse(f"`id` must be a text or a whole number, found {json_kind(found)}")
        if not is_unicode(str(found)):
            self.refuse("`id` holds half of a surrogate pair, which is not a character")
        return str(found)

    def refuse(self, message: str) -> NoReturn:
        """Raise a `DataError` about this row."""
        raise BadRowError(f"{self.where}: {message}")


@dataclass
class SkippedRows:
    """The rows that were left out: how many, and why the first of them."""

    count: int = 0
    reasons: list[str] = field(default_factory=list)

    def take(self, error: BadRowError, policy: Literal["fail", "skip"]) -> None:
        """Deal with a bad row as `on_bad_row` says: raise its error, or count it."""
        if policy == "fail":
            raise error
        self.count += 1
        if len(self.reasons) < REASONS_KEPT:
            self.reasons.append(str(error))

    def lines(self) -> list[str]:
        """What a log says of them: nothing when there are none."""
        if not self.count:
            return []
        more = self.count - len(self.reasons)
        lines = [f"{self.count} bad rows were left out (on_bad_row: skip)", *(f"  {item}" for item in self.reasons)]
        return [*lines, f"  and {more} more"] if more else lines

    def metrics(self) -> dict[str, float]:
        """What the metrics of a stage say of them: nothing when there are none."""
        return {"skipped_rows": float(self.count)} if self.count else {}


Bad = Callable[[BadRowError], None]
"""What a reader of a format calls for a row that it cannot make; it raises, or the reader goes on."""


def parse_object(text: str, where: str) -> dict[str, Any]:
    """A JSON object, read strictly."""
    value = parse_json(text, where)
    if not isinstance(value, dict):
        raise BadRowError(f"{where}: expected a JSON object ({{...}}), found {json_kind(value)}")
    return value


def parse_json(text: str, where: str) -> Any:
    """A JSON value, read strictly: refused is what is not JSON (NaN too), a key that is given twice, and what a parser
    cannot hold.
    """

    def refuse_constant(name: str) -> NoReturn:
        raise BadRowError(f"{where}: {name} is not a JSON value; leave the field out or give a number")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise BadRowError(f"{where}: the key {twice[:60]!r} is given twice; keep one")
        return found

    try:
        return json.loads(text, parse_constant=refuse_constant, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        hint = "; the file looks like one JSON array, write one object per line" if text.lstrip()[:1] == "[" else ""
        raise BadRowError(f"{where}: not valid JSON: {error.msg} at column {error.colno}{hint}") from None
    except (RecursionError, ValueError):
        raise BadRowError(f"{where}: the JSON is nested too deeply or holds a number too long") from None


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
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
