"""Types that read what people write: `"14d"`, `"$25_000"`, `"80GB"`, `"150_000"`.

They are plain `Annotated` aliases, so a frozen dataclass that uses them stays a plain dataclass; pydantic
finds the marker when a file is read (`spec/load`), and nothing else needs pydantic.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import Field, dataclass, field
from typing import Annotated, Any

from charter import units
from charter.errors import Problem


@dataclass(frozen=True, eq=False)
class Reads:
    """Marks a field that `parse` reads, with the JSON Schema type and an example for editors."""

    parse: Callable[[object], Any]
    json_schema: Mapping[str, Any]

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        """The schema of the field: `parse` first, then the field's own type."""
        from pydantic_core import core_schema

        return core_schema.no_info_before_validator_function(self.parse, handler(source))

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> Any:
        """Return the schema of the values that an editor may accept for the field."""
        return dict(self.json_schema)


def _number_or_text(example: str) -> dict[str, Any]:
    return {"anyOf": [{"type": "number"}, {"type": "string"}], "examples": [example]}


Bytes = Annotated[int, Reads(units.parse_bytes, _number_or_text("80GB"))]
BytesPerSecond = Annotated[float, Reads(units.parse_bytes_per_second, _number_or_text("25Gbit/s"))]
Seconds = Annotated[float, Reads(units.parse_seconds, _number_or_text("14d"))]
Usd = Annotated[float, Reads(units.parse_usd, _number_or_text("$25_000"))]
UsdPerHour = Annotated[float, Reads(units.parse_usd_per_hour, _number_or_text("$3.50/h"))]
Count = Annotated[int, Reads(units.parse_count, _number_or_text("150_000"))]


def _names(value: object) -> object:
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


Names = Annotated[
    tuple[str, ...],
    Reads(_names, {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]
"""One name or a list of names."""

EXECUTION = "execution"


def execution(default: Any = None) -> Any:
    """A field that says where or how, not what: it never invalidates a finished stage.

    The mark is in the type (`dataclasses.field` metadata), so `artifacts/fingerprint` leaves it out by rule.
    """
    return field(default=default, metadata={EXECUTION: True})


ADDED = "added"


def added(default: Any = None) -> Any:
    """A field that came after stages were finished without it: it counts only when it differs from its default."""
    return field(default=default, metadata={ADDED: True})


def is_execution(item: "Field[Any]") -> bool:
    """Return True if a dataclass field is marked as execution."""
    return bool(item.metadata.get(EXECUTION))


Test = Callable[[float], bool]
Range = tuple[Test, str]
POSITIVE: Range = (lambda value: 0 < value < math.inf, "must be greater than 0 and finite")
NOT_NEGATIVE: Range = (lambda value: 0 <= value < math.inf, "must be 0 or more, and finite")
AT_LEAST_ONE: Range = (lambda value: 1 <= value < math.inf, "must be 1 or more")
ABOVE_ONE: Range = (lambda value: 1 < value < math.inf, "must be greater than 1 and finite")
SHARE: Range = (lambda value: 0 <= value <= 1, "must be between 0 and 1")
SHARE_BELOW_ONE: Range = (lambda value: 0 <= value < 1, "must be 0 or more and below 1")
SHARE_BETWEEN: Range = (lambda value: 0 < value < 1, "must be above 0 and below 1")
SHARE_BELOW_HALF: Range = (lambda value: 0 <= value < 0.5, "must be 0 or more and below 0.5")
SHARE_ABOVE_ZERO: Range = (lambda value: 0 < value <= 1, "must be above 0 and at most 1")


def check_ranges(value: Any, path: str, ranges: Iterable[tuple[str, Range]]) -> Iterator[Problem]:
    """Problems of the fields that lie outside their range; fields that are not given are skipped."""
    for name, (test, words) in ranges:
        number = getattr(value, name)
        if number is not None and not test(number):
            yield Problem(message=f"{words}; found {number}", path=f"{path}.{name}" if path else name)


def divisors_near(number: int, wanted: int) -> list[int]:
    """The divisors of a number next to one that is wanted: the nearest below, the nearest above.

    Looks 10,000 to either side; beyond that it names 1 and the number itself, which always divide it.

    >>> divisors_near(64, 48), divisors_near(64, 100)
    ([32, 64], [64])
    """
    below = next((k for k in range(wanted - 1, max(0, wanted - 10_000), -1) if number % k == 0), 1)
    above = next((k for k in range(wanted + 1, min(number, wanted + 10_000)) if number % k == 0), number)
    return sorted({below, above})
