"""A model that only answers, a judge, as what a service hosts: which image, which weights, which machine."""

from collections.abc import Mapping
from dataclasses import dataclass

from charter.errors import UsageError
from charter.launch.job import safe_name
from charter.launch.managed.machines import ManagedMachine, Service, machine_of
from charter.launch.managed.task import needed
from charter.launch.tags import tags_of
from charter.spec.launching import ManagedSettings
from charter.spec.project import Project
from charter.spec.stage import Stage, references

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
