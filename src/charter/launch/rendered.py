"""All texts of a project for a service that Charter does not submit to itself, by the name of the file for each."""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from charter.launch.managed import azureml, sagemaker, vertex
from charter.launch.managed.task import hosted_models, managed_task
from charter.launch.pipelines import kubeflow
from charter.launch.pipelines import sagemaker as sagemaker_pipeline
from charter.launch.pipelines import vertex as vertex_pipeline
from charter.launch.plain_yaml import yaml_text
from charter.spec.project import Project

SERVICES: Mapping[str, str] = MappingProxyType(
    {
        "sagemaker": "Amazon SageMaker AI: training jobs, endpoints, a pipeline",
        "vertex": "Google Vertex AI: custom jobs, endpoints, a pipeline",
        "azureml": "Azure Machine Learning: command jobs, online endpoints",
        "kfp": "Kubeflow Pipelines: a pipeline of pods",
    }
)


def texts_for(project: Project, service: str) -> dict[str, str]:
    """What would be sent, in the order in which it is needed: endpoints, one job per stage, the pipeline of all."""
    return _MAKERS[service](project)


def printed(texts: Mapping[str, str]) -> str:
    """All texts as one, each behind the name of its file.

    >>> print(printed({"a.json": "{}\\n", "b.json": "[]\\n"}), end="")
    # a.json
    {}
    <BLANKLINE>
    # b.json
    []
    """
    return "\n".join(f"# {name}\n{text}" for name, text in texts.items())


def _sagemaker(project: Project) -> dict[str, str]:
    found = {}
    for model in hosted_models(project, "sagemaker"):
        for request, body in sagemaker.endpoint(model).items():
            found[f"{model.name}.{request}.json"] = _json(body)
    for name in project.pipeline:
        task = managed_task(project, name, "sagemaker", directory=sagemaker.DIRECTORY)
        found[f"{task.name}.CreateTrainingJob.json"] = _json(sagemaker.training_job(task))
    definition = _json(sagemaker_pipeline.pipeline_definition(project))
    found["pipeline.definition.json"] = definition
    found["pipeline.CreatePipeline.json"] = _json(sagemaker_pipeline.pipeline(project, definition))
    return found


def _vertex(project: Project) -> dict[str, str]:
    found = {}
    for model in hosted_models(project, "vertex"):
        for method, body in vertex.endpoint(model).items():
            found[f"{model.name}.{method}.json"] = _json(body)
    for name in project.pipeline:
        task = managed_task(project, name, "vertex", directory=vertex.DIRECTORY)
        found[f"{task.name}.customJobs.create.json"] = _json(vertex.custom_job(task))
    found["pipeline.pipelineJobs.create.json"] = _json(vertex_pipeline.pipeline_job(project))
    return found


def _azureml(project: Project) -> dict[str, str]:
    found = {}
    for model in hosted_models(project, "azureml"):
        for part, body in azureml.endpoint(model).items():
            found[f"{model.name}.{part}.yaml"] = yaml_text(body)
    for name in project.pipeline:
        task = managed_task(project, name, "azureml", directory=azureml.DIRECTORY)
        found[f"{task.name}.job.yaml"] = yaml_text(azureml.command_job(task))
    return found


def _kubeflow(project: Project) -> dict[str, str]:
    return {"pipeline.yaml": "---\n".join(yaml_text(document) for document in kubeflow.documents(project))}


def _json(body: Any) -> str:
    return json.dumps(body, indent=2, ensure_ascii=False) + "\n"


_MAKERS = MappingProxyType({"sagemaker": _sagemaker, "vertex": _vertex, "azureml": _azureml, "kfp": _kubeflow})
