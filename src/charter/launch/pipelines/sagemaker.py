"""SageMaker Pipelines: the pipeline whose steps are training jobs."""

from typing import Any

from charter.launch.job import safe_name
from charter.launch.managed import sagemaker
from charter.launch.managed.task import managed_task, needed
from charter.launch.pipelines.edges import edges
from charter.launch.tags import aws_tags, tags_of
from charter.spec.project import Project

VERSION = "2020-12-01"
"""Of the definition's schema; the only one."""
ATTEMPTS = 5
INTERVAL_SECONDS = 60


def pipeline(project: Project, definition: str) -> dict[str, Any]:
    """The request CreatePipeline; `definition` is the JSON text of `pipeline_definition`."""
    return {
        "PipelineName": safe_name(project.name),
        "PipelineDefinition": definition,
        "ClientRequestToken": f"charter-{safe_name(project.name)}".ljust(32, "0")[:128],
        "RoleArn": needed(project.launch.managed.role, "role", "sagemaker"),
        "Tags": aws_tags(tags_of(project, run=project.name)),
    }


def pipeline_definition(project: Project) -> dict[str, Any]:
    """A definition of one training step per stage; a step that lost its machine is tried again."""
    steps = [_step(project, name, before) for name, before in edges(project).items()]
    return {"Version": VERSION, "Metadata": {"charter": "submit --print"}, "Parameters": [], "Steps": steps}


def _step(project: Project, name: str, before: tuple[str, ...]) -> dict[str, Any]:
    arguments = sagemaker.training_job(managed_task(project, name, "sagemaker", directory=sagemaker.DIRECTORY))
    del arguments["TrainingJobName"]
    step: dict[str, Any] = {"Name": safe_name(name), "Type": "Training", "Arguments": arguments}
    if before:
        step["DependsOn"] = [safe_name(other) for other in before]
    step["RetryPolicies"] = [
        {
            "ExceptionType": ["SageMaker.CAPACITY_ERROR", "SageMaker.JOB_INTERNAL_ERROR", "Step.THROTTLING"],
            "IntervalSeconds": INTERVAL_SECONDS,
            "BackoffRate": 2.0,
            "MaxAttempts": ATTEMPTS,
        }
    ]
    return step
