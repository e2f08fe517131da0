"""Duties of a scheduler, and the simplest one, `subprocess`: a directory is its queue, on one machine.

For one machine with several workers, and the reference for what any scheduler does. A job's keeper
(`charter.launch.subprocess_keeper`) waits for free accelerators, starts the job's agents, starts them again when it
is told that the machine is wanted for something else, and writes down every start.
"""

import atexit
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from charter.artifacts import durable
from charter.artifacts.lease import Holder, ends_within, read_holder
from charter.errors import DataError, UsageError
from charter.launch.job import StageJob
from charter.units import seconds_between

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
        return seconds_between(self.started_at, self.ended_at)


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


STATE_VARIABLE = "CHARTER_SUBPROCESS_STATE"
"""Directory of the jobs and of the locks on accelerators; shared by all projects of a user on this machine."""
JOB, STATE, KEEPER, NAMES, LOCKS, CONCURRENCY = "job.json", "state.json", "keeper.json", "names", "locks", "concurrency"
START_SECONDS = 120.0
"""A machine that does much else may take that long to start an interpreter."""
CANCEL_SECONDS = 20.0
LOG_BYTES = 256 * 1024


def default_state_dir() -> Path:
    """Return the directory of this machine's jobs, unless the environment names another."""
    if given := os.environ.get(STATE_VARIABLE):
        return Path(given)
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "charter" / "subprocess"


class SubprocessScheduler:
    """Jobs on this machine."""

    name = "subprocess"

    def __init__(self, state_dir: Path | None = None) -> None:
        self._state_dir = (state_dir or default_state_dir()).resolve()

    def render(self, job: StageJob) -> str:
        """The job as its keeper is given it; secrets by name only."""
        return durable.json_text(job_to_json(job))

    def submit(self, job: StageJob) -> str:
        """Write the job down and start its keeper."""
        directory = self._new_directory()
        durable.write_file(directory / JOB, self.render(job))
        durable.make_dir(self._state_dir / NAMES)
        durable.write_file(self._state_dir / NAMES / job.name, directory.name)
        command = [sys.executable, "-m", "charter.launch.subprocess_keeper", str(directory)]
        with (directory / "keeper.log").open("ab") as log:
            keeper = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=_environment(job), start_new_session=True
            )
        _children.append(keeper)
        _reap()
        deadline = time.monotonic() + START_SECONDS
        while not (directory / KEEPER).exists():
            if keeper.poll() is not None or time.monotonic() > deadline:
                # One that only came late would run a job that nobody knows of.
                keeper.kill()
                keeper.wait()
                raise UsageError(f"the keeper of job {job.name} did not start; its log is {directory / 'keeper.log'}")
            time.sleep(0.01)
        return directory.name

    def find(self, name: str) -> str | None:
        """The number of the job of this name."""
        try:
            return (self._state_dir / NAMES / name).read_text(encoding="utf-8")
        except OSError:
            return None

    def poll(self, job_ids: Sequence[str]) -> Mapping[str, JobState]:
        """Return the states of jobs; one whose keeper was killed has lost its node."""
        return {job_id: self._state(job_id) for job_id in job_ids}

    def cancel(self, job_id: str) -> None:
        """End a job and wait until its processes have ended."""
        if (keeper := self._signal(job_id, signal.SIGTERM)) is not None:
            ends_within(keeper, CANCEL_SECONDS)

    def release(self, job_id: str) -> None:
        """Nothing: a job that is started again waits for accelerators only."""

    def logs(self, job_id: str) -> str:
        """The end of what the job's agents have printed."""
        try:
            path = Path(durable.read_json(self._state_dir / job_id / JOB)["log"])
            with path.open("rb") as log:
                log.seek(max(0, log.seek(0, 2) - LOG_BYTES))
                return log.read().decode(errors="replace")
        except (DataError, OSError):
            return ""

    def attempts(self, job_id: str) -> tuple[JobAttempt, ...]:
        """Every start by the keeper's book."""
        content = self._read(job_id)
        return tuple(JobAttempt(**{**item, "nodes": tuple(item["nodes"])}) for item in content.get("attempts", ()))

    def close(self) -> None:
        """Nothing is held."""

    def _new_directory(self) -> Path:
        durable.make_dir(self._state_dir)
        while True:
            taken = [int(path.name) for path in self._state_dir.iterdir() if path.name.isdecimal()]
            directory = self._state_dir / str(max(taken, default=0) + 1)
            try:
                directory.mkdir()
            except FileExistsError:
                continue
            return directory

    def _state(self, job_id: str) -> JobState:
        content = self._read(job_id)
        if not content:
            return JobState(phase="unknown")
        state = state_from_json(content["state"])
        keeper = read_holder(self._state_dir / job_id / KEEPER)
        if state.phase != "ended" and (keeper is None or not keeper.is_alive):
            again = self._read(job_id)["state"]
            state = state_from_json(again)
            if state.phase != "ended":
                return JobState(phase="ended", cause="node_lost", restarts=state.restarts, reason="keeper lost")
        return state

    def _signal(self, job_id: str, number: signal.Signals) -> Holder | None:
        keeper = read_holder(self._state_dir / job_id / KEEPER)
        if keeper is None or not keeper.is_alive:
            return None
        try:
            os.kill(keeper.pid, number)
        except ProcessLookupError:
            return None
        return keeper

    def _read(self, job_id: str) -> dict[str, Any]:
        try:
            content = durable.read_json(self._state_dir / job_id / STATE)
        except DataError:
            return {}
        return content if isinstance(content, dict) else {}


def job_to_json(job: StageJob) -> dict[str, object]:
    """A job as plain JSON types."""
    return {**asdict(job), "directory": str(job.directory), "log": str(job.log)}


def job_from_json(content: Mapping[str, object]) -> StageJob:
    """The job that `job_to_json` wrote."""
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in content.items()}
    values["directory"], values["log"] = Path(str(values["directory"])), Path(str(values["log"]))
    return StageJob(**values)  # type: ignore[arg-type]


def state_to_json(state: JobState) -> dict[str, object]:
    """A state as plain JSON types."""
    tasks = None if state.tasks is None else {str(number): state_to_json(task) for number, task in state.tasks.items()}
    return {**vars(state), "nodes": list(state.nodes), "tasks": tasks}


def state_from_json(content: Mapping[str, Any]) -> JobState:
    """The state that `state_to_json` wrote."""
    values = dict(content)
    tasks = values.pop("tasks", None)
    read = None if tasks is None else {int(number): state_from_json(task) for number, task in tasks.items()}
    return JobState(**{**values, "nodes": tuple(values["nodes"])}, tasks=read)


def _environment(job: StageJob) -> dict[str, str]:
    """Return the variables that the keeper inherits: this process's, without those of a stage it may be part of."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("CHARTER_")}
    state = {name: value for name, value in os.environ.items() if name == STATE_VARIABLE}
    return {**ours, **state, "PYTHONUNBUFFERED": "1"}


@atexit.register
def _reap() -> None:
    """Take the ends of keepers that are over: nobody else waits for them, and they would stay in the system's table."""
    for child in [child for child in _children if child.poll() is not None]:
        _children.remove(child)


_children: list["subprocess.Popen[bytes]"] = []
