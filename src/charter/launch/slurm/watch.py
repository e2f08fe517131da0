"""Watch of jobs that asks the controller seldom: one call for all of them, and none before its time has come.

A controller that does not answer is asked ever less often, and its silence says nothing about jobs: they stand as they
did.
"""

import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from charter.launch.job import StageJob
from charter.launch.scheduler import Cause, JobState
from charter.launch.slurm.commands import SlurmCommands, SlurmRefusedError, SlurmUnreachableError, unknown_job
from charter.launch.slurm.queue import SQUEUE_FORMAT, QueueRow, array_state, by_job, rows_of
from charter.launch.slurm.records import AccountingRecord, Accounts, attempts_of, latest
from charter.launch.slurm.states import INTERRUPTED_EXIT, cause_of, phase_of

ROUNDS = 3
"""So many answers must lack a job before it counts as unknown, and so often the records are asked why a start has
ended: databases lag behind the controller."""
LAG_SECONDS = 10.0
"""And for at least so long, where answers follow quickly upon one another."""
ASKED_EARLY = -int(signal.SIGTERM)
"""Of an agent that was asked to stop before it could hear it."""
UNKNOWN = JobState(phase="unknown")
ENDING = "Completing"
"""Why a job waits whose last start has not quite ended yet; until then it cannot be let go."""
SLACK_SECONDS = 60.0
"""Slurm may send a signal so much earlier than it was told to (`man sbatch`, --signal)."""
WAITING = JobState(phase="queued")
Task = int | None
"""A task of an array; None for a job that is no array."""


@dataclass(kw_only=True)
class WatchedJob:
    """One job."""

    tasks: dict[Task, JobState] = field(default_factory=dict)
    was_asked: bool = False
    gone: set[Task] = field(default_factory=set)
    """What has not ended and was not in the last answer of the queue."""
    missed: int = 0
    """Answers in a row in which something was gone."""
    unexplained: dict[Task, int] = field(default_factory=dict)
    """Started again, nobody knows yet why; and how often the records are still asked."""
    open_since: float | None = None
    """When the queue first left something open, by the clock of whoever asks; None while it does not."""
    stop_before_seconds: float = 120.0
    """It was to be asked to stop so long before its time limit."""
    incomplete: bool = False
    """Tasks of the array may have ended so long ago that only the records have them."""

    @property
    def state(self) -> JobState:
        """Return the state of the job."""
        if None in self.tasks or not self.tasks:
            return self.tasks.get(None, UNKNOWN)
        return array_state({task: state for task, state in self.tasks.items() if task is not None})

    @property
    def is_over(self) -> bool:
        """Return True if nothing can change any more."""
        return bool(self.tasks) and all(state.phase == "ended" for state in self.tasks.values())

    @property
    def needs_records(self) -> bool:
        """Return True if the queue's answer leaves something open."""
        return bool(self.gone or self.unexplained or self.incomplete)


def submitted(shards: int, *, stop_before_seconds: float) -> WatchedJob:
    """A job that was just taken waits in the queue."""
    tasks: Iterable[Task] = range(shards) if shards > 1 else (None,)
    return WatchedJob(tasks=dict.fromkeys(tasks, WAITING), was_asked=True, stop_before_seconds=stop_before_seconds)


def take_rows(job: WatchedJob, rows: Sequence[QueueRow]) -> None:
    """Take in what the queue says of a job; what it does not say stays, and is gone."""
    seen: dict[Task, JobState] = {}
    for row in rows:
        for task in (None,) if row.tasks is None else row.tasks:
            seen[task] = job.tasks[task] = _next_state(job, task, row)
    if not job.was_asked and None not in seen:
        job.incomplete = bool(seen)
    job.was_asked = True
    job.gone = {task for task, state in job.tasks.items() if state.phase != "ended" and task not in seen}
    if not job.tasks:
        job.gone = {None}
    job.missed = job.missed + 1 if job.gone else 0


def _next_state(job: WatchedJob, task: Task, row: QueueRow) -> JobState:
    """Return a task's state by a row of the queue, which does not say why an earlier start of it has ended."""
    state, before = row.state, job.tasks.get(task, UNKNOWN)
    if state.exit_code in (INTERRUPTED_EXIT, ASKED_EARLY) and state.cause in ("failed", "preempted"):
        left = inf if row.seconds_left is None else row.seconds_left
        near = left <= job.stop_before_seconds + SLACK_SECONDS
        return replace(state, cause="time_limit") if near else state
    if state.phase == "ended" or not state.restarts:
        return state
    if before.restarts != state.restarts:
        job.unexplained[task] = ROUNDS
    else:
        state = replace(state, cause=before.cause)
    is_next_start = before.restarts < state.restarts and task in job.tasks
    if row.is_completing and (is_next_start or before.reason == ENDING):
        return replace(state, phase="queued", reason=ENDING)
    return state


