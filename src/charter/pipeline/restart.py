"""Whether a stage that fell over is started again: pure, from how its attempts ended."""

from collections.abc import Sequence
from dataclasses import dataclass

MAX_ATTEMPTS = 20
MAX_RESTARTS_WITHOUT_PROGRESS = 3
"""Kills without a new checkpoint between them; the default of NVIDIA's resiliency extension
(`max_no_progress_restarts`)."""
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.25, 30.0
PERMANENT = frozenset({2, 3, 4, 7, 8})
"""Exit codes that another attempt would only repeat: configuration, budget, a missing tool, bad data."""


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How one attempt ended without finishing its stage."""

    exit_code: int
    """Minus the signal's number for a killed process."""
    step: int
    """The last step it reported."""
    checkpoint_step: int
    out_of_memory: bool = False
    """The kernel killed it for memory."""

    @property
    def was_killed(self) -> bool:
        """Ended from outside: by a signal, or stopped at a safe point on somebody's request."""
        return self.exit_code < 0 or self.exit_code in (6, 137, 143)


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What to do next, and why."""

    restart: bool
    wait_seconds: float
    reason: str


def decide(endings: Sequence[Ending]) -> Decision:
    """Restart or give up, from all endings of this supervisor's attempts, the last one last.

    An error is tried once more, in case it came from outside, and given up when it comes back at the same
    step. Kills are survived as long as checkpoints advance. Running out of memory is not tried a third time.
    """
    last, earlier = endings[-1], endings[:-1]
    if last.exit_code in PERMANENT:
        return _stop("another attempt would end the same way")
    if len(endings) >= MAX_ATTEMPTS:
        return _stop(f"{MAX_ATTEMPTS} attempts were made")
    if last.out_of_memory and any(ending.out_of_memory for ending in earlier):
        return _stop("out of memory twice; use a smaller micro_batch, recompute: full, or a larger machine")
    if not last.was_killed and any(not ending.was_killed and ending.step == last.step for ending in earlier):
        return _stop(f"failed twice at step {last.step}")
    stuck = _without_progress(endings)
    if stuck > MAX_RESTARTS_WITHOUT_PROGRESS:
        return _stop(f"{stuck} attempts ended without a new checkpoint after step {last.checkpoint_step}")
    wait = min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2 ** (stuck - 1))
    return Decision(restart=True, wait_seconds=wait, reason=f"continues from step {last.checkpoint_step}")


def _stop(reason: str) -> Decision:
    return Decision(restart=False, wait_seconds=0.0, reason=reason)


def _without_progress(endings: Sequence[Ending]) -> int:
    """How many of the last attempts ended with the same newest checkpoint."""
    count = 0
    for ending in reversed(endings):
        if ending.checkpoint_step != endings[-1].checkpoint_step:
            break
        count += 1
    return count
