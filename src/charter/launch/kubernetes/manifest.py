"""The text that is sent to Kubernetes for a job."""

import json
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal

from charter.errors import UsageError
from charter.launch.job import StageJob
from charter.launch.kubernetes.names import QUEUE_LABEL, job_annotations, job_labels, object_name
from charter.launch.kubernetes.pod import (
    CONTAINER,
    affinity,
    checked_image,
    container_command,
    container_environment,
    grace_seconds,
    pod_template,
    resources,
    tolerations,
    volume_mounts,
    volumes,
)
from charter.launch.plain_yaml import yaml_text
from charter.spec.launching import KubernetesSettings

AGENT_EXITS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
"""Codes that the node agent returns of itself. What follows (restart, roll back, another machine, nothing) is decided
by the supervisor, which knows why; 2, 3, 4, 7 and 8 would only fail again. A signal that ends it has another code."""
RETRIES = 0
"""Starts after a failure that Kubernetes may make by itself. A pod that the cluster took away (a disruption) is not a
failure, and replaced; every other end is the supervisor's affair, which goes on from a checkpoint as a new job."""


def pod_failure_policy(*, per_index: bool) -> dict[str, Any]:
    """Rules in their order; the first that fits counts, and what fits none counts against the backoff limit.

    A disruption (preemption, drain, eviction) is nobody's fault and is not counted. `per_index`: a shard that fails
    ends alone.
    """
    return {
        "rules": [
            {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            _agent_said(action="FailIndex" if per_index else "FailJob"),
        ]
    }


def gang_failure_policy() -> dict[str, Any]:
    """Of the Job inside a JobSet: a node that ends, for whatever reason, ends the Job, and all nodes start together.

    What the agent itself said fails with the reason `PodFailurePolicy`, by which the JobSet tells it from the rest.
    """
    return {"rules": [_agent_said(action="FailJob")]}


def _agent_said(*, action: str) -> dict[str, Any]:
    codes = {"containerName": CONTAINER, "operator": "In", "values": list(AGENT_EXITS)}
    return {"action": action, "onExitCodes": codes}


KEEP_SECONDS = 7 * 24 * 3600
"""A finished object stays so long, for whoever asks how it ended, and is then removed by the cluster."""


def job_manifest(job: StageJob, settings: KubernetesSettings) -> dict[str, Any]:
    """A Job that is Indexed even with one pod: only so does a pod learn how often it was started before.

    Failures are counted per index. With shards, one that has used up its retries fails alone and the others go on.
    """
    spec: dict[str, Any] = {
        "completionMode": "Indexed",
        "completions": job.shards,
        "parallelism": job.shards,
        "backoffLimitPerIndex": RETRIES,
        "backoffLimit": RETRIES if job.shards == 1 else None,
        "podFailurePolicy": pod_failure_policy(per_index=job.shards > 1),
        "podReplacementPolicy": "Failed",
        "ttlSecondsAfterFinished": KEEP_SECONDS,
        "suspend": True if settings.queue else None,
        "template": pod_template(job, settings),
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata(job, settings),
        "spec": {key: value for key, value in spec.items() if value is not None},
    }


def gang_job(job: StageJob, settings: KubernetesSettings, *, pods: int) -> dict[str, Any]:
    """The spec of the Job inside a JobSet: one pod per node, all or none."""
    return {
        "completionMode": "Indexed",
        "completions": pods,
        "parallelism": pods,
        "backoffLimit": 0,
        "podFailurePolicy": gang_failure_policy(),
        "podReplacementPolicy": "Failed",
        "template": pod_template(job, settings),
    }


def metadata(job: StageJob, settings: KubernetesSettings) -> dict[str, Any]:
    """Name, namespace, labels and annotations of the object that is submitted, with Kueue's queue if there is one."""
    queue = {QUEUE_LABEL: settings.queue} if settings.queue else {}
    return {
        "name": object_name(job.name),
        "namespace": settings.namespace,
        "labels": {**job_labels(job), **queue},
        "annotations": job_annotations(job),
    }


NODES = "nodes"
"""The one replicated job; its pod of index k is node k."""


def jobset_manifest(job: StageJob, settings: KubernetesSettings) -> dict[str, Any]:
    """One Job of as many pods as nodes, with a headless service that also names pods which are not ready yet.

    What ends one node ends the set: its pods cannot go on without each other, and the supervisor sends a new one.
    """
    pods = job.nodes + job.spare_nodes
    spec: dict[str, Any] = {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        "failurePolicy": {
            "maxRestarts": RETRIES,
            "rules": [
                {"name": "agentSaidSo", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]},
            ],
        },
        "successPolicy": {"operator": "All"},
        "ttlSecondsAfterFinished": KEEP_SECONDS,
        "suspend": True if settings.queue else None,
        "replicatedJobs": [
            {
                "name": NODES,
                "replicas": 1,
                "template": {
                    "metadata": {"labels": job_labels(job), "annotations": job_annotations(job)},
                    "spec": gang_job(job, settings, pods=pods),
                },
            }
        ],
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": metadata(job, settings),
        "spec": {key: value for key, value in spec.items() if value is not None},
    }


