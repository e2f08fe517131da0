"""Managed services: SageMaker, Vertex AI, Azure ML, Kubeflow Pipelines; stages as jobs and steps, judges as endpoints.

Requests as botocore has them; bodies of Vertex AI's REST API (v1); YAML of Azure ML's CLI (v2). On Kubeflow a pipeline
has one pod per stage, which mounts the project's claim; its intermediate representation is what Vertex AI Pipelines run
too.
"""

import shlex
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from charter.errors import UsageError
from charter.launch.job import safe_name, yaml_text
from charter.launch.kubernetes.pod import LOST_NODE_SECONDS, LOST_NODE_TAINTS, checked_image
from charter.launch.machine import asked_memory, stage_threads
from charter.launch.rendered.task import HostedModel, RenderedTask, ServiceInstance, checked_address, json_text, needed
from charter.launch.tags import aws_tags, azure_tags, google_labels, kubernetes_labels, tags_of
from charter.spec.graph import execution_order
from charter.spec.project import Project
from charter.units import GIB

SAGEMAKER_DIRECTORY = "/opt/ml/checkpoints"
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
    command = task.command("-C", SAGEMAKER_DIRECTORY)
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
        "CheckpointConfig": {"S3Uri": where, "LocalPath": SAGEMAKER_DIRECTORY},
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


def sagemaker_endpoint(project: Project, model: HostedModel) -> dict[str, dict[str, Any]]:
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


def sagemaker_pipeline(project: Project, tasks: Sequence[RenderedTask]) -> dict[str, Any]:
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


VERTEX_DIRECTORY = "/mnt/nfs/charter"
"""Vertex AI mounts NFS beneath /mnt/nfs only."""
MOUNT = "charter"
VERTEX_PORT = 8080
VERTEX_ACCELERATORS: Mapping[str, str] = MappingProxyType(
    {
        "B200-SXM-180GB": "NVIDIA_B200",
        "H200-SXM-141GB": "NVIDIA_H200_141GB",
        "H100-SXM-80GB": "NVIDIA_H100_80GB",
        "A100-SXM-80GB": "NVIDIA_A100_80GB",
        "A100-SXM-40GB": "NVIDIA_TESLA_A100",
        "L4": "NVIDIA_L4",
        "T4": "NVIDIA_TESLA_T4",
        "V100-SXM2-16GB": "NVIDIA_TESLA_V100",
    }
)
"""Source: Vertex AI API, enum AcceleratorType of google-cloud-aiplatform."""


def custom_job(project: Project, task: RenderedTask) -> dict[str, Any]:
    """Return the body of projects.locations.customJobs.create, on spot machines where the stage wants them."""
    return {"displayName": task.name, "labels": google_labels(task.tags), "jobSpec": _job_spec(project, task)}


