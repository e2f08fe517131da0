"""Inputs that the planner reads from disk: architectures of the models, sizes of the data sets."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from charter.catalog import models
from charter.data.dataset import DataFacts, data_facts
from charter.data.formats import is_there
from charter.errors import DataError, SpecError, UsageError
from charter.physics.shapes import encoder_parameters
from charter.plan.risk import Assumption
from charter.spec.architecture import Architecture
from charter.spec.project import Project
from charter.units import format_count

MODEL = "reading of models."
"""Prefix of the names of assumptions about a model."""


@dataclass(frozen=True, kw_only=True)
class PlanInputs:
    """Facts about the models and data of one project."""

    architectures: Mapping[str, Architecture]
    """Of every entry of `models` that has one; a model that is only reached by address needs none."""
    facts: Mapping[str, DataFacts]
    assumptions: tuple[Assumption, ...] = ()
    """Assumptions about the models, and parts of them that are not planned."""


def read_inputs(project: Project, directory: Path) -> PlanInputs:
    """Read what `project` names relative to `directory`; a data set that is not there is left out."""
    readings = {name: read_model(name, project, directory) for name in project.models}
    return PlanInputs(
        architectures={name: shape for name, (shape, _) in readings.items() if shape is not None},
        assumptions=tuple(item for _, items in readings.values() for item in items),
        facts={
            name: data_facts(directory / spec.path, spec)
            for name, spec in project.data.items()
            if is_there(directory / spec.path)
        },
    )


def read_model(name: str, project: Project, directory: Path) -> tuple[Architecture | None, tuple[Assumption, ...]]:
    """The architecture of an entry of `models`, and what a plan has to tell of how it was read.

    None of a model that is only reached by address, where nobody here knows the name.
    """
    spec = project.models[name]
    if spec.architecture is not None:
        return spec.architecture, _of_encoder(name, spec.architecture)
    if spec.model is None:
        raise SpecError(f"models.{name} has neither model nor architecture")
    inside = directory / spec.model
    try:
        model = models.resolve(str(inside) if inside.exists() else spec.model)
    except (UsageError, DataError):
        if inside.exists() or name not in project.serving or not project.serving[name].is_by_address:
            raise
        return None, (_by_address(name, spec.model),)
    assumed: tuple[Assumption, ...] = ()
    if model.assumption:
        assumed = (Assumption(name=f"{MODEL}{name}", value=spec.model, source=model.assumption),)
    return model.architecture, (*assumed, *_of_encoder(name, model.architecture))


def _by_address(name: str, model: str) -> Assumption:
    text = "only reached by address: tokens, their price and the limits of its server are planned, no memory"
    return Assumption(name=f"{MODEL}{name}", value=model, source=text)


def _of_encoder(name: str, shape: Architecture) -> tuple[Assumption, ...]:
    """Return the assumption about an encoder in front: charter.yaml does not say how many pictures the rows have."""
    encoder = shape.encoder
    if encoder is None:
        return ()
    text = (
        f"its encoder ({format_count(encoder_parameters(encoder))} parameters) is planned with one picture or clip a "
        f"row, {encoder.tokens_per_sample:,} tokens of the encoder and {encoder.output_tokens_per_sample:,} of those "
        "that data and seq_len count; more or larger ones are not planned"
    )
    return (Assumption(name=f"{MODEL}{name}.encoder", value=1, source=text),)
