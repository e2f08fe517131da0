"""Request to Ray for one attempt at a stage, as a plain mapping; pure. Submitted as it is printed."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import yaml

from charter.catalog import accelerators
from charter.errors import UsageError
from charter.launch.job import StageJob
from charter.spec.launching import RaySettings

ACCELERATOR_RESOURCE_SHARE = 0.001
"""What one task takes of `accelerator_type:X`, of which every such node has 1: Ray's own amount."""

RAY_TYPES: Mapping[str, str] = MappingProxyType(
    {
        "V100": "V100",
        "P100": "P100",
        "T4": "T4",
        "A10G": "A10G",
        "L4": "L4",
        "L40S": "L40S",
        "A100": "A100",
        "H100": "H100",
        "H200": "H200",
        "H20": "H20",
        "B200": "B200",
        "B300": "B300",
        "GB200": "GB200",
        "GB300": "GB300",
        "RTX-PRO-6000": "RTX-PRO-6000",
        "MI250X": "AMD-Instinct-MI250X",
        "MI300X": "AMD-Instinct-MI300X-OAM",
        "MI325X": "AMD-Instinct-MI325X-OAM",
        "MI355X": "AMD-Instinct-MI355X-OAM",
        "Gaudi2": "Intel-GAUDI",
        "Gaudi3": "Intel-GAUDI",
        "Ascend-910B": "Ascend910B",
    }
)
"""Start of a catalog name -> Ray's name (`ray.util.accelerators` of Ray 2.60).

Ray tells one A100 (H100, V100) from another only where the administrator has said more, so its memory is not asked.
"""


def ray_accelerator_type(accelerator: str) -> str:
    """Ray's name of an accelerator, which may be spelled as people do.

    >>> ray_accelerator_type("H100-SXM-80GB"), ray_accelerator_type("A100-80GB"), ray_accelerator_type("h20")
    ('H100', 'A100', 'H20')
    """
    parts = accelerators.get(accelerator).name.split("-")
    for length in range(len(parts), 0, -1):
        if name := RAY_TYPES.get("-".join(parts[:length])):
            return name
    raise UsageError(
        f"Ray has no name for the accelerator {accelerator}\n"
        f"  it knows {', '.join(RAY_TYPES)}\n"
        "  give such nodes a resource of their own (ray start --resources) and ask for it in launch.ray.resources"
    )


NAMESPACE = "charter"
"""Ray's namespace, in which the keeper is found by its name."""
KEEPER = "keeper-2"
"""Name of the detached actor that holds all jobs of Charter in a cluster; counts up when its protocol changes."""
DRIVER_CPUS = 1
"""Of the task that drives an engine: it waits for its workers most of the time."""
MOST_RESTARTS = 10
"""How often a job is started again because its node was lost or taken away, before that counts as a failure."""

_HEADER = """\
# What `charter` asks of the Ray cluster at {address}: actor {namespace}/{keeper} starts one task per
# node (per shard), each running the command below as a process of its own. Values of secrets are not shown: they
# are read where the job is submitted, and travel in the call, in no runtime_env and on no command line.
"""


def request_of(job: StageJob, settings: RaySettings) -> dict[str, Any]:
    """One job as the keeper takes it: the command, what every task takes of its node, when it ends."""
    return {
        "name": job.name,
        "entrypoint": list(job.command),
        "directory": str(job.directory),
        "log": str(job.log),
        "tasks": _tasks(job, settings),
        "resources_per_task": {"CPU": DRIVER_CPUS} if job.drives else resources_per_task(job, settings),
        "label_selector": {} if job.use_spot else {"ray.io/market-type": "!spot"},
        "exclude_nodes": sorted(job.exclude_nodes),
        "max_restarts": MOST_RESTARTS,
        "time_limit_seconds": job.time_limit_seconds,
        "stop_before_seconds": job.stop_before_seconds if job.time_limit_seconds is not None else None,
        "environment": dict(sorted(job.environment.items())),
        "secrets": dict(sorted(job.secrets.items())),
        "metadata": dict(sorted(job.labels.items())),
    }


def resources_per_task(job: StageJob, settings: RaySettings) -> dict[str, float]:
    """Return the resources that one task takes of its node, by Ray's names; memory in bytes.

    The custom resources that the file names are those of one process, so a node takes them times its processes.
    """
    resources: dict[str, float] = {"CPU": job.cpus_per_node}
    if job.accelerators_per_node:
        resources["GPU"] = job.accelerators_per_node
    if job.accelerators_per_node and job.accelerator:
        resources[f"accelerator_type:{ray_accelerator_type(job.accelerator)}"] = ACCELERATOR_RESOURCE_SHARE
    if job.memory_bytes_per_node is not None:
        resources["memory"] = job.memory_bytes_per_node
    processes = 1 if job.shards > 1 else job.processes_per_node
    for name, amount in sorted(settings.resources.items()):
        resources[name] = amount * processes
    return resources


def render_request(job: StageJob, settings: RaySettings) -> str:
    """The request as YAML, with where it goes."""
    header = _HEADER.format(address=settings.address, namespace=NAMESPACE, keeper=KEEPER)
    return header + yaml.safe_dump(request_of(job, settings), sort_keys=False, width=110)


def _tasks(job: StageJob, settings: RaySettings) -> Mapping[str, Any]:
    if job.shards > 1:
        return {"shards": job.shards}
    if job.drives:
        taken = {"nodes": job.nodes, "resources_per_node": resources_per_task(job, settings)}
        return {"nodes": 1, "engine_takes": taken}
    nodes = job.nodes + job.spare_nodes
    if nodes == 1:
        return {"nodes": 1}
    return {"nodes": nodes, "spares_among_them": job.spare_nodes, "placement_strategy": "STRICT_SPREAD"}
