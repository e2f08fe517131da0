"""Vertex AI Pipelines: the pipeline whose steps are custom jobs, each with the project mounted by NFS."""

from typing import Any

from charter.launch.managed import vertex
from charter.launch.managed.task import ManagedTask, managed_task
from charter.launch.pipelines.intermediate import pipeline_spec
from charter.launch.tags import google_labels, tags_of
from charter.spec.project import Project


def pipeline_job(project: Project) -> dict[str, Any]:
    """The body of projects.locations.pipelineJobs.create."""
    executors = {
        name: {"customJob": {"customJob": vertex.custom_job(_task(project, name))}} for name in project.pipeline
    }
    job: dict[str, Any] = {
        "displayName": project.name,
        "labels": google_labels(tags_of(project, run=project.name)),
        "pipelineSpec": pipeline_spec(project, executors),
        "runtimeConfig": {"failurePolicy": "PIPELINE_FAILURE_POLICY_FAIL_SLOW"},
        "serviceAccount": project.launch.managed.role,
        "network": project.launch.managed.network,
    }
    return {key: value for key, value in job.items() if value is not None}


def _task(project: Project, name: str) -> ManagedTask:
    return managed_task(project, name, "vertex", directory=vertex.DIRECTORY)
