"""The pod of one node, or of one shard, of a job."""

import math
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from charter.errors import UsageError
from charter.launch.job import StageJob
from charter.launch.kubernetes.environment import container_command, container_environment
from charter.launch.kubernetes.names import job_annotations, job_labels
from charter.launch.kubernetes.placement import affinity, tolerations
from charter.spec.launching import KubernetesSettings

CONTAINER = "stage"
PROJECT_VOLUME, SHARED_MEMORY = "project", "shared-memory"
SHARED_MEMORY_SHARE = 2
"""/dev/shm may take this part of the pod's memory (one half): workers of a data loader and NCCL exchange data there,
and a container has 64 MiB otherwise."""


def pod_template(job: StageJob, settings: KubernetesSettings) -> dict[str, Any]:
    """The pod template of a Job or of the Job of a JobSet."""
    return {
        "metadata": {"labels": job_labels(job), "annotations": job_annotations(job)},
        "spec": pod_spec(job, settings),
    }


def pod_spec(job: StageJob, settings: KubernetesSettings) -> dict[str, Any]:
    """What runs, with what, where, and how long it may take to stop."""
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": grace_seconds(job),
        "activeDeadlineSeconds": active_seconds(job),
        "automountServiceAccountToken": False if settings.service_account is None else None,
        "serviceAccountName": settings.service_account,
        "priorityClassName": settings.priority_class,
        "nodeSelector": dict(settings.node_selector) or None,
        "affinity": affinity(job, settings),
        "tolerations": tolerations(job, settings),
        "containers": [container(job, settings)],
        "volumes": volumes(job, settings),
    }
    return {key: value for key, value in spec.items() if value is not None}


def container(job: StageJob, settings: KubernetesSettings) -> dict[str, Any]:
    """The container that runs the node agent."""
    return {
        "name": CONTAINER,
        "image": checked_image(settings),
        "command": container_command(job),
        "workingDir": settings.mount_path,
        "env": container_environment(job, settings.secrets),
        "resources": resources(job, settings),
        "volumeMounts": volume_mounts(settings),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def resources(job: StageJob, settings: KubernetesSettings) -> dict[str, Any]:
    """What is asked and, of memory and accelerators, also the most that is given; quantities are texts.

    There is no limit on CPUs: it would slow a process down that nobody else needs them from.
    """
    hard: dict[str, str] = {}
    if job.memory_bytes_per_node is not None:
        hard["memory"] = str(job.memory_bytes_per_node)
    if job.accelerators_per_node:
        hard[settings.accelerator_resource] = str(job.accelerators_per_node)
    asked: Mapping[str, Any] = {"requests": {"cpu": str(job.cpus_per_node), **hard}, "limits": hard}
    return {key: value for key, value in asked.items() if value}


def volumes(job: StageJob, settings: KubernetesSettings) -> list[dict[str, Any]]:
    """The claim that holds the project, and memory that the processes of a pod share."""
    memory: dict[str, str] = {"medium": "Memory"}
    if job.memory_bytes_per_node is not None:
        memory["sizeLimit"] = str(job.memory_bytes_per_node // SHARED_MEMORY_SHARE)
    return [
        {"name": PROJECT_VOLUME, "persistentVolumeClaim": {"claimName": checked_claim(job, settings)}},
        {"name": SHARED_MEMORY, "emptyDir": memory},
    ]


def volume_mounts(settings: KubernetesSettings) -> list[dict[str, str]]:
    """Where they are in the container."""
    return [
        {"name": PROJECT_VOLUME, "mountPath": settings.mount_path},
        {"name": SHARED_MEMORY, "mountPath": "/dev/shm"},
    ]


def grace_seconds(job: StageJob) -> int:
    """Seconds between SIGTERM and SIGKILL: long enough to stop at a checkpoint."""
    return max(1, math.ceil(job.stop_before_seconds))


def active_seconds(job: StageJob) -> int | None:
    """Seconds after which Kubernetes ends a pod that has not stopped by itself: the time limit.

    It counts from the pod's start, so that neither a queue nor an earlier start of the job takes from it, but with the
    pull of its image. The agent asks the stage to stop before (`stop_before`), by its own clock.
    """
    return None if job.time_limit_seconds is None else max(1, math.ceil(job.time_limit_seconds))


def checked_image(settings: KubernetesSettings) -> str:
    """The image, or what to write."""
    if not settings.image:
        raise UsageError(
            "Kubernetes needs an image with Charter in it\n"
            "  say launch.kubernetes.image in charter.yaml: REGISTRY/NAME:TAG"
        )
    return settings.image


def checked_claim(job: StageJob, settings: KubernetesSettings) -> str:
    """The claim that holds the project, if the stage directory lies in it."""
    if not settings.volume_claim:
        raise UsageError(
            "pods need a volume that all of them and this process see\n"
            "  say launch.kubernetes.volume_claim in charter.yaml: a ReadWriteMany claim, mounted here too"
        )
    directory = PurePosixPath(job.directory)
    if not directory.is_relative_to(settings.mount_path):
        raise UsageError(
            f"the stage directory {directory} is not in {settings.mount_path}, where pods see the claim "
            f"{settings.volume_claim}\n  put the project there, or say launch.kubernetes.mount_path"
        )
    return settings.volume_claim
