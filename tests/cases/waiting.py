"""Waiting in tests: until something is so, never for a time."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
HANGS_AFTER_SECONDS = 300.0


def eventually(
    look: Callable[[], T],
    what: str | Callable[[], object] = "it did not happen in time",
    *,
    seconds: float = HANGS_AFTER_SECONDS,
    every: float = 0.01,
) -> T:
    """Return the first thing that `look` finds and that counts as true; AssertionError with `what` after so long."""
    until = time.monotonic() + seconds
    while not (value := look()):
        assert time.monotonic() < until, what() if callable(what) else what
        time.sleep(every)
    return value
