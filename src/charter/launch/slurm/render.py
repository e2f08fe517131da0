"""The batch script of a job: options, environment, and the node agent on every node. Pure.

One agent runs on each node, under `srun`: Slurm then tells a step of a coming preemption when the grace time begins,
which it does not tell a batch shell. Tasks of an array run theirs without `srun`: there may be thousands of them, and
every step would cost the controller two calls more.
"""

import math
import re
import shlex
from collections.abc import Iterator, Mapping
from urllib.parse import urlencode

from charter.catalog import accelerators
from charter.errors import UsageError
from charter.launch.job import ENGINE_JOB, NODE_NAME, NODE_RANK, RESTART, SHARD, SUPERVISOR, StageJob
from charter.launch.slurm.commands import INTERRUPTED_EXIT
from charter.launch.tags import OWN_KEYS
from charter.spec.checks import VARIABLE
from charter.spec.launching import SlurmSettings

MIB = 1024**2
LONGEST_SIGNAL_SECONDS = 65535
"""What `--signal` takes (`man sbatch`)."""
COMMENT_CHARACTERS = 1024
"""slurmctld refuses a job with a longer comment (Slurm 22.05, tried)."""
_PLAIN = re.compile(r"^[A-Za-z0-9_@%+=:,./|&*!()\[\]{}~^-]+$")
_UNWRITABLE = re.compile(r"[\x00-\x1f\x7f]")


def directives(job: StageJob, settings: SlurmSettings, *, after: tuple[str, ...] = ()) -> Iterator[str]:
    """The options of a job, one line each, in a fixed order; the user's own come last, since the last one counts.

    A lost stage can be submitted anew by its supervisor, the supervisor by nobody: Slurm always starts it again.
    """
    yield from _lines(
        {
            "job-name": job.name,
            "comment": _comment(job.labels),
            "partition": settings.partition,
            "account": settings.account,
            "qos": settings.qos,
            "constraint": settings.constraint,
            "exclude": ",".join(dict.fromkeys((*settings.exclude, *job.exclude_nodes))),
            "dependency": f"afterok:{':'.join(after)}" if after else "",
            "kill-on-invalid-dep": "yes" if after else "",
            **_size(job, settings),
            **_time(job),
            "requeue" if settings.requeue or job.kind == SUPERVISOR else "no-requeue": True,
            "open-mode": "append",
            "output": _log(job),
            "export": "ALL",
        }
    )
    for option in settings.options:
        yield f"#SBATCH {_one_line('launch.slurm.options', option)}"


def _comment(labels: Mapping[str, str]) -> str:
    """The tags for which a comment has room, Charter's own before those of the file."""
    fitting: dict[str, str] = {}
    for name in sorted(labels, key=lambda name: (name not in OWN_KEYS, name)):
        longer = {**fitting, name: labels[name]}
        fitting = longer if len(urlencode(longer)) <= COMMENT_CHARACTERS else fitting
    return urlencode(sorted(fitting.items()))


def gres_type(accelerator: str, names: Mapping[str, str]) -> str:
    """Return the cluster's name of an accelerator: what the file says, or the first word of its catalog name.

    >>> gres_type("H100-80GB", {}), gres_type("H100-80GB", {"H100-80GB": "nvidia_h100_80gb_hbm3"})
    ('h100', 'nvidia_h100_80gb_hbm3')
    """
    return names.get(accelerator) or re.split(r"[^a-z0-9]", accelerator.lower())[0]


def minutes(seconds: float) -> int:
    """Slurm's time limits are whole minutes: the next one.

    >>> minutes(3600), minutes(61)
    (60, 2)
    """
    return math.ceil(seconds / 60)


def _size(job: StageJob, settings: SlurmSettings) -> dict[str, str]:
    count = job.nodes + job.spare_nodes
    _check_tpu(job, settings)
    kind = gres_type(job.accelerator, settings.gpu_types) if job.accelerator else ""
    gpus = ":".join(filter(None, ("gpu", kind, str(job.accelerators_per_node))))
    memory = job.memory_bytes_per_node
    return {
        "array": f"0-{job.shards - 1}%{settings.max_array_tasks}" if job.shards > 1 else "",
        "nodes": str(count),
        "ntasks-per-node": "1",
        "cpus-per-task": str(job.cpus_per_node),
        "mem": f"{math.ceil(memory / MIB)}M" if memory else "",
        "gres": gpus if job.accelerators_per_node else "",
    }


def _check_tpu(job: StageJob, settings: SlurmSettings) -> None:
    """Refuse TPUs: Slurm finds none by itself (`man gres.conf`, AutoDetect), so that no type is usual for them."""
    if not job.accelerator or not job.accelerators_per_node or job.accelerator in settings.gpu_types:
        return
    if accelerators.get(job.accelerator).kind == "tpu":
        raise UsageError(
            f"Slurm has no TPUs of its own, and {job.stage} asks for {job.accelerator}:{job.accelerators_per_node}\n"
            f"  submit it elsewhere, or say what this cluster calls them: "
            f"launch.slurm.gpu_types: {{{job.accelerator}: NAME}}"
        )


