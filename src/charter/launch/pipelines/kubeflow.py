"""Kubeflow Pipelines: the pipeline with one pod per stage, which mounts the project's claim."""

from typing import Any

from charter.errors import UsageError
from charter.launch.job import safe_name
from charter.launch.kubernetes.pod import LOST_NODE_SECONDS, LOST_NODE_TAINTS, checked_image
from charter.launch.machine import CPU, asked_accelerators, stage_nodes, stage_threads
from charter.launch.pipelines.intermediate import pipeline_spec
from charter.launch.tags import kubernetes_labels, tags_of
from charter.spec.project import Project


def documents(project: Project) -> list[dict[str, Any]]:
    """The two YAML documents of a compiled pipeline: the PipelineSpec, and what only Kubernetes knows."""
    for name, stage in project.pipeline.items():
        if (nodes := stage_nodes(project, stage)) > 1:
            raise UsageError(
                f"{name}: a step of Kubeflow Pipelines is one pod, and this stage asks for {nodes} nodes\n"
                "  use charter run --on kubernetes, which makes a JobSet of them"
            )
    executors = {name: {"container": _container(project, name)} for name in project.pipeline}
    configured = {f"exec-{safe_name(name)}": _kubernetes(project, name) for name in project.pipeline}
    platform = {"platforms": {"kubernetes": {"deploymentSpec": {"executors": configured}}}}
    return [pipeline_spec(project, executors), platform]


def _container(project: Project, name: str) -> dict[str, Any]:
    settings, stage = project.launch.kubernetes, project.pipeline[name]
    directory = settings.mount_path
    kind, count = asked_accelerators(project, stage)
    resources: dict[str, Any] = {"resourceCpuRequest": str(stage_threads(project, stage))}
    if project.resources.memory is not None:
        resources["resourceMemoryLimit"] = str(int(project.resources.memory))
    if kind not in ("", CPU, "any"):
        resources["accelerator"] = {"resourceType": settings.accelerator_resource, "resourceCount": str(count)}
    container: dict[str, Any] = {
        "image": checked_image(settings),
        "command": ["charter"],
        "args": ["run", "-C", directory, "--only", name, "--yes"],
        "resources": resources,
    }
    if project.launch.environment:
        variables = sorted(project.launch.environment.items())
        container["env"] = [{"name": variable, "value": value} for variable, value in variables]
    return container


def _kubernetes(project: Project, name: str) -> dict[str, Any]:
    settings = project.launch.kubernetes
    if not settings.volume_claim:
        raise UsageError(
            "the steps need a volume that all of them see\n  say launch.kubernetes.volume_claim in charter.yaml"
        )
    labels = kubernetes_labels(tags_of(project, run=project.name, stage=name))
    config: dict[str, Any] = {
        "pvcMount": [
            {
                "pvcNameParameter": {"runtimeValue": {"constant": settings.volume_claim}},
                "mountPath": settings.mount_path,
            }
        ],
        "podMetadata": {"labels": labels},
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