NODE = "node"
"""What the runtimes of Kubeflow Trainer call both the replicated job of a training and its container."""
MANAGER = "charter/launch"


def trainjob_manifest(job: StageJob, settings: KubernetesSettings) -> dict[str, Any]:
    """As many nodes as the job has, each running the node agent; patches carry what the runtime does not know."""
    _check(job, settings)
    spec: dict[str, Any] = {
        "runtimeRef": {
            "apiGroup": "trainer.kubeflow.org",
            "kind": "ClusterTrainingRuntime",
            "name": settings.training_runtime,
        },
        "suspend": True if settings.queue else None,
        "activeDeadlineSeconds": None if job.time_limit_seconds is None else max(1, int(job.time_limit_seconds)),
        "trainer": {
            "image": checked_image(settings),
            "command": container_command(job),
            "env": container_environment(job, settings.secrets),
            "numNodes": job.nodes + job.spare_nodes,
            "numProcPerNode": job.processes_per_node,
            "resourcesPerNode": resources(job, settings),
        },
        "runtimePatches": [{"manager": MANAGER, "trainingRuntimeSpec": {"template": _jobset_patch(job, settings)}}],
    }
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": metadata(job, settings),
        "spec": {key: value for key, value in spec.items() if value is not None},
    }


def _jobset_patch(job: StageJob, settings: KubernetesSettings) -> dict[str, Any]:
    pod = {
        "affinity": affinity(job, settings),
        "containers": [{"name": NODE, "volumeMounts": volume_mounts(settings)}],
        "nodeSelector": dict(settings.node_selector) or None,
        "serviceAccountName": settings.service_account,
        "terminationGracePeriodSeconds": grace_seconds(job),
        "tolerations": tolerations(job, settings),
        "volumes": volumes(job, settings),
    }
    template = {
        "metadata": {"labels": job_labels(job), "annotations": job_annotations(job)},
        "spec": {key: value for key, value in pod.items() if value is not None},
    }
    return {"spec": {"replicatedJobs": [{"name": NODE, "template": {"spec": {"template": template}}}]}}


def _check(job: StageJob, settings: KubernetesSettings) -> None:
    if settings.priority_class is not None:
        raise UsageError(
            "a TrainJob cannot carry launch.kubernetes.priority_class: its training runtime does\n"
            f"  set priorityClassName in the runtime {settings.training_runtime}, or use shape: jobset"
        )
    if job.shards > 1:
        raise UsageError("a TrainJob has nodes, not shards\n  use shape: auto, which makes an indexed Job of them")


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
    shape, gang = settings.shape, job.nodes + job.spare_nodes > 1
    if job.shards > 1 and gang:
        raise UsageError(f"{job.stage}: shards are pods of one node each\n  use num_nodes: 1 with shards")
    if job.shards > 1 or (shape == "auto" and not gang):
        return "job"
    if shape in ("job", "indexed_job"):
        if gang:
            raise UsageError(
                f"{job.stage}: a Job cannot run {job.nodes + job.spare_nodes} nodes together\n"
                "  use launch.kubernetes.shape: auto, jobset or trainjob"
            )
        return "job"
    return "trainjob" if shape == "trainjob" else "jobset"


def secret_text(job: StageJob, settings: KubernetesSettings, values: Mapping[str, str]) -> str:
    """A Secret as JSON. It goes to `kubectl` by its input and nowhere else: it is never printed or kept."""
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "Opaque",
            "immutable": True,
            "metadata": {
                "name": object_name(job.name),
                "namespace": settings.namespace,
                "labels": job_labels(job),
            },
            "stringData": dict(values),
        }
    )


def owner_patch(job: StageJob, *, api_version: str, kind: str, uid: str) -> str:
    """Makes the secret the job's, so that the cluster removes it with the job."""
    owner = {"apiVersion": api_version, "kind": kind, "name": object_name(job.name), "uid": uid}
    return json.dumps({"metadata": {"ownerReferences": [owner]}})
