"""Whether an allocation is idle, from what is known of it: nobody is told to give back what cannot be seen. Pure."""

from dataclasses import dataclass

DEFAULT_BUSY_SHARE = 0.05
"""Of the time: accelerators that do less than this over a window do nothing (judgement; skypilot-org/skypilot#10628
asks for a threshold like it)."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What is known of an allocation over a window."""

    seconds_without_progress: float
    """Since its step or one of its counters last grew, or since it began."""
    gpu_activity: float | None
    """Mean share of its accelerators that worked over the window; None where that is not metered."""
    no_process: bool | None
    """Whether none of its processes lived in the window; None where nobody looked."""


@dataclass(frozen=True, kw_only=True)
class IdleVerdict:
    """Whether it is idle, and why or why not."""

    idle: bool
    reason: str


def idle_verdict(evidence: Evidence, *, window_seconds: float, busy_share: float = DEFAULT_BUSY_SHARE) -> IdleVerdict:
    """Idle: no progress for the window, and accelerators below `busy_share`, or no process at all.

    What is unknown counts as active. Processors never decide: a stage that waits for a slow disk or a server uses
    none, and one that hangs in a loop uses all.

    >>> stuck = Evidence(seconds_without_progress=3600, gpu_activity=0.01, no_process=False)
    >>> idle_verdict(stuck, window_seconds=1800).reason
    'no progress for 60.0 min, and its accelerators work 1 % of the time'
    >>> idle_verdict(Evidence(seconds_without_progress=3600, gpu_activity=None, no_process=None),
    ...              window_seconds=1800).idle
    False
    """
    since = evidence.seconds_without_progress
    if since < window_seconds:
        return IdleVerdict(idle=False, reason="it makes progress")
    said = f"no progress for {since / 60:.1f} min"
    if evidence.no_process:
        return IdleVerdict(idle=True, reason=f"{said}, and no process of it lives")
    if evidence.gpu_activity is None:
        return IdleVerdict(idle=False, reason=f"{said}; what its accelerators do is not known, so it counts as active")
    share = f"its accelerators work {100 * evidence.gpu_activity:.0f} % of the time"
    if evidence.gpu_activity < busy_share:
        return IdleVerdict(idle=True, reason=f"{said}, and {share}")
    return IdleVerdict(idle=False, reason=f"{said}, but {share}")
