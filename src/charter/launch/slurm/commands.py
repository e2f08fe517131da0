"""Slurm's commands: run, counted, their complaints and the words for a job's state understood."""

import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from charter.errors import ExitCode, InfeasibleError, MissingExtraError, StageError, UsageError
from charter.launch.scheduler import Cause, Phase

CALL_SECONDS = 120.0
"""One call; Slurm's own `MessageTimeout` is 10 s, and some commands try several times."""
_UNREACHABLE = (
    "unable to contact slurm controller",
    "unable to connect to slurm",
    "socket timed out",
    "connection refused",
    "communication connection failure",
    "zero bytes were transmitted",
    "controller is in standby",
    "unexpected message received",
    "problem talking to the database",
    "slurm_persist_conn_open",
    "transport endpoint is not connected",
    "temporarily unable",
    "resource temporarily unavailable",
)
_UNKNOWN = ("invalid job id", "job not found")
_NO_SUCH_NODES = ("node configuration is not available", "more processors requested", "exceeds partition")


class SlurmUnreachableError(StageError):
    """The controller or its database does not answer; jobs go on without it."""


class SlurmRefusedError(StageError):
    """Slurm answered that it would not do what was asked."""


@dataclass(kw_only=True)
class SlurmCommands:
    """The commands of one cluster, which `SLURM_CONF` or the default configuration names."""

    environment: Mapping[str, str]
    patience_seconds: float = CALL_SECONDS
    calls: Counter[str] = field(default_factory=Counter)
    """How often each command was run."""

    def run(self, *command: str, text: str | None = None, environment: Mapping[str, str] | None = None) -> str:
        """Return the output of a command, or raise an error with its complaint."""
        self.calls[command[0]] += 1
        try:
            done = subprocess.run(
                command,
                input=text if text is not None else "",
                env={**(self.environment if environment is None else environment)},
                capture_output=True,
                text=True,
                errors="replace",
                timeout=self.patience_seconds,
                check=False,
            )
        except FileNotFoundError:
            raise MissingExtraError(
                f"{command[0]} is not on the path here\n  run Charter where Slurm's commands are: a login node of the "
                "cluster, or any machine with its client package and slurm.conf (SLURM_CONF names another one)"
            ) from None
        except subprocess.TimeoutExpired:
            raise SlurmUnreachableError(f"{command[0]} had said nothing after {self.patience_seconds:.0f} s") from None
        if done.returncode != 0:
            raise complaint(command, done.stderr or done.stdout)
        return done.stdout


def complaint(command: Sequence[str], said: str) -> StageError:
    """Return the error of a failed command: Slurm does not answer, or it refuses."""
    text = " / ".join(line.strip() for line in said.strip().splitlines()) or "it said nothing"
    if any(words in text.lower() for words in _UNREACHABLE):
        return SlurmUnreachableError(f"Slurm does not answer {command[0]}: {text}\n  jobs that run are not affected")
    return SlurmRefusedError(f"{command[0]}: {text}")


def unknown_job(error: SlurmRefusedError) -> bool:
    """Return True if what was refused is a job that Slurm no longer knows."""
    return any(words in str(error).lower() for words in _UNKNOWN)


def refused_submission(stage: str, error: SlurmRefusedError) -> UsageError | InfeasibleError:
    """A refusal by sbatch, with what can be done."""
    said = str(error)
    if any(words in said.lower() for words in _NO_SUCH_NODES):
        return InfeasibleError(
            f"no node of the cluster is what the stage {stage} asks for: {said}\n"
            "  sinfo -o '%P %G %c %m %l' shows what there is; change the stage's resources, "
            "launch.slurm.partition or launch.slurm.gpu_types"
        )
    return UsageError(
        f"Slurm does not take the job of the stage {stage}: {said}\n"
        "  charter submit --on slurm --print shows what it was given; launch.slurm in charter.yaml says it"
    )


