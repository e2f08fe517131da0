"""Accelerator time that is paid for, in five buckets that are never merged."""

from dataclasses import dataclass

from charter.errors import UsageError

BUCKETS = ("useful", "checkpoint", "lost and restart", "idle", "rework")


@dataclass(frozen=True, kw_only=True)
class ComputeBuckets:
    """One quantity (hours or usd) of accelerator time by what it was paid for."""

    useful: float
    checkpoint: float
    lost_and_restart: float
    """Work done twice after failures, restarts, and the first start of the machines."""
    idle: float
    rework: float

    @property
    def total(self) -> float:
        """All that is billed."""
        return self.useful + self.checkpoint + self.lost_and_restart + self.idle + self.rework

    @property
    def by_bucket(self) -> dict[str, float]:
        """The five by their names in a report."""
        values = (self.useful, self.checkpoint, self.lost_and_restart, self.idle, self.rework)
        return dict(zip(BUCKETS, values, strict=True))


def compute_buckets(
    *,
    useful: float,
    checkpoint: float,
    billed: float,
    waiting: float = 0.0,
    idle_share: float = 0.0,
    rework: float = 0.0,
) -> ComputeBuckets:
    """Buckets of `billed x (1 + rework) / (1 - idle)`, where `billed` is one run with its failures.

    `lost and restart = billed - useful - waiting - checkpoint`; reruns cost `rework x billed`, failures included; idle
    time is what accelerators wait for each other within a run, and `idle / (1 - idle)` of everything that ran. Any
    unit of time or money. Source: OpenCost specification v0.1 (idle = allocated - used); Daly 2006 for the losses.

    >>> found = compute_buckets(useful=90, checkpoint=4, billed=100, idle_share=0.2, rework=0.3)
    >>> found.lost_and_restart, round(found.idle, 6), round(found.rework, 6), round(found.total, 6)
    (6.0, 32.5, 30.0, 162.5)
    """
    if not 0 <= idle_share < 1 or rework < 0:
        raise UsageError(f"idle time must be a share below 1 and rework not negative; got {idle_share} and {rework}")
    worked = useful + waiting + checkpoint
    if min(useful, waiting, checkpoint) < 0 or billed < worked * (1 - 1e-9):
        raise UsageError(f"{billed} billed cannot hold {useful} useful, {waiting} waiting, {checkpoint} of checkpoints")
    ran = billed * (1 + rework)
    return ComputeBuckets(
        useful=useful,
        checkpoint=checkpoint,
        lost_and_restart=max(0.0, billed - worked),
        idle=waiting + ran * idle_share / (1 - idle_share),
        rework=billed * rework,
    )
