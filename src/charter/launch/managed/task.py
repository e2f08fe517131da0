"""What every managed service is asked for one stage: `charter run --only STAGE` on one machine with the project."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from charter.errors import UsageError
from charter.launch.job import safe_name
from charter.launch.machine import stage_nodes
from charter.launch.managed.machines import ManagedMachine, Service, machine_of
from charter.launch.tags import tags_of
from charter.spec.launching import ManagedSettings
from charter.spec.project import Project

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
