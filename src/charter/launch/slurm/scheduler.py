"""The scheduler Slurm: jobs by `sbatch`, how they stand by `squeue`, what they were by `sacct`.

The controller is asked seldom: one call for all jobs, and none before its time has come. One that does not answer is
asked ever less often, and its silence says nothing about jobs: they stand as they did.
"""

import contextlib
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path

from charter.errors import UsageError
from charter.launch.job import StageJob
from charter.launch.scheduler import Cause, JobAttempt, JobState
from charter.launch.slurm.commands import (
    INTERRUPTED_EXIT,
    SlurmCommands,
    SlurmRefusedError,
    SlurmUnreachableError,
    cause_of,
    phase_of,
    refused_submission,
    unknown_job,
)
from charter.launch.slurm.queue import BEGIN_TIME, SQUEUE_FORMAT, QueueRow, array_state, by_job, rows_of, starts_of
from charter.launch.slurm.records import AccountingRecord, Accounts, attempts_of, latest, with_live
from charter.launch.slurm.render import command_environment, render, submission_environment
from charter.spec.launching import SlurmSettings

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


_SUBMITTED = re.compile(r"([0-9]+)(?:;\S*)?")
"""What `sbatch --parsable` prints; a site's own wrapper may print more around it, or nothing at all."""
SUBMISSIONS = 5
"""How often a job is submitted to a controller that does not answer, before that is the stage's failure."""
PAUSE_SECONDS = 2.0
"""Before the second try; twice as long before each further one."""
TOO_FEW = "Requested node configuration is not available"
"""Slurm's word for a job that its nodes could never run, also where only those are missing that the job leaves out."""
NO_SUCH_NODE = "Invalid node name specified"
"""Slurm's word for a node that it does not know, also where the job only leaves it out."""
SETTLE_ROUNDS, SETTLE_SECONDS = 10, 1.0
"""slurmdbd hears of an end a moment after the controller: so often, so far apart, its records are read again."""
SECONDS_AFTER_REVOKED = 2
"""A job that is let go starts so much later. A node refuses a start whose credential is of the second in which it has
revoked the last start's (slurmd's `cred_revoked` compares whole seconds), and the job counts as failed."""
SECONDS_LET_GO = 5.0
"""A held job is let go again after so long: before that it waits for the time that it was given."""


