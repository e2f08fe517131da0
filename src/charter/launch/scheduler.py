"""Protocol of a scheduler: five thin verbs over texts that are rendered purely."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from charter.launch.job import StageJob

Phase = Literal["queued", "running", "ended", "unknown"]
Cause = Literal["", "done", "failed", "cancelled", "preempted", "node_lost", "time_limit", "out_of_memory"]
"""Why it ended, or why its last start did: a scheduler's own words are kept beside it."""


@dataclass(frozen=True, kw_only=True)
class JobState:
    """State of a job, as its scheduler says."""

    phase: Phase
    cause: Cause = ""
    exit_code: int | None = None
    """Of the job, or of the first task that failed; minus the number of a signal."""
    restarts: int = 0
    """How often the scheduler itself has started it again."""
    nodes: tuple[str, ...] = ()
    reason: str = ""
    """The scheduler's own word: why it waits (`Resources`, `BeginTime`), or how it ended (`NODE_FAIL`)."""
    tasks: Mapping[int, "JobState"] | None = None
    """Of an array: every shard's own state, as far as the scheduler still knows it."""


@dataclass(frozen=True, kw_only=True)
class JobAttempt:
    """One start of a job (of one shard of it) as the scheduler's own records have it: what it is billed for."""

    job_id: str
    shard: int | None
    restart: int
    state: str
    """The scheduler's own word: `COMPLETED`, `PREEMPTED`, `NODE_FAIL`."""
    started_at: float
    """Unix seconds."""
    ended_at: float | None
    nodes: tuple[str, ...]
    accelerators: int
    cpus: int

    @property
    def seconds(self) -> float | None:
        """Return the seconds for which it was allocated; None while it runs."""
        return None if self.ended_at is None else max(0.0, self.ended_at - self.started_at)


class Scheduler(Protocol):
    """Slurm, Ray, Kubernetes, SkyPilot, or keepers of this machine."""

    name: str
    """`slurm`, `ray`, `kubernetes`, `skypilot`, `subprocess`."""

    def render(self, job: StageJob) -> str:
        """The text that is submitted; pure."""

    def submit(self, job: StageJob) -> str:
        """Submit, and say the scheduler's number of the job: one call of it, whatever the number of shards."""

    def find(self, name: str) -> str | None:
        """The number of a job that was submitted under a name, when its submitter died before it was told."""

    def poll(self, job_ids: Sequence[str]) -> Mapping[str, JobState]:
        """Return the states of jobs, by one call of the scheduler. A job it no longer knows is `unknown`."""

    def cancel(self, job_id: str) -> None:
        """End a job now; nothing when it has ended."""

    def release(self, job_id: str) -> None:
        """Let a job that the scheduler has put back into its queue start at once, where the scheduler makes it wait."""

    def logs(self, job_id: str) -> str:
        """Return the output that the scheduler has kept."""

    def attempts(self, job_id: str) -> tuple[JobAttempt, ...]:
        """Every start of the job by the scheduler's own records, oldest first; empty where it keeps none."""

    def close(self) -> None:
        """Give back what this client holds; jobs go on."""
