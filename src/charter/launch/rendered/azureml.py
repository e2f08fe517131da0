"""Azure ML: stages as command jobs, judges as managed online endpoints; YAML of its CLI (v2)."""

import shlex
from typing import Any

from charter.launch.rendered.task import HostedModel, RenderedTask, checked_address, needed
from charter.launch.tags import azure_tags
from charter.spec.project import Project

SCHEMAS = "https://azuremlschemas.azureedge.net/latest"
DIRECTORY = "${{outputs.project}}"
"""What Azure ML puts into the command for the mounted folder."""
SHARED_MEMORY = "64g"
SERVING_PORT = 8000
ENDPOINT_NAME_CHARACTERS = 32


def command_job(project: Project, task: RenderedTask) -> dict[str, Any]:
    """Return a command job whose output folder is the project, mounted to be read and written."""
    settings, folder = project.launch.managed, needed(project, "storage", "azureml").rstrip("/")
    example = "storage: azureml://datastores/NAME/paths/PATH"
    checked_address(folder, "azureml://", "Azure ML mounts a project from a datastore", example)
    environment = {"environment_variables": dict(task.environment)} if task.environment else {}
    resources: dict[str, Any] = {"instance_count": 1, "shm_size": SHARED_MEMORY}
    if settings.compute is None:
        resources["instance_type"] = task.machine.instance_type
    job: dict[str, Any] = {
        "$schema": f"{SCHEMAS}/commandJob.schema.json",
        "type": "command",
        "name": task.name,
        "display_name": task.stage,
        "experiment_name": task.tags["project"],
        "command": _shell(task.command("-C", DIRECTORY)),
        "environment": {"image": task.image},
        "compute": f"azureml:{settings.compute}" if settings.compute else None,
        "resources": resources,
        "queue_settings": {"job_tier": "spot" if task.use_spot else "standard"} if settings.compute is None else None,
        "limits": {"timeout": task.longest_seconds},
        "outputs": {"project": {"type": "uri_folder", "mode": "rw_mount", "path": folder}},
        **environment,
        "tags": azure_tags(task.tags),
    }
    return {key: value for key, value in job.items() if value is not None}


def endpoint(_: Project, model: HostedModel) -> dict[str, dict[str, Any]]:
    """Return the endpoint and its one deployment."""
    tags = azure_tags(model.tags)
    name = model.name[:ENDPOINT_NAME_CHARACTERS].rstrip("-")
    route = {"port": SERVING_PORT, "path": "/health"}
    deployment: dict[str, Any] = {
        "$schema": f"{SCHEMAS}/managedOnlineDeployment.schema.json",
        "name": "all",
        "endpoint_name": name,
        "environment": {
            "name": name,
            "image": model.image,
            "inference_config": {
                "liveness_route": route,
                "readiness_route": route,
                "scoring_route": {"port": SERVING_PORT, "path": "/v1/chat/completions"},
            },
        },
        "environment_variables": {"VLLM_MODEL": model.source, "VLLM_SERVED_MODEL_NAME": model.served_as},
        "instance_type": model.machine.instance_type,
        "instance_count": 1,
        "request_settings": {"request_timeout_ms": 180_000, "max_concurrent_requests_per_instance": 64},
        "tags": tags,
    }
    if model.weights:
        deployment["model"] = {"name": name, "path": model.weights, "type": "custom_model"}
        deployment["model_mount_path"] = "/var/charter-model"
        deployment["environment_variables"]["VLLM_MODEL"] = "/var/charter-model"
    described = {
        "$schema": f"{SCHEMAS}/managedOnlineEndpoint.schema.json",
        "name": name,
        "auth_mode": "key",
        "tags": tags,
    }
    return {"endpoint.yaml": described, "deployment.yaml": deployment}


def _shell(command: tuple[str, ...]) -> str:
    """Return the command as one line; the mounted folder is filled in by Azure ML and so must not be quoted."""
    return " ".join(word if word == DIRECTORY else shlex.quote(word) for word in command)
