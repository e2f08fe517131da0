"""The secret of one job: values that are read where it is submitted, handed to the cluster apart from the job."""

import json
from collections.abc import Mapping

from charter.launch.job import StageJob
from charter.launch.kubernetes.names import job_labels, object_name
from charter.spec.launching import KubernetesSettings


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