def _time(job: StageJob) -> dict[str, str]:
    """The limit, and a signal before it; where the file says none, before that of the partition."""
    before, limit = math.ceil(job.stop_before_seconds), job.time_limit_seconds
    if limit is not None and not 0 < before < min(limit, LONGEST_SIGNAL_SECONDS + 1):
        raise UsageError(
            f"a stage cannot be stopped {before} s before a time limit of {limit:g} s on Slurm\n"
            f"  launch.stop_before must be more than nothing, less than launch.time_limit, and at most "
            f"{LONGEST_SIGNAL_SECONDS} s"
        )
    whom = "B:" if job.shards > 1 else ""
    before = min(before, LONGEST_SIGNAL_SECONDS)
    return {
        "time": "" if limit is None else str(minutes(limit)),
        "signal": f"{whom}TERM@{before}" if before > 0 else "",
    }


def _log(job: StageJob) -> str:
    if "%" in str(job.log) or "\\" in str(job.log):
        raise UsageError(
            f"Slurm cannot write a log to {str(job.log)!r}: % and \\ have a meaning of their own in its file names\n"
            "  move the project to a directory without them"
        )
    return str(job.log)


def _lines(options: Mapping[str, str | bool | None]) -> Iterator[str]:
    for name, value in options.items():
        if value is True:
            yield f"#SBATCH --{name}"
        elif value:
            yield f"#SBATCH --{name}={quoted(name, str(value))}"


def quoted(name: str, value: str) -> str:
    """A value as sbatch reads it from a script: in double quotes where it has to be, with `\\` before `"` and `\\`.

    >>> print(quoted("output", "/runs/my run/log.txt"), quoted("constraint", "h100|h200"))
    "/runs/my run/log.txt" h100|h200
    """
    if _PLAIN.match(value):
        return value
    escaped = _one_line(name, value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _one_line(name: str, value: str) -> str:
    if _UNWRITABLE.search(value):
        raise UsageError(f"{name} cannot be written into a batch script: {value!r}\n  leave out control characters")
    return value


_ALONE = f'export {NODE_RANK}=0 {NODE_NAME}="$SLURMD_NODENAME"'
_PLACE = f'export {NODE_RANK}="$SLURM_NODEID" {NODE_NAME}="$SLURMD_NODENAME"'
_ENGINE_JOB = f'export {RESTART}="${{SLURM_RESTART_COUNT:-0}}" {ENGINE_JOB}='
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
    yield f'export {SHARD}="$SLURM_ARRAY_TASK_ID"; {_ALONE}'
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
    if not VARIABLE.fullmatch(name):
        raise UsageError(f"{name!r} cannot be the name of a variable\n  letters, digits and _ can, a digit not first")
    return name


def _text(name: str, value: str) -> str:
    if "\0" in value:
        raise UsageError(f"the value of {name} holds a zero byte, which no variable can")
    return value


_CONFIGURATION = frozenset({"SLURM_CONF", "SLURM_CONF_SERVER"})
_OF_A_JOB = re.compile(r"^(SLURM|SLURMD|SBATCH|SRUN|SQUEUE|SACCT|SCANCEL|SCONTROL|PMI|PMIX|OMPI)_")
"""Variables of the job that this process may itself be part of, and those that change what the commands do or print."""
_OF_A_PROCESS = re.compile(
    r"^((LOCAL_)?RANK|(LOCAL_)?WORLD_SIZE|MASTER_(ADDR|PORT)|TORCHELASTIC_.*|CUDA_VISIBLE_DEVICES"
    r"|CHARTER_(SENT|GROUP|NODE_RANK|NODE_NAME|NODE_ADDRESS|SHARD|RESTART|ENGINE_JOB|ATTEMPT|TERM|APART|SUPERVISOR_PID))$"
)
_SECRET = re.compile(r"key|token|secret|passw|credential", re.IGNORECASE)


def command_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of Slurm's commands: English texts, times in Unix seconds, full lists of tasks."""
    inherited = {name: value for name, value in environ.items() if name in _CONFIGURATION or not _OF_A_JOB.match(name)}
    return {**inherited, "LC_ALL": "C", "SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}


def submission_environment(job: StageJob, environ: Mapping[str, str]) -> dict[str, str]:
    """Return what `sbatch` carries to the nodes: the submitter's variables, as Slurm's users expect.

    Not those of a job or a process that the submitter is itself part of, and none whose name sounds like a secret,
    unless the job asks for it by its name.

    >>> from pathlib import Path
    >>> job = StageJob(name="j", run="r", stage="s", kind="sft", attempt=1, command=("true",), directory=Path("/d"),
    ...     log=Path("/d/log"), secrets={"KEY": "env:JUDGE_KEY"})
    >>> own = {"PATH": "/bin", "JUDGE_KEY": "x", "HF_TOKEN": "y", "SLURM_JOB_ID": "7", "RANK": "0"}
    >>> sorted(submission_environment(job, own))
    ['JUDGE_KEY', 'PATH']
    """
    wanted = secret_sources(job.secrets)
    if missing := sorted(wanted - set(environ)):
        raise UsageError(
            f"the stage {job.stage} needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not "
            "set here\n  export it before you submit, or name a file on the nodes instead: file:PATH"
        )
    return {name: value for name, value in environ.items() if name in wanted or _goes_with_a_job(name)}


def _goes_with_a_job(name: str) -> bool:
    if name in _CONFIGURATION:
        return True
    return not (_OF_A_JOB.match(name) or _OF_A_PROCESS.match(name) or _SECRET.search(name))
