"""A JobSet (`jobset.x-k8s.io/v1alpha2`): all nodes of a job, which start and end together and find each other."""

from typing import Any

from charter.launch.job import StageJob
from charter.launch.kubernetes.failure_policy import RETRIES
from charter.launch.kubernetes.job_manifest import KEEP_SECONDS, gang_job, metadata
from charter.launch.kubernetes.names import job_annotations, job_labels
from charter.spec.launching import KubernetesSettings

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
