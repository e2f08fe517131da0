"""The engine Slurm: jobs by `sbatch`, how they stand by `squeue`, what they were by `sacct`."""

import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from charter.errors import UsageError
from charter.launch.job import StageJob
from charter.launch.scheduler import JobAttempt, JobState
from charter.launch.slurm.commands import (
    SlurmCommands,
    SlurmRefusedError,
    SlurmUnreachableError,
    refused_submission,
    unknown_job,
)
from charter.launch.slurm.queue import BEGIN_TIME, starts_of
from charter.launch.slurm.records import Accounts, attempts_of, with_live
from charter.launch.slurm.render import command_environment, render, submission_environment
from charter.launch.slurm.watch import Watch
from charter.spec.launching import SlurmSettings

SUBMISSIONS = 5
"""How often a job is submitted to a controller that does not answer, before that is the stage's failure."""
PAUSE_SECONDS = 2.0
"""Before the second try; twice as long before each further one."""
TOO_FEW = "Requested node configuration is not available"
"""Slurm's word for a job that its nodes could never run, also where only those are missing that the job leaves out."""
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
        seconds_between_polls: float | None = None,
        pause: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._environ = os.environ if environ is None else environ
        self._commands = SlurmCommands(environment=command_environment(self._environ))
        self._accounts = Accounts(self._commands)
        between = settings.seconds_between_polls if seconds_between_polls is None else seconds_between_polls
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
                if not job.exclude_nodes or TOO_FEW not in str(error):
                    raise self._refused(job, error) from None
                # Without the nodes that were left out there are too few of them: better to wait for one to come back.
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
        return said.strip().splitlines()[-1].partition(";")[0]

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
