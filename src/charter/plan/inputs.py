"""Inputs that the planner reads from disk: architectures of the models, sizes of the data sets."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from charter.catalog import models
from charter.data.dataset import DataFacts, data_facts
from charter.data.formats import is_there
from charter.errors import SpecError
from charter.spec.architecture import Architecture
from charter.spec.project import ModelSpec, Project


@dataclass(frozen=True, kw_only=True)
class PlanInputs:
    """Facts about the models and data of one project."""

    architectures: Mapping[str, Architecture]
    facts: Mapping[str, DataFacts]


def read_inputs(project: Project, directory: Path) -> PlanInputs:
    """Read what `project` names relative to `directory`; a data set that is not there is left out."""
    return PlanInputs(
        architectures={name: _architecture(name, spec, directory) for name, spec in project.models.items()},
        facts={
            name: data_facts(directory / spec.path, spec)
            for name, spec in project.data.items()
            if is_there(directory / spec.path)
        },
    )


def _architecture(name: str, spec: ModelSpec, directory: Path) -> Architecture:
    if spec.architecture is not None:
        return spec.architecture
    if spec.model is None:
        raise SpecError(f"models.{name} has neither model nor architecture")
    inside = directory / spec.model
    return models.resolve(str(inside) if inside.exists() else spec.model).architecture
