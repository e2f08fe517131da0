"""Where a cluster keeps records of what has run: slurmdbd, a jobcomp file, or nowhere but in the controller."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from charter.launch.slurm.commands import SlurmCommands, SlurmRefusedError, unknown_job
from charter.launch.slurm.records import SACCT_FIELDS, Record, file_records, sacct_records, scontrol_records

Keeper = Literal["slurmdbd", "jobcomp", "controller"]
_SETTING = re.compile(r"^(\w+)\s*=\s*(.*?)\s*$", re.MULTILINE)
_SACCT = ("sacct", "-D", "-X", "-P", "-n", f"--format={','.join(SACCT_FIELDS)}")
"""Every start (-D), no steps (-X); with -j, however long ago (`man sacct`, --starttime)."""
DAYS_BACK = 30
"""How long ago a job that is looked for by its name may have been submitted."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """What a cluster says of its own configuration."""

    keeper: Keeper
    """Who knows of every start: slurmdbd; of every start that has ended: jobcomp; of the last ones: the controller."""
    file: Path | None
    """Of jobcomp/filetxt, where it can be read here."""
    largest_array: int
    """Tasks of one array, by `MaxArraySize`."""


def cluster_of(configuration: str) -> Cluster:
    """What `scontrol show config` says."""
    settings = dict(_SETTING.findall(configuration))
    file = Path(settings.get("JobCompLoc", ""))
    readable = settings.get("JobCompType", "").endswith("/filetxt") and file.is_file()
    counted = "slurmdbd" in settings.get("AccountingStorageType", "")
    size = settings.get("MaxArraySize", "")
    return Cluster(
        keeper="slurmdbd" if counted else "jobcomp" if readable else "controller",
        file=file if readable else None,
        largest_array=int(size) - 1 if size.isdecimal() else 1000,
    )


class Accounts:
    """The records of one cluster."""

    def __init__(self, commands: SlurmCommands) -> None:
        self._commands = commands
        self._cluster: Cluster | None = None

    @property
    def cluster(self) -> Cluster:
        """What the cluster is like; asked once."""
        if self._cluster is None:
            self._cluster = cluster_of(self._commands.run("scontrol", "show", "config"))
        return self._cluster

    def records(self, job_ids: Sequence[str]) -> list[Record]:
        """What is kept of jobs: one call, or one reading of the file, for all of them."""
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

    def live(self, job_id: str) -> list[Record]:
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
            found = sacct_records(
                self._commands.run(*_SACCT, f"--name={name}", "-a", f"--starttime=now-{DAYS_BACK}days")
            )
        else:
            found = (record for record in self._of_file() if record.name == name)
        return max((record.job_id for record in found), key=int, default=None)

    def _of_file(self) -> list[Record]:
        if self.cluster.file is None:
            return []
        with self.cluster.file.open(encoding="utf-8", errors="replace") as lines:
            return list(file_records(lines))
