"""Vertex AI: stages as custom jobs and as steps of a pipeline, judges as endpoints; bodies of its REST API (v1)."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from charter.errors import UsageError
from charter.launch.rendered.kubeflow import pipeline_spec
from charter.launch.rendered.task import HostedModel, RenderedTask, ServiceInstance, checked_address, needed
from charter.launch.tags import google_labels, tags_of
from charter.spec.project import Project
from charter.units import GIB

DIRECTORY = "/mnt/nfs/charter"
"""Vertex AI mounts NFS beneath /mnt/nfs only."""
MOUNT = "charter"
SERVING_PORT = 8080
ACCELERATORS: Mapping[str, str] = MappingProxyType(
    {
        "B200-SXM-180GB": "NVIDIA_B200",
        "H200-SXM-141GB": "NVIDIA_H200_141GB",
        "H100-SXM-80GB": "NVIDIA_H100_80GB",
        "A100-SXM-80GB": "NVIDIA_A100_80GB",
        "A100-SXM-40GB": "NVIDIA_TESLA_A100",
        "L4": "NVIDIA_L4",
        "T4": "NVIDIA_TESLA_T4",
        "V100-SXM2-16GB": "NVIDIA_TESLA_V100",
    }
)
"""Source: Vertex AI API, enum AcceleratorType of google-cloud-aiplatform."""


def custom_job(project: Project, task: RenderedTask) -> dict[str, Any]:
    """Return the body of projects.locations.customJobs.create, on spot machines where the stage wants them."""
    return {"displayName": task.name, "labels": google_labels(task.tags), "jobSpec": _job_spec(project, task)}


def _job_spec(project: Project, task: RenderedTask) -> dict[str, Any]:
    """Return a CustomJobSpec: one machine that sees the project by NFS, whose locks and renames Charter needs.

    Cloud Storage mounted as a file system has neither.
    """
    settings, command = project.launch.managed, task.command("-C", DIRECTORY)
    server, path = _nfs_export(project)
    container: dict[str, Any] = {"imageUri": task.image, "command": [command[0]], "args": list(command[1:])}
    if task.environment:
        container["env"] = [{"name": name, "value": value} for name, value in sorted(task.environment.items())]
    scheduling: dict[str, Any] = {"timeout": f"{task.longest_seconds}s", "restartJobOnWorkerRestart": True}
    if task.use_spot:
        scheduling["strategy"] = "SPOT"
    spec: dict[str, Any] = {
        "workerPoolSpecs": [
            {
                "machineSpec": _machine_spec(task.machine),
                "replicaCount": "1",
                "nfsMounts": [{"server": server, "path": path, "mountPoint": MOUNT}],
                "diskSpec": {"bootDiskType": "pd-ssd", "bootDiskSizeGb": -(-int(settings.volume) // GIB)},
                "containerSpec": container,
            }
        ],
        "scheduling": scheduling,
        "network": needed(project, "network", "vertex"),
        "serviceAccount": settings.role,
    }
    return {key: value for key, value in spec.items() if value is not None}


def endpoint(project: Project, model: HostedModel) -> dict[str, dict[str, Any]]:
    """Return the three bodies of an endpoint: a model is uploaded, an endpoint made, the model deployed there."""
    labels = google_labels(model.tags)
    account, region = needed(project, "project", "vertex"), needed(project, "region", "vertex")
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
        where = "Vertex AI serves weights from Cloud Storage"
        example = "exports: gs://BUCKET/PATH, with what charter artifacts export wrote"
        uploaded["artifactUri"] = checked_address(model.weights, "gs://", where, example)
    deployed = {
        "displayName": model.name,
        "model": f"projects/{account}/locations/{region}/models/{model.name}",
        "dedicatedResources": {
            "machineSpec": _machine_spec(model.machine),
            "minReplicaCount": 1,
            "maxReplicaCount": 1,
        },
    }
    return {
        "models.upload.json": {"modelId": model.name, "model": uploaded},
        "endpoints.create.json": {"displayName": model.name, "labels": labels},
        "endpoints.deployModel.json": {"deployedModel": deployed, "trafficSplit": {"0": 100}},
    }


def pipeline(project: Project, tasks: Sequence[RenderedTask]) -> dict[str, Any]:
    """Return the body of projects.locations.pipelineJobs.create, whose steps are custom jobs."""
    executors = {task.stage: {"customJob": {"customJob": custom_job(project, task)}} for task in tasks}
    job: dict[str, Any] = {
        "displayName": project.name,
        "labels": google_labels(tags_of(project, run=project.name)),
        "pipelineSpec": pipeline_spec(project, tasks, executors),
        "runtimeConfig": {"failurePolicy": "PIPELINE_FAILURE_POLICY_FAIL_SLOW"},
        "serviceAccount": project.launch.managed.role,
        "network": project.launch.managed.network,
    }
    return {"pipeline.pipelineJobs.create.json": {key: value for key, value in job.items() if value is not None}}


def _machine_spec(machine: ServiceInstance) -> dict[str, Any]:
    spec: dict[str, Any] = {"machineType": machine.instance_type}
    if machine.accelerator:
        spec |= {"acceleratorType": ACCELERATORS[machine.accelerator], "acceleratorCount": machine.count}
    return spec


def _nfs_export(project: Project) -> tuple[str, str]:
    """Return server and path of the NFS export that holds the project."""
    where = needed(project, "storage", "vertex")
    server, colon, path = where.partition(":")
    if not colon or not path.startswith("/") or path.startswith("//"):
        raise UsageError(
            f"Vertex AI mounts a project by NFS, and {where!r} is no export\n"
            "  launch.managed.storage: SERVER:/EXPORT (Filestore)"
        )
    return server, path
