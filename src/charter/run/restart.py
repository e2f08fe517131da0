"""Decision to start a stage that fell over again: pure, from how its attempts ended."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from charter.artifacts.checkpoints import Position

FailureClass = Literal[
    "lost",
    "crashed",
    "hung",
    "timeout",
    "out_of_memory",
    "not_finite",
    "disk_full",
    "stopped",
    "error",
    "begin_again",
    "preempted",
    "time_limit",
    "permanent",
]
"""Why an attempt did not finish its stage:

- `lost`: killed from outside (SIGKILL, a lost machine), or it lost another of its processes;
- `crashed`: by a signal of its own making (SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL);
- `hung`: no sign of life, ended by the supervisor; `timeout`: ran longer than its `timeout`;
- `out_of_memory`: of the machine (killed by the kernel) or of an accelerator;
- `not_finite`: the loss is not a number, or it diverged;
- `begin_again`: it went back to before its first checkpoint, around what made it diverge;
- `preempted`: its scheduler wanted the place for another job; `time_limit`: its job had run as long as it may;
- `stopped`: at a safe point on request, by the run or by whoever takes the machine away;
- `error`: any other failure; `permanent`: one that another attempt would only repeat.
"""
MAX_RESTARTS_WITHOUT_PROGRESS = 3
"""Endings without a new checkpoint between them; the default of NVIDIA's resiliency extension
(`max_no_progress_restarts`)."""
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.25, 30.0
NEVER_AGAIN = {
    "permanent": "another attempt would end the same way",
    "not_finite": "the same steps would diverge again",
    "disk_full": "another attempt would find no space either",
    "stopped": "it was asked to stop",
}
TWICE_AT_A_STEP = frozenset({"error", "crashed", "hung"})
"""What is given up when it comes back at the same step; it comes from the work then, not from outside."""
ITS_OWN_FAULT = TWICE_AT_A_STEP | {"out_of_memory"}
"""What may come from the work, and is tried once more."""


@dataclass(frozen=True, kw_only=True)
class Ending:
    """End of one attempt that did not finish its stage."""

    failure: FailureClass
    exit_code: int
    """Minus the signal's number for a killed process."""
    step: int
    """The last step it reported."""
    checkpoint: Position
    """The newest one."""


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Next step, and its reason."""

    restart: bool
    wait_seconds: float
    reason: str


def decide(endings: Sequence[Ending]) -> Decision:
    """Restart or give up, from all endings of this supervisor's attempts, the last one last.

    An error is tried once more, in case it came from outside, and given up when it comes back at the same
    step. Kills are survived as long as checkpoints advance. Running out of memory is not tried a third time.
    """
    last, earlier = endings[-1], endings[:-1]
    if last.failure in NEVER_AGAIN:
        return _stop(NEVER_AGAIN[last.failure])
    if last.failure == "out_of_memory" and any(ending.failure == last.failure for ending in earlier):
        return _stop("out of memory twice; use a smaller micro_batch, recompute: full, or a larger machine")
    if last.failure in TWICE_AT_A_STEP and any(_is_the_same(ending, last) for ending in earlier):
        return _stop(f"{_WORDS.get(last.failure, 'failed')} twice at step {last.step}")
    stuck = _without_progress(endings)
    if stuck > MAX_RESTARTS_WITHOUT_PROGRESS:
        return _stop(f"{stuck} attempts ended without a new checkpoint after step {last.checkpoint}")
    wait = min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2 ** (stuck - 1))
    return Decision(restart=True, wait_seconds=wait, reason=f"continues from step {last.checkpoint}")


_WORDS = {"crashed": "crashed", "hung": "hung"}


def _is_the_same(ending: Ending, other: Ending) -> bool:
    """Return True if two attempts ended alike at the same step; a hang is only known to the last logged step."""
    alike = (ending.failure, ending.step) == (other.failure, other.step)
    return alike and (other.failure != "hung" or ending.checkpoint == other.checkpoint)


def _stop(reason: str) -> Decision:
    return Decision(restart=False, wait_seconds=0.0, reason=reason)


def _without_progress(endings: Sequence[Ending]) -> int:
    """Return the number of latest attempts that ended with the same newest checkpoint; preemptions do not count."""
    count = 0
    for ending in reversed(endings):
        if ending.checkpoint != endings[-1].checkpoint:
            break
        count += ending.failure != "preempted"
    return max(1, count)