QUEUED = frozenset(
    {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"}
)
RUNNING = frozenset(
    {"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING", "UPDATE_DB", "EXPEDITING"}
)
CAUSES: Mapping[str, Cause] = MappingProxyType(
    {
        "BOOT_FAIL": "node_lost",
        "CANCELLED": "cancelled",
        "COMPLETED": "done",
        "DEADLINE": "failed",
        "FAILED": "failed",
        "LAUNCH_FAILED": "failed",
        "NODE_FAIL": "node_lost",
        "OUT_OF_MEMORY": "out_of_memory",
        "PREEMPTED": "preempted",
        "RECONFIG_FAIL": "node_lost",
        "REQUEUED": "preempted",
        "REVOKED": "cancelled",
        "TIMEOUT": "time_limit",
    }
)
"""States of a start that has ended (`man squeue`, JOB STATE CODES; `man sacct`).

`REQUEUED` is what the accounts call a start that somebody put back into the queue: it gave its place back unharmed.
"""
INTERRUPTED_EXIT = ExitCode.INTERRUPTED
"""Of an agent whose stage has stopped at a checkpoint (`InterruptedRunError`)."""
_SIGNALS = range(129, 129 + 64)


def phase_of(state: str) -> Phase:
    """The phase that a state belongs to; what sacct appends to it (`CANCELLED by 0`) does not matter.

    >>> phase_of("CANCELLED by 1000"), phase_of("COMPLETING"), phase_of("REQUEUE_HOLD"), phase_of("?")
    ('ended', 'running', 'queued', 'unknown')
    """
    word = plain_state(state)
    if word in QUEUED:
        return "queued"
    if word in RUNNING:
        return "running"
    return "ended" if word in CAUSES else "unknown"


def cause_of(state: str, *, exit_code: int | None = None) -> Cause:
    """Return why a start with this state has ended; empty for one that has not.

    Slurm calls it a failure, too, when a job ends because it was asked to: its exit code says that it stopped at a
    checkpoint, and the place it gave up was wanted by somebody else.

    >>> cause_of("NODE_FAIL"), cause_of("FAILED", exit_code=1), cause_of("FAILED", exit_code=INTERRUPTED_EXIT)
    ('node_lost', 'failed', 'preempted')
    """
    cause = CAUSES.get(plain_state(state), "")
    return "preempted" if cause == "failed" and exit_code == INTERRUPTED_EXIT else cause


def plain_state(state: str) -> str:
    """The state without what is appended to it.

    >>> plain_state("CANCELLED by 1000"), plain_state("COMPLETED+")
    ('CANCELLED', 'COMPLETED')
    """
    return state.split(" ")[0].rstrip("+") if state else ""


def exit_code_of(text: str) -> int | None:
    """An exit code, minus the number of a signal, from what Slurm writes: a wait status (squeue) or `code:signal`.

    A shell's 128 + n is signal n, too: batch scripts end with what their step ended with.

    >>> [exit_code_of(text) for text in ("0", "768", "9", "0:9", "6:0", "137:0", "", "4294967294")]
    [0, 3, -9, -9, 6, -9, None, None]
    """
    code, colon, number = text.strip().partition(":")
    if not code.isdecimal():
        return None
    if not colon:
        try:
            return _unshell(os.waitstatus_to_exitcode(int(code)))
        except (ValueError, OverflowError):  # a number for "none", or of a process that is only stopped
            return None
    return -int(number) if number.isdecimal() and int(number) else _unshell(int(code))


def _unshell(code: int) -> int:
    return 128 - code if code in _SIGNALS else code


_RANGE = re.compile(r"^(\d+)(?:-(\d+))?$")
NOBODY = ("", "(null)", "None assigned", "Unknown", "N/A")


def expand_hosts(text: str) -> tuple[str, ...]:
    """The nodes of a list; `(null)` and the like are none.

    Source: `man scontrol`, "show hostlist": leading zeros are kept.

    >>> expand_hosts("n[1-2,08-10],login")
    ('n1', 'n2', 'n08', 'n09', 'n10', 'login')
    >>> expand_hosts("r[0-1]n[5-6]-ib")
    ('r0n5-ib', 'r0n6-ib', 'r1n5-ib', 'r1n6-ib')
    >>> expand_hosts("None assigned")
    ()
    """
    return () if text.strip() in NOBODY else tuple(host for part in _parts(text.strip()) for host in _expand(part))


def _parts(text: str) -> Iterator[str]:
    """Split at commas that stand in no bracket."""
    depth, start = 0, 0
    for position, character in enumerate(text):
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            yield text[start:position]
            start = position + 1
    yield text[start:]


def _expand(part: str) -> Iterator[str]:
    before, bracket, rest = part.partition("[")
    if not bracket:
        yield part
        return
    inside, _, after = rest.partition("]")
    for item in inside.split(","):
        for number in _numbers(item):
            for tail in _expand(after):
                yield f"{before}{number}{tail}"


def _numbers(item: str) -> Iterator[str]:
    """The numbers of `7` or `08-10`, as wide as the first is written.

    >>> list(_numbers("08-10"))
    ['08', '09', '10']
    """
    match = _RANGE.match(item)
    if match is None:
        yield item
        return
    first, last = match[1], match[2] or match[1]
    yield from (str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))
