"""Protocol of a launcher for the pipeline: start a stage process, see how it ended, stop it."""

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from charter.engines import capabilities
from charter.engines.common.capabilities import RAY
from charter.errors import UsageError
from charter.launch.machine import NodeFacts
from charter.launch.rendered import TARGETS
from charter.launch.scheduler import Scheduler
from charter.launch.servers import PoolSpec
from charter.spec.project import Project
from charter.spec.stage import is_hosted
from charter.spec.stage_base import Stage


@dataclass(frozen=True, kw_only=True)
class StageStart:
    """One attempt to be started."""

    stage: str
    module: str
    stage_dir: Path
    attempt: int
    """1 for the first attempt of this supervisor."""
    environment: Mapping[str, str] = field(default_factory=dict)
    processes: int = 1
    """Processes of the stage; they share its directory, and rank 0 publishes."""
    pools: tuple[PoolSpec, ...] = ()
    """Servers that are started beside it, and end with it."""
    accelerators: int = 0
    """Of each node, that the servers share; 0 on processors."""
    devices: int = 0
    """Accelerators that its own processes compute on, all of them together; 0 on processors."""


@dataclass(frozen=True, kw_only=True)
class JobStart:
    """One start of a job of a scheduler, as the ledger has it."""

    scheduler: str
    job_id: str
    restart: int
    """How often the scheduler itself had started it before."""
    nodes: tuple[str, ...]
    accelerator: str
    count: int
    market: str
    started_at: float
    """Unix seconds by the clock of the node of rank 0."""
    busy_seconds: float | None = None
    """Of an array: of all its tasks together, so far."""


class ProcessHandle(Protocol):
    """One started process."""

    @property
    def pid(self) -> int | None:
        """Its process id, None until it is known."""

    def poll(self) -> int | None:
        """Its exit code, minus the number of the signal that ended it, or None while it runs."""

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, as soon as it exists; nothing when it has ended."""


class StageHandle(Protocol):
    """The started processes of a stage, as one."""

    @property
    def pid(self) -> int | None:
        """Process id of rank 0, None until it is known."""

    @property
    def processes(self) -> int:
        """Return the number of its processes."""

    @property
    def failed_rank(self) -> int:
        """The process that failed first; 0 when none has."""

    @property
    def job(self) -> JobStart | None:
        """The start of the scheduler's job that this is; None where it is this machine's, or waits in a queue."""

    @property
    def where(self) -> str:
        """The scheduler and its number of the job, for people; empty on this machine."""

    @property
    def waits(self) -> bool:
        """Return True if it waits in a queue of its scheduler: it spends nothing yet, and gives no signs of life."""

    @property
    def cause(self) -> str:
        """The scheduler's word for why it ended (`scheduler.Cause`); empty where nobody but it knows."""

    @property
    def note(self) -> str:
        """Further words of the scheduler for that; empty where there are none."""

    @property
    def watched(self) -> Sequence[int]:
        """The processes that should give signs of life now."""

    def poll(self) -> int | None:
        """Its exit code, minus the number of the signal that ended it, or None while it runs.

        Of several processes: that of the one that failed first, which is why the others were ended.
        """

    def stop(self) -> None:
        """Ask all to stop at the next safe point."""

    def kill(self) -> None:
        """End all now; what was published stays."""

    def dump_stacks(self) -> None:
        """Let every process print into its log where it is."""


class Launcher(Protocol):
    """Starts stage processes: here, where they die with the supervisor, or as jobs elsewhere, which may outlive it."""

    @property
    def elsewhere(self) -> bool:
        """Return True if stages are jobs, which wait in a queue and outlive the supervisor."""

    def facts_of(self, stage: str) -> NodeFacts | None:
        """Return the facts of the nodes that compute a stage; None for this machine."""

    def under_way(self, request: StageStart) -> bool:
        """Return True if an attempt as this one runs already, started by the scheduler or by a supervisor that died.

        `start` then goes on with it. One that is not as this one is ended.
        """

    def end_left(self, stage_dir: Path) -> None:
        """End what runs there by itself, since something else will be started."""

    def start(self, request: StageStart) -> StageHandle:
        """Start one attempt."""

    def renew(self) -> None:
        """End whatever stands between the supervisor and its stages and does not answer; they end with it."""

    def end_all(self) -> None:
        """End everything that still runs."""

    def close(self) -> None:
        """The same, and give back what is held."""


LOCAL = "local"
SUBPROCESS = "subprocess"
"""This machine too, with stages as jobs."""
HERE = (LOCAL, SUBPROCESS)
RUNS: Mapping[str, str] = MappingProxyType(
    {
        "slurm": "a Slurm cluster",
        RAY: "a Ray cluster",
        "kubernetes": "a Kubernetes cluster",
        SUBPROCESS: "this machine, as jobs that outlive the supervisor",
    }
)
"""Launchers that run stages as jobs of a scheduler."""


def launcher_name(project: Project, wanted: str | None) -> str:
    """The launcher of a run: the one that is wanted, `resources.infra` where that names one, or this machine."""
    name = wanted or project.resources.infra or LOCAL
    if wanted is not None and name not in (LOCAL, *RUNS, *TARGETS):
        raise UsageError(f"no launcher is called {name!r}; there are {', '.join((LOCAL, *RUNS, *TARGETS))}")
    return name if name in (*RUNS, *TARGETS) else LOCAL


def drives_engine(stage: Stage, launcher: str) -> bool:
    """Return True if a stage's job on a launcher is one process, whose engine takes the accelerators of all nodes."""
    return is_hosted(stage) and capabilities(stage.engine).has_one_driver(stage.kind, launcher)


def open_scheduler(project: Project, name: str) -> Scheduler:
    """The scheduler of a launcher, with what the file says of it; asks it nothing yet."""
    match name:
        case "slurm":
            from charter.launch.slurm.scheduler import SlurmScheduler

            return SlurmScheduler(project.launch.slurm)
        case "ray":
            from charter.launch.ray.scheduler import RayScheduler

            return RayScheduler(project.launch.ray)
        case "kubernetes":
            from charter.launch.kubernetes.scheduler import KubernetesScheduler

            return KubernetesScheduler(project.launch.kubernetes)
        case "subprocess":
            from charter.launch.scheduler import SubprocessScheduler

            return SubprocessScheduler()
    raise UsageError(f"stages do not run on {name!r}; they run on {', '.join((LOCAL, *RUNS))}")
