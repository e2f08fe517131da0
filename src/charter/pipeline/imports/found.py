"""A foreign run as its log tells it, whatever wrote the log: processes, steps, times."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Literal

from charter.hosted.logged import LoggedStep

Format = Literal["transformers", "trl", "verl", "openrlhf", "nemo_rl", "megatron", "mlflow"]
WARM_UP_STEPS = 2
"""Left out of the seconds of a step where there are enough others: compiling, filling caches."""


@dataclass(frozen=True, kw_only=True)
class FoundAttempt:
    """One process of a run, by the steps that it logged."""

    first_step: int
    """So many steps were finished when it began."""
    steps: tuple[LoggedStep, ...]
    seconds: float | None = None
    """Of the whole process, where the log tells."""
    started_at: float | None = None

    @property
    def last_step(self) -> int:
        """The last step that it logged."""
        return self.steps[-1].step if self.steps else self.first_step

    @property
    def tokens(self) -> int:
        """Those that it counted."""
        return sum(step.tokens or 0 for step in self.steps)


@dataclass(frozen=True, kw_only=True)
class FoundRun:
    """A run with all that is known of it."""

    format: Format
    source: str
    """Where it was read from, for people."""
    content: str
    """SHA-256 of what was read."""
    attempts: tuple[FoundAttempt, ...]
    target_step: int | None = None
    finished: bool = True
    """False where the log itself says that it failed or was stopped."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """Columns of a measurement that the log itself knows."""
    notes: tuple[str, ...] = ()
    """What a reader must know of how it was read."""

    @property
    def last_step(self) -> int:
        """The furthest step."""
        return max(attempt.last_step for attempt in self.attempts)

    @property
    def is_done(self) -> bool:
        """Whether it reached the steps that it was started for; a log that does not tell them counts as finished."""
        return self.finished and (self.target_step is None or self.last_step >= self.target_step)

    @property
    def identity(self) -> str:
        """The hash of its first step as it was logged: it stays when the log grows, and when the file moves."""
        first = next((step for attempt in self.attempts for step in attempt.steps), None)
        told = None if first is None else [first.step, dict(sorted(first.metrics.items())), first.tokens, first.time]
        return hashlib.sha256(json.dumps([self.format, told]).encode()).hexdigest()


def attempts_of(steps: Iterable[LoggedStep]) -> tuple[FoundAttempt, ...]:
    """Steps divided into processes: one that is not above the step before it was logged by a resumed run."""
    groups: list[list[LoggedStep]] = []
    for step in steps:
        if not groups or step.step <= groups[-1][-1].step:
            groups.append([])
        groups[-1].append(step)
    return tuple(_attempt(group) for group in groups)


def _attempt(steps: Sequence[LoggedStep]) -> FoundAttempt:
    gap = round(median(late.step - early.step for early, late in pairwise(steps))) if len(steps) > 1 else 1
    first = max(0, steps[0].step - gap)
    clocks = [step.time for step in steps if step.time is not None]
    if len(clocks) == len(steps):
        before = _seconds_before(steps, gap)
        return FoundAttempt(
            first_step=first, steps=tuple(steps), seconds=clocks[-1] - clocks[0] + before, started_at=clocks[0] - before
        )
    return FoundAttempt(first_step=first, steps=tuple(steps), seconds=summed_seconds(first, steps))


def summed_seconds(first_step: int, steps: Sequence[LoggedStep]) -> float | None:
    """The time of all steps by that of each logged one, which stands for those since the line before it."""
    ends = (first_step, *(step.step for step in steps))
    spent = [(step.seconds, end - before) for step, (before, end) in zip(steps, pairwise(ends), strict=True)]
    known = [seconds * count for seconds, count in spent if seconds is not None]
    return sum(known) if known and len(known) == len(spent) else None


def _seconds_before(steps: Sequence[LoggedStep], gap: int) -> float:
    """What the steps of the first line took: as it tells, else as long as those of the others."""
    if steps[0].seconds is not None:
        return steps[0].seconds * gap
    gaps = [(late.time or 0.0) - (early.time or 0.0) for early, late in pairwise(steps)]
    return median(gaps) if gaps else 0.0


def seconds_per_step(run: FoundRun) -> tuple[float, str] | None:
    """Seconds of one optimizer step (of a rollout, in reinforcement learning), and how they were found."""
    told, between = [], []
    for attempt in run.attempts:
        own = [step.seconds for step in attempt.steps if step.seconds is not None]
        told += own[WARM_UP_STEPS:] if len(own) > 2 * WARM_UP_STEPS else own
        clocks = [(step.step, step.time) for step in attempt.steps if step.time is not None]
        gaps = [(end - start) / (late - early) for (early, start), (late, end) in pairwise(clocks)]
        between += gaps[1:] if len(gaps) > 2 * WARM_UP_STEPS else gaps
    for seconds, how in ((told, "median of the logged step times"), (between, "median between logged steps")):
        if seconds:
            return median(seconds), f"{how}, {len(seconds)} of them"
    timed = [(item.seconds, item.last_step - item.first_step) for item in run.attempts if item.seconds is not None]
    steps = sum(count for _, count in timed)
    if steps <= 0:
        return None
    return sum(seconds for seconds, _ in timed) / steps, f"mean over {steps} steps, start and checkpoints included"
