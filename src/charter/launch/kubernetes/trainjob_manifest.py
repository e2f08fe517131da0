"""A Kubeflow TrainJob (`trainer.kubeflow.org/v1alpha1`), for clusters whose training goes through Kubeflow Trainer.

A TrainJob fills in a training runtime of the cluster. The runtime, not the TrainJob, holds what a pod does when it
fails, its priority class and how long it may run: those settings of Charter have no place here and are refused.
"""

from typing import Any

from charter.errors import UsageError
from charter.launch.job import StageJob
from charter.launch.kubernetes.environment import container_command, container_environment
from charter.launch.kubernetes.job_manifest import metadata
from charter.launch.kubernetes.names import job_annotations, job_labels
from charter.launch.kubernetes.placement import affinity, tolerations
from charter.launch.kubernetes.pod import checked_image, grace_seconds, resources, volume_mounts, volumes
from charter.spec.launching import KubernetesSettings

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
