"""A `batch/v1` Job: one pod, or one for every shard."""

from typing import Any

from charter.launch.job import StageJob
from charter.launch.kubernetes.failure_policy import RETRIES, gang_failure_policy, pod_failure_policy
from charter.launch.kubernetes.names import QUEUE_LABEL, job_annotations, job_labels, object_name
from charter.launch.kubernetes.pod import pod_template
from charter.spec.launching import KubernetesSettings

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