class SlurmScheduler:
    """One cluster, by its commands."""

    name = "slurm"

    def __init__(
        self,
        settings: SlurmSettings,
        *,
        environ: Mapping[str, str] | None = None,
        pause: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._environ = os.environ if environ is None else environ
        self._commands = SlurmCommands(environment=command_environment(self._environ))
        self._accounts = Accounts(self._commands)
        between = settings.seconds_between_polls
        self._watch = Watch(self._commands, self._accounts, seconds_between=between, clock=clock)
        self._pause = pause
        self._logs: dict[str, Path] = {}
        self._clock = clock
        self._to_release: dict[str, float | None] = {}

    @property
    def calls(self) -> Counter[str]:
        """Return the number of runs of each of Slurm's commands."""
        return self._commands.calls

    def render(self, job: StageJob) -> str:
        """The batch script."""
        return render(job, self._settings)

    def submit(self, job: StageJob, *, after: tuple[str, ...] = ()) -> str:
        """Submit, and say the number; `after`: jobs that must have succeeded before it starts.

        When the controller does not answer, nobody knows whether it took the job: it is looked for by its name before
        it is submitted again.
        """
        script = render(job, self._settings, after=after)
        environment = submission_environment(job, self._environ)
        for number in range(SUBMISSIONS):
            try:
                job_id = (self.find(job.name) if number else None) or self._sbatch(script, environment)
                break
            except SlurmUnreachableError:
                if number == SUBMISSIONS - 1:
                    raise
                self._pause(PAUSE_SECONDS * 2**number)
            except SlurmRefusedError as error:
                if not job.exclude_nodes or not any(words in str(error) for words in (TOO_FEW, NO_SUCH_NODE)):
                    raise self._refused(job, error) from None
                # Without the nodes that were left out there are too few of them: better to wait for one to come back.
                # Or one of them is no longer part of the cluster.
                job = replace(job, exclude_nodes=())
                script = render(job, self._settings, after=after)
        self._watch.submitted(job_id, job)
        self._logs[job_id] = job.log
        return job_id

    def find(self, name: str) -> str | None:
        """The number of a job that was submitted under a name: of those in the queue, else of those recorded."""
        queued = self._commands.run("squeue", "-h", "-t", "all", f"--name={name}", "-O", "ArrayJobID:0")
        numbers = [word for word in queued.split() if word.isdecimal()]
        return max(numbers, key=int) if numbers else self._accounts.named(name)

    def poll(self, job_ids: Sequence[str]) -> Mapping[str, JobState]:
        """Return the states of jobs, at most as old as the pause between two questions to the controller."""
        rounds = self._watch.rounds
        states = self._watch.look(job_ids)
        if self._watch.rounds != rounds:
            for job_id in sorted(self._to_release.keys() & states.keys()):
                self._release_when_held(job_id, states[job_id])
        return states

    def cancel(self, job_id: str) -> None:
        """End a job now."""
        self._unless_gone("scancel", job_id)

    def release(self, job_id: str) -> None:
        """Let a job go that was put back into the queue: Slurm holds it for two minutes.

        It cannot be let go while its last start is still being ended; it then is as soon as `poll` sees that it can.
        """
        self._to_release[job_id] = None
        self._let_go(job_id)

    def _release_when_held(self, job_id: str, state: JobState) -> None:
        if state.phase == "queued" and state.reason == BEGIN_TIME:
            since = self._to_release[job_id]
            if since is None or self._clock() - since >= SECONDS_LET_GO:
                self._to_release[job_id] = self._clock()
                self._let_go(job_id)
        elif state.phase != "queued":
            self._to_release.pop(job_id)

    def _let_go(self, job_id: str) -> None:
        """A job that is not held does not mind; of one that does not wait Slurm says so, which is no error here."""
        with contextlib.suppress(SlurmRefusedError, SlurmUnreachableError):
            self._commands.run("scontrol", "update", f"jobid={job_id}", f"StartTime=now+{SECONDS_AFTER_REVOKED}")

    def logs(self, job_id: str) -> str:
        """Return the output of its agents; the file is the job's own."""
        path = self._logs.get(job_id) or self._log_of(job_id)
        return path.read_text(encoding="utf-8", errors="replace") if path is not None and path.is_file() else ""

    def attempts(self, job_id: str) -> tuple[JobAttempt, ...]:
        """Every start: by slurmdbd; else by the jobcomp file and the controller; else the last ones it still knows."""
        if self._accounts.cluster.keeper == "slurmdbd":
            return self._settled(job_id)
        return attempts_of(with_live(self._accounts.records([job_id]), self._accounts.live(job_id)))

    def close(self) -> None:
        """Nothing is held."""

    def _sbatch(self, script: str, environment: Mapping[str, str]) -> str:
        said = self._commands.run("sbatch", "--parsable", text=script, environment=environment)
        numbers = [match[1] for line in said.splitlines() if (match := _SUBMITTED.fullmatch(line.strip()))]
        if not numbers:
            raise SlurmUnreachableError(f"sbatch named no job; it said {said.strip()[:200]!r}")
        return numbers[-1]

    def _refused(self, job: StageJob, error: SlurmRefusedError) -> Exception:
        if job.shards > 1 and "array" in str(error).lower():
            with contextlib.suppress(SlurmUnreachableError, SlurmRefusedError):
                largest = self._accounts.cluster.largest_array
                if job.shards > largest:
                    return UsageError(
                        f"the stage {job.stage} asks for {job.shards} shards, and an array of this cluster holds "
                        f"{largest} at most (MaxArraySize)\n  resources.shards: {largest} works"
                    )
        return refused_submission(job.stage, error)

    def _settled(self, job_id: str) -> tuple[JobAttempt, ...]:
        """The records, read again while they lack a start, or the end, of a job that has ended."""
        state = self._watch.known(job_id)
        for _ in range(SETTLE_ROUNDS):
            attempts = attempts_of(self._accounts.records([job_id]))
            if state is None or state.phase != "ended":
                break
            if len(attempts) >= starts_of(state) and all(attempt.ended_at for attempt in attempts):
                break
            self._pause(SETTLE_SECONDS)
        return attempts

    def _log_of(self, job_id: str) -> Path | None:
        for line in self._unless_gone("scontrol", "show", "job", job_id).splitlines():
            name, _, value = line.strip().partition("=")
            if name == "StdOut":
                return Path(value)
        return None

    def _unless_gone(self, *command: str) -> str:
        """Run a command about a job; nothing when Slurm no longer knows it, or it is past what was asked."""
        try:
            return self._commands.run(*command)
        except SlurmRefusedError as error:
            if unknown_job(error):
                return ""
            raise
