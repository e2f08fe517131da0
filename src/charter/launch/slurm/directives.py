"""The `#SBATCH` lines of a batch script, and how their values are written."""

import math
import re
from collections.abc import Iterator, Mapping
from urllib.parse import urlencode

from charter.errors import UsageError
from charter.launch.job import SUPERVISOR, StageJob
from charter.spec.launching import SlurmSettings

MIB = 1024**2
LONGEST_SIGNAL_SECONDS = 65535
"""What `--signal` takes (`man sbatch`)."""
_PLAIN = re.compile(r"^[A-Za-z0-9_@%+=:,./|&*!()\[\]{}~^-]+$")
_UNWRITABLE = re.compile(r"[\x00-\x1f\x7f]")


def directives(job: StageJob, settings: SlurmSettings, *, after: tuple[str, ...] = ()) -> Iterator[str]:
    """The options of a job, one line each, in a fixed order; the user's own come last, since the last one counts.

    A lost stage can be submitted anew by its supervisor, the supervisor by nobody: Slurm always starts it again.
    """
    yield from _lines(
        {
            "job-name": job.name,
            "comment": urlencode(sorted(job.labels.items())),
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


def gres_type(accelerator: str, names: Mapping[str, str]) -> str:
    """What the cluster calls an accelerator: what the file says, or the first word of its catalog name.

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


def _time(job: StageJob) -> dict[str, str]:
    if job.time_limit_seconds is None:
        return {}
    before = math.ceil(job.stop_before_seconds)
    if not 0 < before < min(job.time_limit_seconds, LONGEST_SIGNAL_SECONDS + 1):
        raise UsageError(
            f"a stage cannot be stopped {before} s before a time limit of {job.time_limit_seconds:g} s on Slurm\n"
            f"  launch.stop_before must be more than nothing, less than launch.time_limit, and at most "
            f"{LONGEST_SIGNAL_SECONDS} s"
        )
    whom = "B:" if job.shards > 1 else ""
    return {"time": str(minutes(job.time_limit_seconds)), "signal": f"{whom}TERM@{before}"}


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
