"""How jobs stand, asked of the controller seldom: one call for all of them, and none before its time has come.

A controller that does not answer is asked ever less often, and its silence says nothing about jobs: they stand as they
did.
"""

import time
from collections.abc import Callable, Mapping, Sequence

from charter.launch.job import StageJob
from charter.launch.scheduler import JobState
from charter.launch.slurm.accounts import Accounts
from charter.launch.slurm.commands import SlurmCommands, SlurmRefusedError, SlurmUnreachableError, unknown_job
from charter.launch.slurm.queue import SQUEUE_FORMAT, Row, by_job, rows_of
from charter.launch.slurm.watched import LAG_SECONDS, Watched, submitted, take_records, take_rows

LONGEST_SECONDS = 60.0
"""Between two questions to a controller that does not answer."""
SILENT = JobState(phase="queued", reason="Slurm does not answer")
"""A job of which nothing is known yet: it may well run."""


class Watch:
    """The jobs of one supervisor."""

    def __init__(
        self,
        commands: SlurmCommands,
        accounts: Accounts,
        *,
        seconds_between: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._commands, self._accounts = commands, accounts
        self._between, self._clock = seconds_between, clock
        self._next, self._pause = float("-inf"), seconds_between
        self._jobs: dict[str, Watched] = {}
        self.rounds = 0
        """How often the controller has answered."""

    def submitted(self, job_id: str, job: StageJob) -> None:
        """Watch a job that was just taken."""
        self._jobs[job_id] = submitted(job.shards, stop_before_seconds=job.stop_before_seconds)

    def look(self, job_ids: Sequence[str]) -> dict[str, JobState]:
        """How jobs stand now, or stood when the controller could last be asked."""
        watched = {job_id: self._jobs.setdefault(job_id, Watched()) for job_id in job_ids}
        unsettled = {job_id: job for job_id, job in watched.items() if not job.is_over}
        if unsettled and self._is_due(any(not job.was_asked for job in unsettled.values())):
            self._ask(unsettled)
        return {job_id: job.state if job.was_asked else SILENT for job_id, job in watched.items()}

    def known(self, job_id: str) -> JobState | None:
        """How a job stood last; None for one that was never asked about."""
        job = self._jobs.get(job_id)
        return job.state if job is not None and job.was_asked else None

    def _is_due(self, has_new_jobs: bool) -> bool:
        """Whether the controller may be asked; about a job of an earlier supervisor at once, if it answers at all."""
        return self._clock() >= self._next or (has_new_jobs and self._pause == self._between)

    def _ask(self, jobs: Mapping[str, Watched]) -> None:
        try:
            rows = by_job(self._queue(list(jobs)))
        except SlurmUnreachableError:
            self._pause = min(LONGEST_SECONDS, 2 * self._pause)
            self._next = self._clock() + self._pause
            return
        now = self._clock()
        for job_id, job in jobs.items():
            take_rows(job, rows.get(job_id, []))
            if not job.needs_records:
                job.open_since = None
            elif job.open_since is None:
                job.open_since = now
        self._ask_records({job_id: job for job_id, job in jobs.items() if job.needs_records})
        self.rounds += 1
        self._pause = self._between
        self._next = self._clock() + self._pause

    def _ask_records(self, jobs: Mapping[str, Watched]) -> None:
        """Records that cannot be had now are asked for again in the next round."""
        try:
            records = self._accounts.records(list(jobs))
        except (SlurmUnreachableError, SlurmRefusedError):
            return
        for job_id, job in jobs.items():
            are_late = job.open_since is not None and self._clock() - job.open_since >= LAG_SECONDS
            take_records(job, [record for record in records if record.job_id == job_id], are_late=are_late)

    def _queue(self, job_ids: Sequence[str]) -> list[Row]:
        question = ("squeue", "-h", "-t", "all", "-j", ",".join(job_ids), "-O", SQUEUE_FORMAT)
        try:
            return list(rows_of(self._commands.run(*question)))
        except SlurmRefusedError as error:
            if unknown_job(error):
                return []
            raise
