"""What every managed service is asked for one stage: `charter run --only STAGE` on one machine with the project."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from charter.catalog import accelerators
from charter.catalog.price_book import offers
from charter.errors import InfeasibleError, UsageError
from charter.launch.job import safe_name
from charter.launch.machine import CPU, asked_accelerators, stage_nodes
from charter.launch.tags import tags_of
from charter.spec.launching import ManagedSettings
from charter.spec.project import Project
from charter.spec.stage import Stage, references

Service = Literal["sagemaker", "vertex", "azureml"]
CLOUDS: Mapping[Service, str] = MappingProxyType({"sagemaker": "aws", "vertex": "gcp", "azureml": "azure"})
WITHOUT_ACCELERATOR: Mapping[Service, str] = MappingProxyType(
    {"sagemaker": "ml.m5.4xlarge", "vertex": "n2-standard-16", "azureml": "Standard_D16s_v5"}
)
"""16 CPUs and 64 GiB each: for stages on processors, of which the price book has no rows."""
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


@dataclass(frozen=True, kw_only=True)
class ManagedMachine:
    """One instance of a service."""

    instance_type: str
    accelerator: str = ""
    """Catalog name; empty for none."""
    count: int = 0

    @property
    def vertex_accelerator(self) -> str:
        """What Vertex AI calls its accelerators."""
        return VERTEX_ACCELERATORS[self.accelerator]


def machine_of(project: Project, stage: Stage, service: Service) -> ManagedMachine:
    """The instance that the file names, else the smallest of the price book with at least the asked accelerators."""
    name, count = asked_accelerators(project, stage)
    own = project.launch.managed.instance_type
    if name in ("", CPU, "any"):
        return ManagedMachine(instance_type=own or WITHOUT_ACCELERATOR[service])
    accelerator = accelerators.get(name).name
    if own:
        return ManagedMachine(instance_type=own, accelerator=accelerator, count=count)
    return _smallest(service, accelerator, count)


def _smallest(service: Service, accelerator: str, count: int) -> ManagedMachine:
    sold = [offer for offer in offers(accelerator, cloud=CLOUDS[service]) if offer.whole_machine]
    fitting = [offer for offer in sold if offer.count >= count]
    if service == "vertex" and accelerator not in VERTEX_ACCELERATORS:
        fitting = []
    if not fitting:
        most = max((offer.count for offer in sold), default=0)
        raise InfeasibleError(
            f"{service} has no machine with {count} x {accelerator} in the price book"
            + (f"; the largest has {most}" if most else "")
            + "\n  ask for fewer, or name one: launch.managed.instance_type"
        )
    best = min(fitting, key=lambda offer: (offer.count, offer.vcpus or 0, offer.instance_type))
    prefix = "ml." if service == "sagemaker" else ""
    return ManagedMachine(instance_type=prefix + best.instance_type, accelerator=accelerator, count=best.count)


LONGEST_SECONDS = 5 * 24 * 3600
"""Of one job where the file gives no time limit: SageMaker's default quota for a training job."""
SERVICES: Mapping[Service, str] = MappingProxyType(
    {"sagemaker": "Amazon SageMaker AI", "vertex": "Google Vertex AI", "azureml": "Azure Machine Learning"}
)


@dataclass(frozen=True, kw_only=True)
class ManagedTask:
    """One stage on one machine."""

    service: Service
    name: str
    """Of letters, digits and hyphens."""
    stage: str
    image: str
    directory: str
    """Where the project is in the container."""
    machine: ManagedMachine
    environment: Mapping[str, str]
    tags: Mapping[str, str]
    longest_seconds: int
    use_spot: bool
    settings: ManagedSettings

    @property
    def command(self) -> tuple[str, ...]:
        """Runs or resumes the stage; what it reads is done already, and skipped."""
        return ("charter", "run", "-C", self.directory, "--only", self.stage, "--yes")


