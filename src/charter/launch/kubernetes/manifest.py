"""The text that is sent to Kubernetes for a job."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal

from charter.errors import UsageError
from charter.launch.job import StageJob
from charter.launch.kubernetes.job_manifest import job_manifest
from charter.launch.kubernetes.jobset_manifest import jobset_manifest
from charter.launch.kubernetes.trainjob_manifest import trainjob_manifest
from charter.launch.plain_yaml import yaml_text
from charter.spec.launching import KubernetesSettings

Kind = Literal["job", "jobset", "trainjob"]
KINDS: Mapping[Kind, str] = MappingProxyType(
    {"job": "jobs.batch", "jobset": "jobsets.jobset.x-k8s.io", "trainjob": "trainjobs.trainer.kubeflow.org"}
)
"""By their full names, as `kubectl` finds them whatever else the cluster has."""
_MAKERS: Mapping[Kind, Callable[[StageJob, KubernetesSettings], dict[str, Any]]] = MappingProxyType(
    {"job": job_manifest, "jobset": jobset_manifest, "trainjob": trainjob_manifest}
)


def render(job: StageJob, settings: KubernetesSettings) -> str:
    """YAML of the one object that runs a job."""
    return yaml_text(manifest(job, settings))


def manifest(job: StageJob, settings: KubernetesSettings) -> dict[str, Any]:
    """The object as plain values."""
    return _MAKERS[kind_of(job, settings)](job, settings)


def kind_of(job: StageJob, settings: KubernetesSettings) -> Kind:
    """Shards are an indexed Job; several nodes a JobSet, or a TrainJob where the file says so; else a Job."""
    asked, gang = settings.shape, job.nodes + job.spare_nodes > 1
    if job.shards > 1 and gang:
        raise UsageError(f"{job.stage}: shards are pods of one node each\n  use num_nodes: 1 with shards")
    if job.shards > 1 or (asked == "auto" and not gang):
        return "job"
    if asked in ("job", "indexed_job"):
        if gang:
            raise UsageError(
                f"{job.stage}: a Job cannot run {job.nodes + job.spare_nodes} nodes together\n"
                "  use launch.kubernetes.shape: auto, jobset or trainjob"
            )
        return "job"
    return "trainjob" if asked == "trainjob" else "jobset"
