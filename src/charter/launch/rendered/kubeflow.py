"""Kubeflow Pipelines: a pipeline of one pod per stage, which mounts the project's claim.

Its intermediate representation is what Vertex AI Pipelines run too.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from charter.errors import UsageError
from charter.launch.job import safe_name, yaml_text
from charter.launch.kubernetes.pod import LOST_NODE_SECONDS, LOST_NODE_TAINTS, checked_image
from charter.launch.machine import asked_memory, stage_threads
from charter.launch.rendered.task import RenderedTask
from charter.launch.tags import kubernetes_labels
from charter.spec.project import Project

SCHEMA_VERSION, SDK_VERSION = "2.1.0", "kfp-2.17.0"
RETRIES = 3
BACKOFF_SECONDS = 60


def pipeline(project: Project, tasks: Sequence[RenderedTask]) -> dict[str, str]:
    """Return the compiled pipeline, one file of two documents: the PipelineSpec, and what only Kubernetes knows."""
    executors = {task.stage: {"container": _container(project, task)} for task in tasks}
    configured = {f"exec-{safe_name(task.stage)}": _kubernetes(project, task) for task in tasks}
    platform = {"platforms": {"kubernetes": {"deploymentSpec": {"executors": configured}}}}
    documents = pipeline_spec(project, tasks, executors), platform
    return {"pipeline.yaml": "---\n".join(map(yaml_text, documents))}


def pipeline_spec(
    project: Project, tasks: Sequence[RenderedTask], executors: Mapping[str, dict[str, Any]]
) -> dict[str, Any]:
    """Return a PipelineSpec of one task per stage; `executors` are by stage.

    Nothing is cached: whether a stage is done is Charter's to say, and `charter run` ends at once where it is.
    """
    names = {task.stage: safe_name(task.stage) for task in tasks}
    return {
        "pipelineInfo": {"name": safe_name(project.name), "description": "Written by charter submit --print."},
        "schemaVersion": SCHEMA_VERSION,
        "sdkVersion": SDK_VERSION,
        "components": {f"comp-{name}": {"executorLabel": f"exec-{name}"} for name in names.values()},
        "deploymentSpec": {"executors": {f"exec-{name}": executors[stage] for stage, name in names.items()}},
        "root": {"dag": {"tasks": {names[task.stage]: _dag_task(task) for task in tasks}}},
    }


def _dag_task(task: RenderedTask) -> dict[str, Any]:
    name = safe_name(task.stage)
    spec: dict[str, Any] = {
        "taskInfo": {"name": name},
        "componentRef": {"name": f"comp-{name}"},
        "cachingOptions": {},
        "retryPolicy": {"maxRetryCount": RETRIES, "backoffDuration": f"{BACKOFF_SECONDS}s"},
    }
    if task.after:
        spec["dependentTasks"] = sorted(map(safe_name, task.after))
    return spec


def _container(project: Project, task: RenderedTask) -> dict[str, Any]:
    settings, command = project.launch.kubernetes, task.command("-C", project.launch.kubernetes.mount_path)
    resources: dict[str, Any] = {"resourceCpuRequest": str(stage_threads(project, project.pipeline[task.stage]))}
    if (memory := asked_memory(project, project.pipeline[task.stage])) is not None:
        resources["resourceMemoryRequest"] = str(memory)
    if project.resources.memory is not None:
        resources["resourceMemoryLimit"] = str(int(project.resources.memory))
    if task.machine.accelerator:
        count = str(task.machine.count)
        resources["accelerator"] = {"resourceType": settings.accelerator_resource, "resourceCount": count}
    container: dict[str, Any] = {
        "image": checked_image(settings),
        "command": [command[0]],
        "args": list(command[1:]),
        "resources": resources,
    }
    if task.environment:
        container["env"] = [{"name": name, "value": value} for name, value in sorted(task.environment.items())]
    return container


def _kubernetes(project: Project, task: RenderedTask) -> dict[str, Any]:
    settings = project.launch.kubernetes
    if not settings.volume_claim:
        raise UsageError(
            "the steps need a volume that all of them see\n  say launch.kubernetes.volume_claim in charter.yaml"
        )
    config: dict[str, Any] = {
        "pvcMount": [
            {
                "pvcNameParameter": {"runtimeValue": {"constant": settings.volume_claim}},
                "mountPath": settings.mount_path,
            }
        ],
        "podMetadata": {"labels": kubernetes_labels(task.tags)},
        "tolerations": [
            {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": str(LOST_NODE_SECONDS)}
            for key in LOST_NODE_TAINTS
        ],
        "enabledSharedMemory": {"volumeName": "shm"},
    }
    if settings.node_selector:
        config["nodeSelector"] = {"labels": dict(settings.node_selector)}
    if settings.secrets:
        config["secretAsEnv"] = [_secret(variable, place) for variable, place in sorted(settings.secrets.items())]
    return config


def _secret(variable: str, place: str) -> dict[str, Any]:
    secret, _, key = place.partition("/")
    named = {"runtimeValue": {"constant": secret}}
    return {"secretNameParameter": named, "keyToEnv": [{"secretKey": key, "envVar": variable}]}