def _job_spec(project: Project, task: RenderedTask) -> dict[str, Any]:
    """Return a CustomJobSpec: one machine that sees the project by NFS, whose locks and renames Charter needs.

    Cloud Storage mounted as a file system has neither.
    """
    settings, command = project.launch.managed, task.command("-C", VERTEX_DIRECTORY)
    server, path = _nfs_export(project)
    container: dict[str, Any] = {"imageUri": task.image, "command": [command[0]], "args": list(command[1:])}
    if task.environment:
        container["env"] = [{"name": name, "value": value} for name, value in sorted(task.environment.items())]
    scheduling: dict[str, Any] = {"timeout": f"{task.longest_seconds}s", "restartJobOnWorkerRestart": True}
    if task.use_spot:
        scheduling["strategy"] = "SPOT"
    spec: dict[str, Any] = {
        "workerPoolSpecs": [
            {
                "machineSpec": _machine_spec(task.machine),
                "replicaCount": "1",
                "nfsMounts": [{"server": server, "path": path, "mountPoint": MOUNT}],
                "diskSpec": {"bootDiskType": "pd-ssd", "bootDiskSizeGb": -(-int(settings.volume) // GIB)},
                "containerSpec": container,
            }
        ],
        "scheduling": scheduling,
        "network": needed(project, "network", "vertex"),
        "serviceAccount": settings.role,
    }
    return {key: value for key, value in spec.items() if value is not None}


def vertex_endpoint(project: Project, model: HostedModel) -> dict[str, dict[str, Any]]:
    """Return the three bodies of an endpoint: a model is uploaded, an endpoint made, the model deployed there."""
    labels = google_labels(model.tags)
    account, region = needed(project, "project", "vertex"), needed(project, "region", "vertex")
    uploaded: dict[str, Any] = {
        "displayName": model.name,
        "labels": labels,
        "containerSpec": {
            "imageUri": model.image,
            "args": ["--model", model.source, "--served-model-name", model.served_as, "--port", str(VERTEX_PORT)],
            "ports": [{"containerPort": VERTEX_PORT}],
            "predictRoute": "/v1/chat/completions",
            "healthRoute": "/health",
        },
    }
    if model.weights:
        where = "Vertex AI serves weights from Cloud Storage"
        example = "exports: gs://BUCKET/PATH, with what charter artifacts export wrote"
        uploaded["artifactUri"] = checked_address(model.weights, "gs://", where, example)
    deployed = {
        "displayName": model.name,
        "model": f"projects/{account}/locations/{region}/models/{model.name}",
        "dedicatedResources": {
            "machineSpec": _machine_spec(model.machine),
            "minReplicaCount": 1,
            "maxReplicaCount": 1,
        },
    }
    return {
        "models.upload.json": {"modelId": model.name, "model": uploaded},
        "endpoints.create.json": {"displayName": model.name, "labels": labels},
        "endpoints.deployModel.json": {"deployedModel": deployed, "trafficSplit": {"0": 100}},
    }


def vertex_pipeline(project: Project, tasks: Sequence[RenderedTask]) -> dict[str, Any]:
    """Return the body of projects.locations.pipelineJobs.create, whose steps are custom jobs."""
    executors = {task.stage: {"customJob": {"customJob": custom_job(project, task)}} for task in tasks}
    job: dict[str, Any] = {
        "displayName": project.name,
        "labels": google_labels(tags_of(project, run=project.name)),
        "pipelineSpec": pipeline_spec(project, tasks, executors),
        "runtimeConfig": {"failurePolicy": "PIPELINE_FAILURE_POLICY_FAIL_SLOW"},
        "serviceAccount": project.launch.managed.role,
        "network": project.launch.managed.network,
    }
    return {"pipeline.pipelineJobs.create.json": {key: value for key, value in job.items() if value is not None}}


def _machine_spec(machine: ServiceInstance) -> dict[str, Any]:
    spec: dict[str, Any] = {"machineType": machine.instance_type}
    if machine.accelerator:
        spec |= {"acceleratorType": VERTEX_ACCELERATORS[machine.accelerator], "acceleratorCount": machine.count}
    return spec


def _nfs_export(project: Project) -> tuple[str, str]:
    """Return server and path of the NFS export that holds the project."""
    where = needed(project, "storage", "vertex")
    server, colon, path = where.partition(":")
    if not colon or not path.startswith("/") or path.startswith("//"):
        raise UsageError(
            f"Vertex AI mounts a project by NFS, and {where!r} is no export\n"
            "  launch.managed.storage: SERVER:/EXPORT (Filestore)"
        )
    return server, path


SCHEMAS = "https://azuremlschemas.azureedge.net/latest"
AZURE_DIRECTORY = "${{outputs.project}}"
"""What Azure ML puts into the command for the mounted folder."""
SHARED_MEMORY = "64g"
AZURE_PORT = 8000
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
        "command": _shell(task.command("-C", AZURE_DIRECTORY)),
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


def azure_endpoint(_: Project, model: HostedModel) -> dict[str, dict[str, Any]]:
    """Return the endpoint and its one deployment."""
    tags = azure_tags(model.tags)
    name = model.name[:ENDPOINT_NAME_CHARACTERS].rstrip("-")
    route = {"port": AZURE_PORT, "path": "/health"}
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
                "scoring_route": {"port": AZURE_PORT, "path": "/v1/chat/completions"},
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
    return " ".join(word if word == AZURE_DIRECTORY else shlex.quote(word) for word in command)


SCHEMA_VERSION, SDK_VERSION = "2.1.0", "kfp-2.17.0"
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
