"""Whether checkpoints are written while training waits or in the background: measured, since hosts differ.

A save in the background still copies the state first, and slows the work beside it where processors are busy. What it
costs is both together, in seconds: the time that `save` took, and how much longer the parts beside it took than usual.
"""

import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from charter.errors import UsageError

Mode = Literal["sync", "async"]
VARIABLE = "CHARTER_SAVE"
TRIALS = 3
"""Saves of each mode before one is chosen."""
WORTH_SHARE = 0.6
"""A save in the background must cost at most this share of a plain one: it is durable later, and holds a copy."""


@dataclass
class SaveMode:
    """Tries both modes in turn, then stays with the better one; `CHARTER_SAVE` decides without trying."""

    asked: str = field(default_factory=lambda: os.environ.get(VARIABLE, "auto"))
    sync_seconds: list[float] = field(default_factory=list)
    async_seconds: list[float] = field(default_factory=list)
    chosen: Mode | None = None
    _usual: dict[int, list[float]] = field(default_factory=dict)
    """Seconds of parts with nothing in the background, by their number in the step."""
    _beside: list[tuple[int, float]] = field(default_factory=list)
    """Parts beside the save in the background: number, seconds."""
    _stood_still: float | None = None
    """Seconds of the last background save itself, until what it slowed is known."""

    def __post_init__(self) -> None:
        if self.asked not in ("sync", "async", "auto"):
            raise UsageError(f"{VARIABLE}={self.asked} is not known; use sync, async or auto")
        if self.asked == "sync":
            self.chosen = "sync"
        elif self.asked == "async":
            self.chosen = "async"

    def next(self) -> Mode:
        """How the next checkpoint is written."""
        self._settle_last()
        if self.chosen is None and len(self.sync_seconds) >= TRIALS and len(self.async_seconds) >= TRIALS:
            self.chosen = choose(self.sync_seconds, self.async_seconds)
        if self.chosen is not None:
            return self.chosen
        return "sync" if len(self.sync_seconds) <= len(self.async_seconds) else "async"

    def saved(self, mode: Mode, seconds: float) -> None:
        """A save took so long until training could go on."""
        if mode == "sync":
            self.sync_seconds.append(seconds)
        else:
            self._stood_still = seconds

    def waited(self, seconds: float) -> None:
        """Training stood still until the save in the background was done."""
        if self._stood_still is not None:
            self._stood_still += seconds

    def worked(self, part: int, seconds: float, *, beside_save: bool) -> None:
        """A part of a step took so long, with or without a save in the background."""
        if self.chosen is not None:
            return
        if beside_save:
            self._beside.append((part, seconds))
        else:
            self._usual.setdefault(part, []).append(seconds)

    def describe(self) -> str:
        """The choice and what it rests on, in one line."""
        waits, beside = (statistics.median(found) for found in (self.sync_seconds, self.async_seconds))
        return (
            f"checkpoints are written {'in the background' if self.chosen == 'async' else 'while training waits'}: "
            f"one costs {waits:.3g} s of training when it waits, {beside:.3g} s in the background"
        )

    def _settle_last(self) -> None:
        if self._stood_still is not None:
            self.async_seconds.append(self._stood_still + slow_down(self._beside, self._usual))
        self._stood_still, self._beside = None, []


def choose(sync_seconds: Sequence[float], async_seconds: Sequence[float]) -> Mode:
    """The background only where it clearly pays, by medians.

    >>> choose([1.0, 1.2], [0.5, 0.5]), choose([1.0, 1.2], [0.9, 0.9])
    ('async', 'sync')
    """
    return "async" if statistics.median(async_seconds) <= WORTH_SHARE * statistics.median(sync_seconds) else "sync"


def slow_down(beside: Sequence[tuple[int, float]], usual: dict[int, list[float]]) -> float:
    """Seconds that the parts beside a save took longer than such parts usually do, never negative.

    >>> slow_down([(0, 1.5), (0, 1.25)], {0: [1.0, 1.0, 9.0]})
    0.75
    """
    return max(0.0, sum(seconds - statistics.median(usual[part]) for part, seconds in beside if part in usual))