def take_records(job: WatchedJob, records: Sequence[AccountingRecord], *, are_late: bool = True) -> None:
    """Take in what the records say of what is gone, and of starts that were followed by another.

    Without `are_late`, what they lack may still come.
    """
    for task, starts in _by_task(records).items():
        if task in job.gone or task not in job.tasks:
            if (ended := ended_state(starts)) is not None:
                job.tasks[task] = ended
                job.gone -= {task, None}
        elif task in job.unexplained and (cause := why_started_again(starts)):
            job.tasks[task] = replace(job.tasks[task], cause=cause)
            del job.unexplained[task]
    job.incomplete = False
    if not are_late:
        return
    job.unexplained = {task: rounds - 1 for task, rounds in job.unexplained.items() if rounds > 1}
    if job.missed >= ROUNDS:
        job.tasks |= dict.fromkeys(job.gone, UNKNOWN)


def ended_state(starts: Sequence[AccountingRecord]) -> JobState | None:
    """Return the final state of a job by the records of its starts; None while one of them has not ended."""
    last = latest(starts)
    if last is None or any(phase_of(start.state) != "ended" for start in starts):
        return None
    return JobState(
        phase="ended",
        cause=cause_of(last.state, exit_code=last.exit_code),
        exit_code=last.exit_code,
        restarts=max(0, len(attempts_of(starts)) - 1),
        nodes=last.nodes,
        reason=last.state,
    )


def why_started_again(starts: Sequence[AccountingRecord]) -> Cause:
    """Return why the last start that has ended did; empty where no record says so."""
    last = latest([start for start in starts if start.took_place and phase_of(start.state) == "ended"])
    return cause_of(last.state, exit_code=last.exit_code) if last is not None else ""


def _by_task(records: Sequence[AccountingRecord]) -> Mapping[Task, list[AccountingRecord]]:
    groups: dict[Task, list[AccountingRecord]] = {}
    for record in records:
        groups.setdefault(record.task, []).append(record)
    return groups


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
        self._jobs: dict[str, WatchedJob] = {}
        self.rounds = 0
        """How often the controller has answered."""

    def submitted(self, job_id: str, job: StageJob) -> None:
        """Watch a job that was just taken."""
        self._jobs[job_id] = submitted(job.shards, stop_before_seconds=job.stop_before_seconds)

    def look(self, job_ids: Sequence[str]) -> dict[str, JobState]:
        """Return the states of jobs now, or when the controller could last be asked."""
        watched = {job_id: self._jobs.setdefault(job_id, WatchedJob()) for job_id in job_ids}
        unsettled = {job_id: job for job_id, job in watched.items() if not job.is_over}
        if unsettled and self._is_due(any(not job.was_asked for job in unsettled.values())):
            self._ask(unsettled)
        return {job_id: job.state if job.was_asked else SILENT for job_id, job in watched.items()}

    def known(self, job_id: str) -> JobState | None:
        """Return the last state of a job; None for one that was never asked about."""
        job = self._jobs.get(job_id)
        return job.state if job is not None and job.was_asked else None

    def _is_due(self, has_new_jobs: bool) -> bool:
        """Return True if the controller may be asked; for a job of an earlier supervisor at once, if it answers."""
        return self._clock() >= self._next or (has_new_jobs and self._pause == self._between)

    def _ask(self, jobs: Mapping[str, WatchedJob]) -> None:
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

    def _ask_records(self, jobs: Mapping[str, WatchedJob]) -> None:
        """Records that cannot be had now are asked for again in the next round."""
        try:
            records = self._accounts.records(list(jobs))
        except (SlurmUnreachableError, SlurmRefusedError):
            return
        for job_id, job in jobs.items():
            are_late = job.open_since is not None and self._clock() - job.open_since >= LAG_SECONDS
            take_records(job, [record for record in records if record.job_id == job_id], are_late=are_late)

    def _queue(self, job_ids: Sequence[str]) -> list[QueueRow]:
        question = ("squeue", "-h", "-t", "all", "-j", ",".join(job_ids), "-O", SQUEUE_FORMAT)
        try:
            return list(rows_of(self._commands.run(*question)))
        except SlurmRefusedError as error:
            if unknown_job(error):
                return []
            raise
