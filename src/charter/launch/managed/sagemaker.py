"""SageMaker: a stage as a training job, a judge as a real-time endpoint; requests as botocore takes them."""

from typing import Any

from charter.errors import UsageError
from charter.launch.managed.task import HostedModel, ManagedTask, needed
from charter.launch.tags import aws_tags
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


def training_job(task: ManagedTask) -> dict[str, Any]:
    """The request CreateTrainingJob: spot with a checkpoint address, tags, the longest run.

    A job of SageMaker on spot is started again by SageMaker, with what had been copied; Charter goes on from there.
    """
    where, settings = bucket(task), task.settings
    stopping = {"MaxRuntimeInSeconds": task.longest_seconds}
    if task.use_spot:
        stopping["MaxWaitTimeInSeconds"] = task.longest_seconds + SPOT_WAIT_SECONDS
    request: dict[str, Any] = {
        "TrainingJobName": task.name,
        "AlgorithmSpecification": {
            "TrainingImage": task.image,
            "TrainingInputMode": "File",
            "ContainerEntrypoint": [task.command[0]],
            "ContainerArguments": list(task.command[1:]),
        },
        "RoleArn": needed(settings.role, "role", task.service),
        "OutputDataConfig": {"S3OutputPath": f"{where}{OUTPUTS}"},
        "CheckpointConfig": {"S3Uri": where, "LocalPath": DIRECTORY},
        "ResourceConfig": {
            "InstanceType": task.machine.instance_type,
            "InstanceCount": 1,
            "VolumeSizeInGB": -(-int(settings.volume) // GIB),
        },
        "StoppingCondition": stopping,
        "EnableManagedSpotTraining": task.use_spot,
        "RetryStrategy": {"MaximumRetryAttempts": RETRIES},
        "Tags": aws_tags(task.tags),
    }
    return {**request, "Environment": dict(task.environment)} if task.environment else request


def endpoint(model: HostedModel) -> dict[str, dict[str, Any]]:
    """The three requests of an endpoint: CreateModel, CreateEndpointConfig, CreateEndpoint."""
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
    role = needed(model.settings.role, "role", "sagemaker")
    return {
        "CreateModel": {"ModelName": model.name, "PrimaryContainer": container, "ExecutionRoleArn": role, "Tags": tags},
        "CreateEndpointConfig": {"EndpointConfigName": model.name, "ProductionVariants": [variant], "Tags": tags},
        "CreateEndpoint": {"EndpointName": model.name, "EndpointConfigName": model.name, "Tags": tags},
    }


def bucket(task: ManagedTask) -> str:
    """Where the project lies."""
    where = needed(task.settings.storage, "storage", task.service).rstrip("/")
    if not where.startswith("s3://"):
        raise UsageError(
            f"SageMaker reads a project from S3, not from {where!r}\n  launch.managed.storage: s3://BUCKET/PATH"
        )
    return where
