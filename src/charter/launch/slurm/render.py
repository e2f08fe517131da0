"""The batch script of a job: options, environment, and the node agent on every node. Pure.

One agent runs on each node, under `srun`: Slurm then tells a step of a coming preemption when the grace time begins,
which it does not tell a batch shell. Tasks of an array run theirs without `srun`: there may be thousands of them, and
every step would cost the controller two calls more.
"""

import re
import shlex
from collections.abc import Iterator, Mapping

from charter.errors import UsageError
from charter.launch.job import StageJob
from charter.launch.slurm.directives import directives
from charter.launch.slurm.states import INTERRUPTED_EXIT
from charter.spec.launching import SlurmSettings

_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")
_ALONE = 'export CHARTER_NODE_RANK=0 CHARTER_NODE_NAME="$SLURMD_NODENAME"'
_PLACE = 'export CHARTER_NODE_RANK="$SLURM_NODEID" CHARTER_NODE_NAME="$SLURMD_NODENAME"'
_ENGINE_JOB = 'export CHARTER_RESTART="${SLURM_RESTART_COUNT:-0}" CHARTER_ENGINE_JOB='
_WAIT = """\
trap : TERM
srun "${charter_step[@]}" &
charter_pid=$!
while :; do
    wait "$charter_pid"
    charter_code=$?
    kill -0 "$charter_pid" 2>/dev/null || break
done
exit "$charter_code\""""
"""The batch shell outlives SIGTERM, which is for the step; `wait` returns at every signal."""


def render(job: StageJob, settings: SlurmSettings, *, after: tuple[str, ...] = ()) -> str:
    """The script that is given to `sbatch`; `after`: jobs that must have succeeded before it may start."""
    lines = ["#!/bin/bash", *directives(job, settings, after=after), ""]
    lines += [*environment_lines(job), *secret_lines(job.secrets), ""]
    lines += [*_array_task(job)] if job.shards > 1 else [*_step(job)]
    return "\n".join(lines) + "\n"


def environment_lines(job: StageJob) -> Iterator[str]:
    """`export` of every variable, in the order of names."""
    for name in sorted(job.environment):
        yield f"export {_variable(name)}={shlex.quote(_text(name, job.environment[name]))}"


def secret_lines(secrets: Mapping[str, str]) -> Iterator[str]:
    """Lines that give variables their values on the node: from the submitter's environment, or from a file there.

    >>> print(*secret_lines({"KEY": "env:JUDGE_KEY", "TOKEN": "file:/run/secrets/token"}), sep="\\n")
    export KEY="${JUDGE_KEY:?was not set where this job was submitted}"
    TOKEN="$(cat -- /run/secrets/token)" || exit 2
    export TOKEN
    """
    for name in sorted(secrets):
        kind, _, where = secrets[name].partition(":")
        if kind == "env":
            yield f'export {_variable(name)}="${{{_variable(where)}:?was not set where this job was submitted}}"'
        elif kind == "file" and where:
            yield f'{_variable(name)}="$(cat -- {shlex.quote(_text(name, where))})" || exit 2'
            yield f"export {name}"
        else:
            raise UsageError(
                f"the variable {name} comes from {secrets[name]!r}, which Slurm cannot reach\n"
                "  env:NAME (of whoever submits) and file:PATH (on the node) are what works there"
            )


def secret_sources(secrets: Mapping[str, str]) -> frozenset[str]:
    """The variables of the submitter that secrets come from."""
    return frozenset(where for kind, _, where in (text.partition(":") for text in secrets.values()) if kind == "env")


def _array_task(job: StageJob) -> Iterator[str]:
    yield f'{_ENGINE_JOB}"${{SLURM_ARRAY_JOB_ID}}_${{SLURM_ARRAY_TASK_ID}}"'
    yield f'export CHARTER_SHARD="$SLURM_ARRAY_TASK_ID"; {_ALONE}'
    yield f"exec {shlex.join(job.command)}"


def _step(job: StageJob) -> Iterator[str]:
    """One agent per node; the whole step ends when one of them dies.

    An agent that has stopped at a checkpoint may end before node 0 has published it, and must not end node 0 with it:
    beside node 0 this counts as success. Which node is the first is not known here when there are spares, of which
    some end early: there the agents alone tell one another of failures.
    """
    count = job.nodes + job.spare_nodes
    ends_all = "0" if job.spare_nodes else "1"
    several = job.nodes > 1 and not job.spare_nodes
    inside = f'{_PLACE}; exec "$@"'
    if several:
        inside = (
            f'{_PLACE}; [ "$SLURM_NODEID" = 0 ] && exec "$@"; trap : TERM USR1; "$@" & charter_pid=$!; '
            'while :; do wait "$charter_pid"; charter_code=$?; kill -0 "$charter_pid" 2>/dev/null || break; done; '
            f'[ "$charter_code" = {INTERRUPTED_EXIT} ] && exit 0; exit "$charter_code"'
        )
    yield f'{_ENGINE_JOB}"$SLURM_JOB_ID"'
    yield "charter_step=("
    options = ("--ntasks", str(count), "--ntasks-per-node", "1", "--cpus-per-task", str(job.cpus_per_node))
    yield f"    {shlex.join(options)}"
    yield f"    --kill-on-bad-exit={ends_all} --mpi=none --unbuffered"
    yield f"    bash -c {shlex.quote(inside)} charter-node"
    yield f"    {shlex.join(job.command)}"
    yield ")"
    yield _WAIT


def _variable(name: str) -> str:
    if not _NAME.match(name):
        raise UsageError(f"{name!r} cannot be the name of a variable\n  letters, digits and _ can, a digit not first")
    return name


def _text(name: str, value: str) -> str:
    if "\0" in value:
        raise UsageError(f"the value of {name} holds a zero byte, which no variable can")
    return value
