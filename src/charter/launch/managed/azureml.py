"""Azure ML: a stage as a command job, a judge as a managed online endpoint; YAML of its CLI (v2)."""

import shlex
from typing import Any

from charter.errors import UsageError
from charter.launch.managed.task import HostedModel, ManagedTask, needed
from charter.launch.tags import azure_tags

SCHEMAS = "https://azuremlschemas.azureedge.net/latest"
DIRECTORY = "${{outputs.project}}"
"""What Azure ML puts into the command for the mounted folder."""
SHARED_MEMORY = "64g"
SERVING_PORT = 8000
ENDPOINT_NAME_CHARACTERS = 32


def command_job(task: ManagedTask) -> dict[str, Any]:
    """A command job whose output folder is the project, mounted to be read and written."""
    settings, environment = task.settings, {"environment_variables": dict(task.environment)} if task.environment else {}
    resources: dict[str, Any] = {"instance_count": 1, "shm_size": SHARED_MEMORY}
    if settings.compute is None:
        resources["instance_type"] = task.machine.instance_type
    job: dict[str, Any] = {
        "$schema": f"{SCHEMAS}/commandJob.schema.json",
        "type": "command",
        "name": task.name,
        "display_name": task.stage,
        "experiment_name": task.tags["project"],
        "command": _shell(task.command),
        "environment": {"image": task.image},
        "compute": f"azureml:{settings.compute}" if settings.compute else None,
        "resources": resources,
        "queue_settings": {"job_tier": "spot" if task.use_spot else "standard"} if settings.compute is None else None,
        "limits": {"timeout": task.longest_seconds},
        "outputs": {"project": {"type": "uri_folder", "mode": "rw_mount", "path": folder(task)}},
        **environment,
        "tags": azure_tags(task.tags),
    }
    return {key: value for key, value in job.items() if value is not None}


def endpoint(model: HostedModel) -> dict[str, dict[str, Any]]:
    """The endpoint and its one deployment."""
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
    return {"endpoint": described, "deployment": deployment}


def folder(task: ManagedTask) -> str:
    """The path of a datastore that holds the project."""
    where = needed(task.settings.storage, "storage", task.service).rstrip("/")
    if not where.startswith("azureml://"):
        raise UsageError(
            f"Azure ML mounts a project from a datastore, not from {where!r}\n"
            "  launch.managed.storage: azureml://datastores/NAME/paths/PATH"
        )
    return where


def _shell(command: tuple[str, ...]) -> str:
    """The command as one line, in which the mounted folder is filled in by Azure ML and so must not be quoted."""
    return " ".join(word if word == DIRECTORY else shlex.quote(word) for word in command)
