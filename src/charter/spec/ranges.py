"""Ranges of numbers in charter.yaml, with the words that say them."""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from charter.errors import Problem

Test = Callable[[float], bool]
Range = tuple[Test, str]
POSITIVE: Range = (lambda value: 0 < value < math.inf, "must be greater than 0 and finite")
NOT_NEGATIVE: Range = (lambda value: 0 <= value < math.inf, "must be 0 or more, and finite")
AT_LEAST_ONE: Range = (lambda value: 1 <= value < math.inf, "must be 1 or more")
ABOVE_ONE: Range = (lambda value: 1 < value < math.inf, "must be greater than 1 and finite")
SHARE: Range = (lambda value: 0 <= value <= 1, "must be between 0 and 1")
SHARE_BELOW_ONE: Range = (lambda value: 0 <= value < 1, "must be 0 or more and below 1")
SHARE_BELOW_HALF: Range = (lambda value: 0 <= value < 0.5, "must be 0 or more and below 0.5")
SHARE_ABOVE_ZERO: Range = (lambda value: 0 < value <= 1, "must be above 0 and at most 1")


def check_ranges(value: Any, path: str, ranges: Iterable[tuple[str, Range]]) -> Iterator[Problem]:
    """Problems of the fields that lie outside their range; fields that are not given are skipped."""
    for name, (test, words) in ranges:
        found = getattr(value, name)
        if found is not None and not test(found):
            yield Problem(message=f"{words}; found {found}", path=f"{path}.{name}" if path else name)
