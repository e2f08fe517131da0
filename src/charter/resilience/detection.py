"""How long a failure goes unnoticed, by who notices it."""

from dataclasses import dataclass

from charter.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Detection:
    """Seconds between a failure and the moment that somebody acts on it, with where the figure comes from."""

    seconds: float
    source: str


SLURM = Detection(
    seconds=300.0,
    source="Slurm: SlurmdTimeout, 300 s unless set otherwise (slurm.conf): a silent node is DOWN, its jobs are ended",
)
KUBERNETES = Detection(
    seconds=380.0,
    source="Kubernetes: node-monitor-grace-period 50 s (older releases: 40 s) + toleration of an unreachable node 300 "
    "s + grace period of the pod 30 s, all unless set otherwise",
)
NCCL = Detection(
    seconds=600.0,
    source="PyTorch: NCCL process groups time out after 10 min (kProcessGroupNCCLDefaultTimeout; pull request 110947)",
)
WATCHDOG = Detection(
    seconds=120.0,
    source="a supervisor that restarts a stage without progress after 2 min; judgement, ByteRobust reports 10 to 30 s",
)
SPOT_NOTICE = Detection(
    seconds=30.0,
    source="spot: the provider announces it (AWS 2 min, GCP 30 s before); notices are polled, 30 s is judgement",
)
BY_NAME = {"slurm": SLURM, "kubernetes": KUBERNETES, "nccl": NCCL, "watchdog": WATCHDOG}


def detection(wanted: str | float) -> Detection:
    """The delay of a name (`slurm`, `kubernetes`, `nccl`, `watchdog`), or a delay of one's own in seconds.

    These are the times of a node that falls silent or a collective that hangs; a process that crashes is seen at once,
    so they are upper values for a mixture of both. Raises `UsageError` for an unknown name.

    >>> detection("slurm").seconds, detection(45.0).seconds
    (300.0, 45.0)
    """
    if isinstance(wanted, str):
        if wanted not in BY_NAME:
            raise UsageError(f"detection {wanted!r} is not known; it is {', '.join(BY_NAME)}, or a time like 30m")
        return BY_NAME[wanted]
    return Detection(seconds=wanted, source="your own")
