"""From the name of a launcher to its scheduler: what stands in `--on`, and in `resources.infra`."""

from collections.abc import Mapping
from types import MappingProxyType

from charter.errors import UsageError
from charter.launch.rendered import TARGETS
from charter.launch.scheduler import Scheduler
from charter.spec.project import Project

LOCAL = "local"
SUBPROCESS = "subprocess"
"""This machine too, with stages as jobs."""
HERE = (LOCAL, SUBPROCESS)
RUNS: Mapping[str, str] = MappingProxyType(
    {
        "slurm": "a Slurm cluster",
        "ray": "a Ray cluster",
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
            from charter.launch.subprocess_scheduler import SubprocessScheduler

            return SubprocessScheduler()
    raise UsageError(f"stages do not run on {name!r}; they run on {', '.join((LOCAL, *RUNS))}")
