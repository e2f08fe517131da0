"""The pipeline in KFP's intermediate representation, which Kubeflow Pipelines and Vertex AI Pipelines both run."""

from collections.abc import Mapping
from typing import Any

from charter.launch.job import safe_name
from charter.launch.pipelines.edges import edges
from charter.spec.project import Project

SCHEMA_VERSION, SDK_VERSION = "2.1.0", "kfp-2.17.0"
RETRIES = 3
BACKOFF_SECONDS = 60


def pipeline_spec(project: Project, executors: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """A PipelineSpec of one task per stage; `executors` are by stage.

    Nothing is cached: whether a stage is done is Charter's to say, and `charter run` ends at once where it is.
    """
    names = {stage: safe_name(stage) for stage in project.pipeline}
    before = edges(project)
    tasks = {}
    for stage, name in names.items():
        task: dict[str, Any] = {
            "taskInfo": {"name": name},
            "componentRef": {"name": f"comp-{name}"},
            "cachingOptions": {},
            "retryPolicy": {"maxRetryCount": RETRIES, "backoffDuration": f"{BACKOFF_SECONDS}s"},
        }
        if before[stage]:
            task["dependentTasks"] = sorted(names[other] for other in before[stage])
        tasks[name] = task
    return {
        "pipelineInfo": {"name": safe_name(project.name), "description": "Written by charter submit --print."},
        "schemaVersion": SCHEMA_VERSION,
        "sdkVersion": SDK_VERSION,
        "components": {f"comp-{name}": {"executorLabel": f"exec-{name}"} for name in names.values()},
        "deploymentSpec": {"executors": {f"exec-{name}": executors[stage] for stage, name in names.items()}},
        "root": {"dag": {"tasks": tasks}},
    }