def managed_task(project: Project, stage_name: str, service: Service, *, directory: str) -> ManagedTask:
    """The task of a stage; what the service cannot do is refused."""
    stage, settings = project.pipeline[stage_name], project.launch.managed
    if (nodes := stage_nodes(project, stage)) > 1:
        raise UsageError(
            f"{stage_name}: {SERVICES[service]} is given stages of one machine, and this one asks for {nodes}\n"
            "  use an engine that joins nodes: --on slurm, ray or kubernetes"
        )
    own = stage.resources.use_spot if stage.resources else None
    return ManagedTask(
        service=service,
        name=safe_name(f"{project.name}-{stage_name}"),
        stage=stage_name,
        image=needed(settings.image, "image", service),
        directory=directory,
        machine=machine_of(project, stage, service),
        environment=plain_environment(project, service),
        tags=tags_of(project, run=project.name, stage=stage_name),
        longest_seconds=math.ceil(project.launch.time_limit or LONGEST_SECONDS),
        use_spot=(project.resources.use_spot if own is None else own) is True,
        settings=settings,
    )


def plain_environment(project: Project, service: str) -> dict[str, str]:
    """Variables of every process; keys that stand in variables cannot travel in the text of a job."""
    keys = [serving.api_key for serving in project.serving.values() if (serving.api_key or "").startswith("env:")]
    if keys:
        raise UsageError(
            f"{', '.join(map(str, keys))} would have to stand in the text of the job: {service} takes no references to "
            "secrets\n  let the job's role read it, and name it as file:PATH"
        )
    return dict(project.launch.environment)


def needed(value: str | None, name: str, service: str) -> str:
    """A setting without which the service cannot be asked."""
    if not value:
        raise UsageError(f"{service} needs launch.managed.{name}\n  say it in charter.yaml")
    return value


EXPORTS = "exports"
"""Where `charter export STAGE` of a hosted stage is expected, beneath the project's storage."""


@dataclass(frozen=True, kw_only=True)
class HostedModel:
    """One model behind one endpoint, served in OpenAI's protocol."""

    name: str
    served_as: str
    """What requests call it."""
    source: str
    """A Hugging Face name, or the model itself where `weights` says where they lie."""
    weights: str | None
    """Address of exported weights; None for a public model."""
    image: str
    machine: ManagedMachine
    tags: Mapping[str, str]
    settings: ManagedSettings


def hosted_models(project: Project, service: Service) -> list[HostedModel]:
    """Every model of the section `serving`: what the project asks over HTTP, on a machine like its stage's."""
    return [hosted_model(project, name, service) for name in project.serving]


def hosted_model(project: Project, name: str, service: Service) -> HostedModel:
    """The endpoint of one model or stage of the file."""
    settings, serving = project.launch.managed, project.serving[name]
    is_stage = name in project.pipeline
    public = None if is_stage else project.models[name].model
    if public is None and not is_stage:
        raise UsageError(
            f"{name} has no weights to serve: it is trained from scratch\n  serve the stage that trains it"
        )
    return HostedModel(
        name=safe_name(f"{project.name}-{name}"),
        served_as=serving.model or name,
        source=public or name,
        weights=f"{_exports(settings, service)}/{name}" if is_stage else None,
        image=needed(settings.serving_image, "serving_image", service),
        machine=machine_of(project, _asking_stage(project, name), service),
        tags=tags_of(project, run=project.name, stage=name if is_stage else None),
        settings=settings,
    )


def _exports(settings: ManagedSettings, service: Service) -> str:
    if settings.exports:
        return settings.exports.rstrip("/")
    return f"{needed(settings.storage, 'storage', service).rstrip('/')}/{EXPORTS}"


def _asking_stage(project: Project, name: str) -> Stage:
    """The stage itself, or the first one that asks the model: its accelerators are what the model was planned on."""
    if name in project.pipeline:
        return project.pipeline[name]
    users = (stage for stage in project.pipeline.values() for names in references(stage).values() if name in names)
    stage = next(users, None)
    if stage is None:
        raise UsageError(f"no stage asks {name}, so that nothing says which machine it needs")
    return stage
