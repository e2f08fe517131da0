"""Plan a project as it lies on disk: read the facts, probe the machine if it matters, call `make_plan`."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from charter.catalog import models
from charter.catalog.price_book import PriceBook, own_offers, read_price_book
from charter.errors import DataError, SpecError, UsageError
from charter.physics.fitted import load
from charter.physics.shapes import encoder_parameters
from charter.plan.knowledge import Knowledge
from charter.plan.machine import Machine, probe_machine
from charter.plan.make import make_plan
from charter.plan.offers import may_run_here
from charter.plan.pipeline_names import Models
from charter.plan.plan import Plan, stale_prices
from charter.plan.risk import Assumption
from charter.spec.architecture import Architecture
from charter.spec.project import Project
from charter.units import format_count

if TYPE_CHECKING:
    from charter.data.dataset import DataFacts

CALIBRATION_FILE = "calibration.json"
PRICES_FILE = "prices.csv"


def plan_project(
    project: Project,
    directory: Path,
    *,
    machine: Machine | None = None,
    knowledge: Knowledge | None = None,
    prices: PriceBook | None = None,
    today: date | None = None,
    alternatives: int = 0,
    start: datetime | None = None,
) -> Plan:
    """The plan of `project`, whose files lie in `directory`; `machine` replaces the probe of this one.

    A `calibration.json` in the directory (`charter validate calibrate -C`) is used unless `knowledge` is given, a
    `prices.csv` (`charter catalog prices import`) on top of the bundled price book unless `prices` is. With `today`,
    contracts that do not hold are left out and old prices are among the assumptions. `alternatives` and `start`: see
    `make_plan`.
    """
    inputs = read_inputs(project, directory)
    if machine is None and may_run_here(project):
        machine = probe_machine()
    if knowledge is None and (directory / CALIBRATION_FILE).is_file():
        knowledge = Knowledge.of(load(directory / CALIBRATION_FILE))
    book = prices or price_book(directory, today)
    plan = make_plan(
        project,
        architectures=inputs.architectures,
        stored=inputs.stored,
        data_facts=inputs.facts,
        machine=machine,
        knowledge=knowledge,
        prices=book,
        alternatives=alternatives,
        start=start,
    )
    plan = replace(plan, assumptions=(*plan.assumptions, *inputs.assumptions))
    if today is None:
        return plan
    return replace(plan, assumptions=(*plan.assumptions, *stale_prices(plan, book, today)))


def price_book(directory: Path, today: date | None) -> PriceBook:
    """Return the prices of a project: the bundled ones with those of its own file, contracts that have ended left out.

    Without `today` all of them count.
    """
    file = directory / PRICES_FILE
    if today is not None or not file.is_file():
        return read_price_book(file, today=today or date.max)
    return PriceBook.bundled().with_rows(own_offers(file), source=file.name)


# -------- Inputs that the planner reads from disk: architectures of the models, sizes of the data sets.

MODEL = "reading of models."
"""Prefix of the names of assumptions about a model."""


@dataclass(frozen=True, kw_only=True)
class PlanInputs:
    """Facts about the models and data of one project."""

    architectures: Mapping[str, Architecture]
    """Of every entry of `models` that has one; a model that is only reached by address needs none."""
    facts: "Mapping[str, DataFacts]"
    stored: Mapping[str, str] = field(default_factory=dict)
    """Formats of the models' files."""
    assumptions: tuple[Assumption, ...] = ()
    """Assumptions about the models, and parts of them that are not planned."""


@dataclass(frozen=True, kw_only=True)
class ModelReading:
    """Facts of an entry of `models`, and what a plan has to tell of how it was read."""

    architecture: Architecture | None
    """None of a model that is only reached by address, where nobody here knows the name."""
    stored: str = "bf16"
    assumptions: tuple[Assumption, ...] = ()


def read_inputs(project: Project, directory: Path) -> PlanInputs:
    """Read what `project` names relative to `directory`; a data set that is not there is left out."""
    readings = {name: read_model(name, project, directory) for name in project.models}
    architectures = {name: item.architecture for name, item in readings.items() if item.architecture is not None}
    stored = {name: item.stored for name, item in readings.items()}
    if problems := list(Models(project=project, architectures=architectures, stored=stored).problems()):
        raise SpecError(problems)
    return PlanInputs(
        architectures=architectures,
        stored=stored,
        assumptions=tuple(item for reading in readings.values() for item in reading.assumptions),
        facts=_data_facts(project, directory),
    )


def _data_facts(project: Project, directory: Path) -> "dict[str, DataFacts]":
    paths = {name: directory / spec.path for name, spec in project.data.items()}
    # Readers of rows, which a plan does without where there is no data yet: neither a file nor the pattern of one.
    if not any(path.exists() or {"*", "{"} & {*path.name} for path in paths.values()):
        return {}
    from charter.data.dataset import data_facts
    from charter.data.formats import is_there

    return {name: data_facts(path, project.data[name]) for name, path in paths.items() if is_there(path)}


def read_model(name: str, project: Project, directory: Path) -> ModelReading:
    """Read an entry of `models`: its architecture, the format of its files, and what a plan has to tell of them."""
    spec = project.models[name]
    if spec.architecture is not None:
        return ModelReading(architecture=spec.architecture, assumptions=_of_encoder(name, spec.architecture))
    if spec.model is None:
        raise SpecError(f"models.{name} has neither model nor architecture")
    inside = directory / spec.model
    try:
        model = models.resolve(str(inside) if inside.exists() else spec.model)
    except (UsageError, DataError):
        if inside.exists() or name not in project.serving or not project.serving[name].is_by_address:
            raise
        return ModelReading(architecture=None, assumptions=(_by_address(name, spec.model),))
    assumed: tuple[Assumption, ...] = ()
    if model.assumption:
        assumed = (Assumption(name=f"{MODEL}{name}", value=spec.model, source=model.assumption),)
    if model.stored != "bf16":
        text = f"its files are in {model.stored}, which its servers compute with; stages that train it, in 16 bits"
        assumed = (*assumed, Assumption(name=f"{MODEL}{name}.files", value=model.stored, source=text))
    assumed = (*assumed, *_of_encoder(name, model.architecture))
    return ModelReading(architecture=model.architecture, stored=model.stored, assumptions=assumed)


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
