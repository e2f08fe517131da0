"""What is asked of Ray for one attempt at a stage, as a plain mapping; pure. Submitted as it is printed."""

from collections.abc import Mapping
from typing import Any

import yaml

from charter.launch.job import StageJob
from charter.launch.ray.accelerator_types import ACCELERATOR_RESOURCE_SHARE, ray_accelerator_type
from charter.spec.launching import RaySettings

NAMESPACE = "charter"
"""Ray's namespace, in which the keeper is found by its name."""
KEEPER = "keeper-1"
"""Name of the detached actor that holds all jobs of Charter in a cluster; counts up when its protocol changes."""
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
        "tasks": _tasks(job),
        "resources_per_task": resources_per_task(job, settings),
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
    """What one task takes of its node, by Ray's names; memory in bytes.

    The custom resources that the file names are those of one process, so a node takes them times its processes.
    """
    asked: dict[str, float] = {"CPU": job.cpus_per_node}
    if job.accelerators_per_node:
        asked["GPU"] = job.accelerators_per_node
    if job.accelerators_per_node and job.accelerator:
        asked[f"accelerator_type:{ray_accelerator_type(job.accelerator)}"] = ACCELERATOR_RESOURCE_SHARE
    if job.memory_bytes_per_node is not None:
        asked["memory"] = job.memory_bytes_per_node
    processes = 1 if job.shards > 1 else job.processes_per_node
    for name, amount in sorted(settings.resources.items()):
        asked[name] = amount * processes
    return asked


def render_request(job: StageJob, settings: RaySettings) -> str:
    """The request as YAML, with where it goes."""
    header = _HEADER.format(address=settings.address, namespace=NAMESPACE, keeper=KEEPER)
    return header + yaml.safe_dump(request_of(job, settings), sort_keys=False, width=110)


def _tasks(job: StageJob) -> Mapping[str, Any]:
    if job.shards > 1:
        return {"shards": job.shards}
    nodes = job.nodes + job.spare_nodes
    if nodes == 1:
        return {"nodes": 1}
    return {"nodes": nodes, "spares_among_them": job.spare_nodes, "placement_strategy": "STRICT_SPREAD"}
