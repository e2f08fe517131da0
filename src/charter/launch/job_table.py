"""The jobs of a run that an engine has now, asked about together and not too often."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from charter.artifacts.job_files import JobFiles, Submission
from charter.errors import CharterError
from charter.launch.scheduler import JobState, Scheduler

LEAST_LOOK_SECONDS, LONGEST_LOOK_SECONDS = 1.0, 15.0
"""Between two questions to an engine: what agents write into the job's files is seen sooner."""
HURRIED_LOOK_SECONDS = 0.5
"""Where its word decides what happens next."""
SLOWER = 1.3
LOST_SECONDS = 60.0
"""A job that its engine has not known for so long is lost."""


@dataclass(kw_only=True)
class LiveJob:
    """One job that has not ended, as far as is known."""

    files: JobFiles
    stage_dir: Path
    submission: Submission
    job_id: str
    restart: int = 0
    """The start that is watched."""
    state: JobState = field(default_factory=lambda: JobState(phase="queued"))
    answered: int = 0
    """How often its engine has been asked about it with success."""
    unknown_since: float | None = None
    goes_on: bool = False
    """Nobody watches it: its engine has started it again, or the supervisor that did has died."""


class JobTable:
    """All of them, and how they stand."""

    def __init__(self, scheduler: Scheduler, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._scheduler, self._clock = scheduler, clock
        self._jobs: dict[Path, LiveJob] = {}
        self._looked_at, self._every = float("-inf"), LEAST_LOOK_SECONDS
        self.trouble = ""
        """What the engine said when it could not be asked; a job is never taken for lost because of it."""

    def add(self, job: LiveJob) -> None:
        """Watch a job."""
        self._jobs[job.stage_dir] = job
        self._every = LEAST_LOOK_SECONDS

    def get(self, stage_dir: Path) -> LiveJob | None:
        """The job of a stage."""
        return self._jobs.get(stage_dir)

    def remove(self, job: LiveJob) -> None:
        """Watch it no more."""
        if self._jobs.get(job.stage_dir) is job:
            del self._jobs[job.stage_dir]

    def all(self) -> list[LiveJob]:
        """All of them."""
        return list(self._jobs.values())

    def look(self, *, hurried: bool = False) -> None:
        """Ask the engine how they stand, if it is time."""
        now = self._clock()
        if not self._jobs or now - self._looked_at < (HURRIED_LOOK_SECONDS if hurried else self._every):
            return
        self._looked_at = now
        jobs = {job.job_id: job for job in self._jobs.values()}
        try:
            states = self._scheduler.poll([*jobs])
        except CharterError as error:
            self.trouble = str(error)
            self._every = min(LONGEST_LOOK_SECONDS, self._every * 2)
            return
        self.trouble = ""
        changed = False
        for number, job in jobs.items():
            changed |= _take(job, states.get(number, JobState(phase="unknown")), now)
        self._every = LEAST_LOOK_SECONDS if changed else min(LONGEST_LOOK_SECONDS, self._every * SLOWER)


def _take(job: LiveJob, state: JobState, now: float) -> bool:
    """Take in what the engine says of one job; whether it says something new."""
    job.answered += 1
    if state.phase == "unknown":
        job.unknown_since = now if job.unknown_since is None else job.unknown_since
        if now - job.unknown_since < LOST_SECONDS:
            return False
        state = JobState(phase="ended", cause="node_lost", reason="the engine does not know the job any more")
    else:
        job.unknown_since = None
    changed, job.state = state != job.state, state
    return changed
