"""Slurm's own records of what has run: rows of `sacct -D`, lines of jobcomp/filetxt and of `scontrol show job`. Pure.

A record is one start of a job, or of one task of an array. The same job has one for every time that Slurm started it.
"""

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from charter.launch.scheduler import JobAttempt
from charter.launch.slurm.commands import (
    SlurmCommands,
    SlurmRefusedError,
    exit_code_of,
    expand_hosts,
    plain_state,
    unknown_job,
)

SACCT_FIELDS = ("JobID", "JobIDRaw", "State", "ExitCode", "Start", "End", "NodeList", "AllocTRES", "Submit", "JobName")
_KEY = re.compile(r"(?:^| )([A-Za-z/:]+)=(\S*)")
_TYPED_GPU = re.compile(r"^gres/gpu:[^=]+$")


@dataclass(frozen=True, kw_only=True)
class AccountingRecord:
    """One start."""

    job_id: str
    """Of an array: of the whole array."""
    task: int | None
    raw_id: str
    name: str
    state: str
    exit_code: int | None
    started_at: float | None
    ended_at: float | None
    nodes: tuple[str, ...]
    accelerators: int
    cpus: int
    restarts: int | None = None
    """How often it had been started before, where the record says so."""

    @property
    def took_place(self) -> bool:
        """Return True if it ever had a node."""
        return self.started_at is not None and bool(self.nodes)


def sacct_records(text: str) -> Iterator[AccountingRecord]:
    """Records from `sacct -D -X -P -n` with `SACCT_FIELDS`; tasks that wait in one row have none."""
    for line in text.splitlines():
        values = line.split("|")
        if len(values) != len(SACCT_FIELDS):
            continue
        row = dict(zip(SACCT_FIELDS, values, strict=True))
        job_id, _, task = row["JobID"].partition("_")
        if task and not task.isdecimal():
            continue
        yield AccountingRecord(
            job_id=job_id,
            task=int(task) if task else None,
            raw_id=row["JobIDRaw"],
            name=row["JobName"],
            state=plain_state(row["State"]),
            exit_code=exit_code_of(row["ExitCode"]),
            started_at=unix_seconds(row["Start"]),
            ended_at=unix_seconds(row["End"]),
            nodes=expand_hosts(row["NodeList"]),
            accelerators=accelerators_of(row["AllocTRES"]),
            cpus=_count(row["AllocTRES"], "cpu"),
        )


def file_records(lines: Iterable[str]) -> Iterator[AccountingRecord]:
    """Records from lines of jobcomp/filetxt: one for every start that has ended."""
    for line in lines:
        if line.startswith("JobId="):
            yield _from_words(dict(_KEY.findall(line)), name="Name", resources="Tres")


def scontrol_records(text: str) -> Iterator[AccountingRecord]:
    """Records from `scontrol -o show job`: the last start of every task that the controller still knows."""
    for line in text.splitlines():
        words = dict(_KEY.findall(line))
        if "JobId" in words and words.get("ArrayTaskId", "0").isdecimal():
            yield _from_words(words, name="JobName", resources="TRES")


def attempts_of(records: Iterable[AccountingRecord]) -> tuple[JobAttempt, ...]:
    """Starts in the order of time, counted per task; what never had a node is left out."""
    took_place = [(record.started_at, record) for record in records if record.nodes and record.started_at is not None]
    counts: dict[int | None, int] = {}
    attempts = []
    for started_at, record in sorted(took_place, key=lambda item: (item[0], item[1].task or 0)):
        task = record.task
        restart = counts.get(task, 0)
        counts[task] = restart + 1
        attempts.append(
            JobAttempt(
                job_id=record.job_id if task is None else f"{record.job_id}_{task}",
                shard=task,
                restart=max(restart, record.restarts or 0),
                state=record.state,
                started_at=started_at,
                ended_at=record.ended_at,
                nodes=record.nodes,
                accelerators=record.accelerators,
                cpus=record.cpus,
            )
        )
    return tuple(attempts)


