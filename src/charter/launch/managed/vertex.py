"""Vertex AI: a stage as a custom job, a judge as an endpoint; bodies of its REST API (v1)."""

from typing import Any

from charter.errors import UsageError
from charter.launch.managed.task import HostedModel, ManagedMachine, ManagedTask, needed
from charter.launch.tags import google_labels
from charter.units import GIB

DIRECTORY = "/mnt/nfs/charter"
"""Vertex AI mounts NFS beneath /mnt/nfs only."""
MOUNT = "charter"
SERVING_PORT = 8080


def custom_job(task: ManagedTask) -> dict[str, Any]:
    """The body of projects.locations.customJobs.create, on spot machines where the stage wants them."""
    return {"displayName": task.name, "labels": google_labels(task.tags), "jobSpec": job_spec(task)}


def job_spec(task: ManagedTask) -> dict[str, Any]:
    """A CustomJobSpec: one machine that sees the project by NFS, whose locks and renames Charter needs.

    Cloud Storage mounted as a file system has neither.
    """
    server, path = nfs_export(task)
    settings = task.settings
    container: dict[str, Any] = {"imageUri": task.image, "command": [task.command[0]], "args": list(task.command[1:])}
    if task.environment:
        container["env"] = [{"name": name, "value": value} for name, value in sorted(task.environment.items())]
    scheduling: dict[str, Any] = {"timeout": f"{task.longest_seconds}s", "restartJobOnWorkerRestart": True}
    if task.use_spot:
        scheduling["strategy"] = "SPOT"
    spec: dict[str, Any] = {
        "workerPoolSpecs": [
            {
                "machineSpec": machine_spec(task.machine),
                "replicaCount": "1",
                "nfsMounts": [{"server": server, "path": path, "mountPoint": MOUNT}],
                "diskSpec": {"bootDiskType": "pd-ssd", "bootDiskSizeGb": -(-int(settings.volume) // GIB)},
                "containerSpec": container,
            }
        ],
        "scheduling": scheduling,
        "network": needed(settings.network, "network", task.service),
        "serviceAccount": settings.role,
    }
    return {key: value for key, value in spec.items() if value is not None}


def endpoint(model: HostedModel) -> dict[str, dict[str, Any]]:
    """The three bodies of an endpoint: a model is uploaded, an endpoint made, the model deployed there."""
    labels, settings = google_labels(model.tags), model.settings
    project, region = needed(settings.project, "project", "vertex"), needed(settings.region, "region", "vertex")
    uploaded: dict[str, Any] = {
        "displayName": model.name,
        "labels": labels,
        "containerSpec": {
            "imageUri": model.image,
            "args": ["--model", model.source, "--served-model-name", model.served_as, "--port", str(SERVING_PORT)],
            "ports": [{"containerPort": SERVING_PORT}],
            "predictRoute": "/v1/chat/completions",
            "healthRoute": "/health",
        },
    }
    if model.weights:
        uploaded["artifactUri"] = _in_cloud_storage(model.weights)
    deployed = {
        "displayName": model.name,
        "model": f"projects/{project}/locations/{region}/models/{model.name}",
        "dedicatedResources": {
            "machineSpec": machine_spec(model.machine),
            "minReplicaCount": 1,
            "maxReplicaCount": 1,
        },
    }
    return {
        "models.upload": {"modelId": model.name, "model": uploaded},
        "endpoints.create": {"displayName": model.name, "labels": labels},
        "endpoints.deployModel": {"deployedModel": deployed, "trafficSplit": {"0": 100}},
    }


def machine_spec(machine: ManagedMachine) -> dict[str, Any]:
    """A MachineSpec."""
    spec: dict[str, Any] = {"machineType": machine.instance_type}
    if machine.accelerator:
        spec |= {"acceleratorType": machine.vertex_accelerator, "acceleratorCount": machine.count}
    return spec


def _in_cloud_storage(address: str) -> str:
    if not address.startswith("gs://"):
        raise UsageError(
            f"Vertex AI serves weights from Cloud Storage, not from {address!r}\n"
            "  launch.managed.exports: gs://BUCKET/PATH, with what charter export wrote"
        )
    return address


def nfs_export(task: ManagedTask) -> tuple[str, str]:
    """Server and path of the NFS export that holds the project."""
    where = needed(task.settings.storage, "storage", task.service)
    server, colon, path = where.partition(":")
    if not colon or not path.startswith("/") or path.startswith("//"):
        raise UsageError(
            f"Vertex AI mounts a project by NFS, and {where!r} is no export\n"
            "  launch.managed.storage: SERVER:/EXPORT (Filestore)"
        )
    return server, path
