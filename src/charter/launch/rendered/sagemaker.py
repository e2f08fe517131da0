"""SageMaker: stages as training jobs and as steps of a pipeline, judges as endpoints; requests as botocore has them."""

from collections.abc import Sequence
from typing import Any

from charter.launch.job import safe_name
from charter.launch.rendered.task import HostedModel, RenderedTask, checked_address, json_text, needed
from charter.launch.tags import aws_tags, tags_of
from charter.spec.graph import execution_order
from charter.spec.project import Project
from charter.units import GIB

DIRECTORY = "/opt/ml/checkpoints"
"""SageMaker copies it to the checkpoint address all the time, and back before a job (or its restart) begins."""
OUTPUTS = "-sagemaker"
"""Behind the address, not beneath it, where it would be copied into every job. Charter's outputs are in the project."""
SPOT_WAIT_SECONDS = 24 * 3600
"""How long a spot job may wait for machines, beside its own time."""
RETRIES = 3
LOAD_SECONDS = 1800
"""For the weights of a judge to be loaded; SageMaker allows 3600."""
PIPELINE_VERSION = "2020-12-01"
"""Of the schema of a pipeline's definition; the only one."""
STEP_ATTEMPTS = 5
STEP_INTERVAL_SECONDS = 60


def training_job(project: Project, task: RenderedTask) -> dict[str, Any]:
    """Return the request CreateTrainingJob: spot with a checkpoint address, tags, the longest run.

    A job of SageMaker on spot is started again by SageMaker, with what had been copied; Charter goes on from there.
    """
    command = task.command("-C", DIRECTORY)
    where = needed(project, "storage", "sagemaker").rstrip("/")
    checked_address(where, "s3://", "SageMaker reads a project from S3", "storage: s3://BUCKET/PATH")
    stopping = {"MaxRuntimeInSeconds": task.longest_seconds}
    if task.use_spot:
        stopping["MaxWaitTimeInSeconds"] = task.longest_seconds + SPOT_WAIT_SECONDS
    request: dict[str, Any] = {
        "TrainingJobName": task.name,
        "AlgorithmSpecification": {
            "TrainingImage": task.image,
            "TrainingInputMode": "File",
            "ContainerEntrypoint": [command[0]],
            "ContainerArguments": list(command[1:]),
        },
        "RoleArn": needed(project, "role", "sagemaker"),
        "OutputDataConfig": {"S3OutputPath": f"{where}{OUTPUTS}"},
        "CheckpointConfig": {"S3Uri": where, "LocalPath": DIRECTORY},
        "ResourceConfig": {
            "InstanceType": task.machine.instance_type,
            "InstanceCount": 1,
            "VolumeSizeInGB": -(-int(project.launch.managed.volume) // GIB),
        },
        "StoppingCondition": stopping,
        "EnableManagedSpotTraining": task.use_spot,
        "RetryStrategy": {"MaximumRetryAttempts": RETRIES},
        "Tags": aws_tags(task.tags),
    }
    return {**request, "Environment": dict(task.environment)} if task.environment else request


def endpoint(project: Project, model: HostedModel) -> dict[str, dict[str, Any]]:
    """Return the three requests of an endpoint: CreateModel, CreateEndpointConfig, CreateEndpoint."""
    tags = aws_tags(model.tags)
    environment = {"SM_VLLM_MODEL": model.source, "SM_VLLM_SERVED_MODEL_NAME": model.served_as}
    container: dict[str, Any] = {"Image": model.image, "Environment": environment}
    if model.weights:
        address = f"{model.weights}/"
        container["ModelDataSource"] = {
            "S3DataSource": {"S3Uri": address, "S3DataType": "S3Prefix", "CompressionType": "None"}
        }
        environment["SM_VLLM_MODEL"] = "/opt/ml/model"
    variant = {
        "VariantName": "all",
        "ModelName": model.name,
        "InstanceType": model.machine.instance_type,
        "InitialInstanceCount": 1,
        "ModelDataDownloadTimeoutInSeconds": LOAD_SECONDS,
        "ContainerStartupHealthCheckTimeoutInSeconds": LOAD_SECONDS,
    }
    role = needed(project, "role", "sagemaker")
    return {
        "CreateModel.json": {
            "ModelName": model.name,
            "PrimaryContainer": container,
            "ExecutionRoleArn": role,
            "Tags": tags,
        },
        "CreateEndpointConfig.json": {"EndpointConfigName": model.name, "ProductionVariants": [variant], "Tags": tags},
        "CreateEndpoint.json": {"EndpointName": model.name, "EndpointConfigName": model.name, "Tags": tags},
    }


def pipeline(project: Project, tasks: Sequence[RenderedTask]) -> dict[str, Any]:
    """Return the definition, of one training step per stage, and the request CreatePipeline, which has it as a text."""
    order = execution_order(project)
    steps = [_step(project, task) for task in sorted(tasks, key=lambda task: order.index(task.stage))]
    definition = json_text(
        {"Version": PIPELINE_VERSION, "Metadata": {"charter": "submit --print"}, "Parameters": [], "Steps": steps}
    )
    request = {
        "PipelineName": safe_name(project.name),
        "PipelineDefinition": definition,
        "ClientRequestToken": f"charter-{safe_name(project.name)}".ljust(32, "0")[:128],
        "RoleArn": needed(project, "role", "sagemaker"),
        "Tags": aws_tags(tags_of(project, run=project.name)),
    }
    return {"pipeline.definition.json": definition, "pipeline.CreatePipeline.json": request}


def _step(project: Project, task: RenderedTask) -> dict[str, Any]:
    arguments = training_job(project, task)
    del arguments["TrainingJobName"]
    step: dict[str, Any] = {"Name": safe_name(task.stage), "Type": "Training", "Arguments": arguments}
    if task.after:
        step["DependsOn"] = [safe_name(stage) for stage in task.after]
    step["RetryPolicies"] = [
        {
            "ExceptionType": ["SageMaker.CAPACITY_ERROR", "SageMaker.JOB_INTERNAL_ERROR", "Step.THROTTLING"],
            "IntervalSeconds": STEP_INTERVAL_SECONDS,
            "BackoffRate": 2.0,
            "MaxAttempts": STEP_ATTEMPTS,
        }
    ]
    return step