def accelerators_of(tres: str) -> int:
    """GPUs of an allocation: `gres/gpu`, or the sum of its types where only these are counted.

    >>> accelerators_of("cpu=2,gres/gpu:h100=4,gres/gpu=4,node=1"), accelerators_of("cpu=1,gres/gpu:h100=2,node=1")
    (4, 2)
    """
    if total := _count(tres, "gres/gpu"):
        return total
    pairs = (item.partition("=") for item in tres.split(","))
    return sum(int(value) for name, _, value in pairs if _TYPED_GPU.match(name) and value.isdecimal())


def with_live(records: Sequence[AccountingRecord], live: Sequence[AccountingRecord]) -> list[AccountingRecord]:
    """Records of starts that have ended, and after them what only the controller has: the last start of every task.

    Where GPUs are not among what the cluster counts, the controller also knows how many per node were asked for.
    """
    per_node = max((record.accelerators // len(record.nodes) for record in live if record.nodes), default=0)
    recorded = {(record.task, record.started_at, record.nodes) for record in records}
    return [
        *(it if it.accelerators else replace(it, accelerators=per_node * len(it.nodes)) for it in records),
        *(it for it in live if (it.task, it.started_at, it.nodes) not in recorded),
    ]


def unix_seconds(text: str) -> float | None:
    """A time as Slurm writes it: Unix seconds, or local time (jobcomp/filetxt has no zone); None for no time."""
    if text.isdecimal():
        return float(text) or None
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return None


def duration_seconds(text: str) -> float | None:
    """A duration as Slurm writes it, `days-hours:minutes:seconds` from the right; None for none (`UNLIMITED`).

    >>> duration_seconds("1-02:03:04"), duration_seconds("1:00"), duration_seconds("UNLIMITED")
    (93784.0, 60.0, None)
    """
    days, dash, rest = text.rpartition("-")
    parts = rest.split(":")
    if not all(part.isdecimal() for part in (*parts, *([days] if dash else []))):
        return None
    seconds = 0.0
    for part in parts:
        seconds = 60 * seconds + int(part)
    return seconds + 86400 * int(days or 0)


def latest(records: Sequence[AccountingRecord]) -> AccountingRecord | None:
    """The record of the last start; of starts in the same second, the last in order."""
    return max(enumerate(records), key=lambda item: (item[1].started_at or 0, item[0]))[1] if records else None


def _from_words(words: dict[str, str], *, name: str, resources: str) -> AccountingRecord:
    task = words.get("ArrayTaskId", "")
    state = plain_state(words.get("JobState", ""))
    running = state in ("RUNNING", "COMPLETING")
    restarts = words.get("Restarts", "")
    nodes = expand_hosts(words.get("NodeList", ""))
    return AccountingRecord(
        job_id=words.get("ArrayJobId", words["JobId"]),
        task=int(task) if task.isdecimal() else None,
        raw_id=words["JobId"],
        name=words.get(name, ""),
        state=state,
        exit_code=exit_code_of(words.get("ExitCode", "")),
        started_at=unix_seconds(words.get("StartTime", "")),
        ended_at=None if running else unix_seconds(words.get("EndTime", "")),
        nodes=nodes,
        accelerators=accelerators_of(words.get(resources, "")) or _per_node(words.get("TresPerNode", "")) * len(nodes),
        cpus=_count(words.get(resources, ""), "cpu"),
        restarts=int(restarts) if restarts.isdecimal() else None,
    )


def _per_node(tres: str) -> int:
    """GPUs of each node, by what the job has asked for.

    >>> _per_node("gres:gpu:h100:2"), _per_node("gres/gpu:4"), _per_node("gpu"), _per_node("")
    (2, 4, 1, 0)
    """
    total = 0
    for item in tres.split(","):
        words = re.split(r"[:/=]", item.removeprefix("gres").lstrip(":/"))
        if words[0] == "gpu":
            total += int(words[-1]) if words[-1].isdecimal() else 1
    return total


def _count(tres: str, wanted: str) -> int:
    for item in tres.split(","):
        name, _, value = item.partition("=")
        if name == wanted and value.isdecimal():
            return int(value)
    return 0


Keeper = Literal["slurmdbd", "jobcomp", "controller"]
_SETTING = re.compile(r"^(\w+)\s*=\s*(.*?)\s*$", re.MULTILINE)
_SACCT = ("sacct", "-D", "-X", "-P", "-n", f"--format={','.join(SACCT_FIELDS)}")
"""Every start (-D), no steps (-X); with -j, however long ago (`man sacct`, --starttime)."""
DAYS_BACK = 30
"""How long ago a job that is looked for by its name may have been submitted."""


@dataclass(frozen=True, kw_only=True)
class ClusterConfiguration:
    """Configuration of a cluster, as it says itself."""

    keeper: Keeper
    """Who knows of every start: slurmdbd; of every start that has ended: jobcomp; of the last ones: the controller."""
    file: Path | None
    """Of jobcomp/filetxt, where it can be read here."""
    largest_array: int
    """Tasks of one array, by `MaxArraySize`."""


def cluster_of(configuration: str) -> ClusterConfiguration:
    """Return the cluster that `scontrol show config` describes."""
    settings = dict(_SETTING.findall(configuration))
    file = Path(settings.get("JobCompLoc", ""))
    readable = settings.get("JobCompType", "").endswith("/filetxt") and file.is_file()
    counted = "slurmdbd" in settings.get("AccountingStorageType", "")
    size = settings.get("MaxArraySize", "")
    return ClusterConfiguration(
        keeper="slurmdbd" if counted else "jobcomp" if readable else "controller",
        file=file if readable else None,
        largest_array=int(size) - 1 if size.isdecimal() else 1000,
    )


class Accounts:
    """The records of one cluster."""

    def __init__(self, commands: SlurmCommands) -> None:
        self._commands = commands
        self._cluster: ClusterConfiguration | None = None

    @property
    def cluster(self) -> ClusterConfiguration:
        """Return the configuration of the cluster; asked once."""
        if self._cluster is None:
            self._cluster = cluster_of(self._commands.run("scontrol", "show", "config"))
        return self._cluster

    def records(self, job_ids: Sequence[str]) -> list[AccountingRecord]:
        """Return the records of jobs: one call, or one reading of the file, for all of them."""
        wanted = frozenset(job_ids)
        if not wanted:
            return []
        match self.cluster.keeper:
            case "slurmdbd":
                return list(sacct_records(self._commands.run(*_SACCT, "-j", ",".join(sorted(wanted)))))
            case "jobcomp":
                return [record for record in self._of_file() if record.job_id in wanted or record.raw_id in wanted]
            case _:
                return []

    def live(self, job_id: str) -> list[AccountingRecord]:
        """The last start of a job, of all its tasks, as long as the controller knows it."""
        try:
            return list(scontrol_records(self._commands.run("scontrol", "-o", "show", "job", job_id)))
        except SlurmRefusedError as error:
            if unknown_job(error):
                return []
            raise

    def named(self, name: str) -> str | None:
        """The number of the newest job that ended under a name."""
        if self.cluster.keeper == "slurmdbd":
            rows = sacct_records(
                self._commands.run(*_SACCT, f"--name={name}", "-a", f"--starttime=now-{DAYS_BACK}days")
            )
        else:
            rows = (record for record in self._of_file() if record.name == name)
        return max((record.job_id for record in rows), key=int, default=None)

    def _of_file(self) -> list[AccountingRecord]:
        if self.cluster.file is None:
            return []
        with self.cluster.file.open(encoding="utf-8", errors="replace") as lines:
            return list(file_records(lines))
