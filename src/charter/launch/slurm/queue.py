"""One look into Slurm's queue: rows of `squeue`, and how jobs stand by them. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from charter.errors import CharterError
from charter.launch.scheduler import Cause, JobState, Phase
from charter.launch.slurm.commands import (
    SlurmCommands,
    SlurmRefusedError,
    cause_of,
    exit_code_of,
    expand_hosts,
    phase_of,
    plain_state,
    unknown_job,
)
from charter.launch.slurm.records import duration_seconds, unix_seconds
from charter.launch.slurm.render import command_environment

SQUEUE_FIELDS = (
    "ArrayJobID",
    "ArrayTaskID",
    "State",
    "exit_code",
    "RestartCnt",
    "NodeList",
    "Reason",
    "PreemptTime",
    "TimeLimit",
    "StartTime",
    "EndTime",
)
SQUEUE_FORMAT = ",".join(f"{name}:0|" for name in SQUEUE_FIELDS)
"""Every field as wide as it is, and a bar after it (`man squeue`, -O)."""
BEGIN_TIME = "BeginTime"
"""Why a job waits that Slurm has put back into its queue: two minutes, unless it is let go."""
_WORST: tuple[Cause, ...] = ("failed", "out_of_memory", "node_lost", "time_limit", "preempted", "cancelled")


@dataclass(frozen=True, kw_only=True)
class QueueRow:
    """A job, a task of an array, or the tasks of an array that still wait."""

    job_id: str
    tasks: tuple[int, ...] | None
    """None of a job that is no array."""
    state: JobState
    is_completing: bool = False
    """Its processes are being ended: the job's, or those of a start that another one follows."""
    seconds_left: float | None = None
    """Of one that has ended: up to its time limit."""


def rows_of(text: str) -> Iterator[QueueRow]:
    """The rows that `squeue -h -t all -O SQUEUE_FORMAT` has printed."""
    for line in text.splitlines():
        values = [value.strip() for value in line.split("|")]
        if len(values) < len(SQUEUE_FIELDS):
            continue
        row = dict(zip(SQUEUE_FIELDS, values, strict=False))
        tasks = row["ArrayTaskID"]
        yield QueueRow(
            job_id=row["ArrayJobID"],
            tasks=None if tasks in ("", "N/A") else task_numbers(tasks),
            state=_state(row),
            is_completing=plain_state(row["State"]) == "COMPLETING",
            seconds_left=_seconds_left(row),
        )


def _state(row: Mapping[str, str]) -> JobState:
    phase, word, restarts = phase_of(row["State"]), plain_state(row["State"]), row["RestartCnt"]
    code = exit_code_of(row["exit_code"]) if phase == "ended" else None
    cause = cause_of(word, exit_code=code)
    if cause == "failed" and unix_seconds(row["PreemptTime"]) is not None:
        cause = "preempted"
    return JobState(
        phase=phase,
        cause=cause,
        exit_code=code,
        restarts=int(restarts) if restarts.isdecimal() else 0,
        nodes=expand_hosts(row["NodeList"]),
        reason=word if phase == "ended" else "" if row["Reason"] == "None" else row["Reason"],
    )


def _seconds_left(row: Mapping[str, str]) -> float | None:
    limit, start, end = duration_seconds(row["TimeLimit"]), unix_seconds(row["StartTime"]), unix_seconds(row["EndTime"])
    return None if limit is None or start is None or end is None else limit - (end - start)


def task_numbers(text: str) -> tuple[int, ...]:
    """The tasks of an array's row.

    >>> task_numbers("2-4,6,8-12:2%2")
    (2, 3, 4, 6, 8, 10, 12)
    """
    numbers: list[int] = []
    for item in text.partition("%")[0].split(","):
        span, _, step = item.partition(":")
        first, _, last = span.partition("-")
        if first.isdecimal():
            numbers += range(int(first), int(last or first) + 1, int(step or 1))
    return tuple(numbers)


def array_state(tasks: Mapping[int, JobState]) -> JobState:
    """Return the state of an array by its tasks: it has ended when all have; its cause is that of the worst."""
    states = tasks.values()
    phases = {state.phase for state in states}
    restarts = sum(state.restarts for state in states)
    reasons = [state.reason for state in states if state.phase == "queued" and state.reason]
    reason = BEGIN_TIME if BEGIN_TIME in reasons else next(iter(reasons), "")
    if phases & {"queued", "running"}:
        nodes = sorted({node for state in states if state.phase == "running" for node in state.nodes})
        phase: Phase = "running" if "running" in phases else "queued"
        return JobState(phase=phase, restarts=restarts, nodes=tuple(nodes), reason=reason, tasks=tasks)
    cause: Cause = next((cause for cause in _WORST if any(state.cause == cause for state in states)), "done")
    first = next((tasks[task] for task in sorted(tasks) if tasks[task].cause == cause), None)
    return JobState(
        phase="ended" if "ended" in phases else "unknown",
        cause=cause if "ended" in phases else "",
        exit_code=first.exit_code if first else None,
        restarts=restarts,
        reason=first.reason if first else "",
        tasks=tasks,
    )


def starts_of(state: JobState) -> int:
    """Return the number of starts of a job that has ended: none where it never had a node.

    >>> starts_of(JobState(phase="ended", restarts=2, nodes=("n1",))), starts_of(JobState(phase="ended"))
    (3, 0)
    """
    if state.tasks:
        return sum(starts_of(task) for task in state.tasks.values())
    return state.restarts + bool(state.nodes)


def by_job(rows: Iterable[QueueRow]) -> dict[str, list[QueueRow]]:
    """Rows by the job that they belong to."""
    groups: dict[str, list[QueueRow]] = {}
    for row in rows:
        groups.setdefault(row.job_id, []).append(row)
    return groups


ASK_SECONDS = 20.0
"""For the controller's answer: less than Slurm gives a job to end (`KillWait`, 30 s unless set)."""
_FIELDS = "RestartCnt:0|,PreemptTime:0|,StartTime:0|"


def is_put_back(environ: Mapping[str, str], commands: SlurmCommands | None = None) -> bool:
    """Return True if Slurm ends this job in order to start it again: it is being preempted, or queued once more.

    A job that somebody cancels is not, nor one that is only signalled. Where Slurm does not answer, nobody says so.
    """
    commands = commands or SlurmCommands(environment=command_environment(environ), patience_seconds=ASK_SECONDS)
    try:
        said = commands.run("squeue", "-h", "-t", "all", "-j", environ.get("SLURM_JOB_ID", ""), "-O", _FIELDS)
    except CharterError:
        return False
    values = [value.strip() for value in said.partition("\n")[0].split("|")]
    if len(values) < 3:
        return False
    restarts, preempted_at, started_at = values[0], unix_seconds(values[1]), unix_seconds(values[2])
    if restarts.isdecimal() and int(restarts) > int(environ.get("SLURM_RESTART_COUNT") or 0):
        return True
    return preempted_at is not None and started_at is not None and preempted_at >= started_at


GLANCE_SECONDS = 2.0
"""A controller that is well answers in hundredths of a second."""


def glance(job_id: str, environ: Mapping[str, str]) -> JobState:
    """The job as the queue has it now; `unknown` where Slurm has forgotten it. Raises where Slurm cannot be asked."""
    commands = SlurmCommands(environment=command_environment(environ), patience_seconds=GLANCE_SECONDS)
    try:
        said = commands.run("squeue", "-h", "-t", "all", "-j", job_id, "-O", SQUEUE_FORMAT)
    except SlurmRefusedError as error:
        if unknown_job(error):
            return JobState(phase="unknown")
        raise
    return next((row.state for row in rows_of(said)), JobState(phase="unknown"))
