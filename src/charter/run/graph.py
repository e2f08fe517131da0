"""The pipeline as work: every stage with its identity, its directory and what it reads."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from charter.artifacts import durable
from charter.artifacts.fingerprint import differences, fingerprint, stage_identity
from charter.artifacts.job import Job, JobInput
from charter.artifacts.record import OUTPUTS, Record, read_record
from charter.engines.installed import engines_at
from charter.errors import DataError, UsageError
from charter.run.inputs import FileHashes, Inputs, read_revisions
from charter.run.paths import earlier_stage_dirs, run_dir, stage_dir
from charter.spec.graph import execution_order, inputs_of
from charter.spec.project import Project, Serving
from charter.spec.stage_base import Stage

ACCEPTED_FILE = "accepted.json"
MIN_PIN_LENGTH = 8


@dataclass(frozen=True, kw_only=True)
class AdoptedRecord:
    """A finished record that stands in for a stage whose fingerprint is now another."""

    fingerprint: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Acceptance:
    """Result that `charter artifacts accept` would keep, and how it differs from what the file asks for."""

    stage: str
    kept: str
    wanted: str
    differences: tuple[tuple[str, Any, Any], ...]


def kept_record(
    root: Path, name: str, *, asked: str, pin: str | None, acceptances: Mapping[str, Any]
) -> AdoptedRecord | None:
    """The record that a pin or an acceptance keeps for a stage, None when the asked fingerprint counts."""
    if pin is not None and not asked.startswith(pin):
        record = _finished(root, name, pin) if len(pin) >= MIN_PIN_LENGTH else None
        return (
            AdoptedRecord(fingerprint=record.fingerprint, why="kept by its pin (expected_fingerprint)")
            if record
            else None
        )
    accepted = acceptances.get(name)
    if accepted and accepted.get("wanted") == asked:
        record = _finished(root, name, accepted["kept"])
        return (
            AdoptedRecord(fingerprint=record.fingerprint, why="kept by `charter artifacts accept`") if record else None
        )
    return None


def read_acceptances(run_dir: Path) -> Mapping[str, Any]:
    """Stage -> {wanted, kept, accepted_at, differences}."""
    path = run_dir / ACCEPTED_FILE
    if not path.exists():
        return {}
    content = durable.read_json(path)
    if not isinstance(content, dict):
        raise DataError(f"{path} does not hold acceptances by stage; move it away to run as if nothing was accepted")
    return content


def acceptance_of(root: Path, name: str, *, identity: Mapping[str, Any], asked: str) -> Acceptance:
    """Return the result that can be accepted for a stage: its last finished one under another fingerprint."""
    for directory in earlier_stage_dirs(root, name):
        record = read_record(directory)
        if record is None:
            continue
        if record.fingerprint == asked:
            raise UsageError(f"stage {name} is finished under its present fingerprint {asked[:8]}; nothing to accept")
        changes = tuple(differences(record.identity, identity))
        return Acceptance(stage=name, kept=record.fingerprint, wanted=asked, differences=changes)
    raise UsageError(f"stage {name} has no finished result that could be accepted; `charter run` computes it")


def record_acceptance(run_dir: Path, acceptance: Acceptance) -> None:
    """Write an acceptance durably; it holds until the stage's fingerprint changes again."""
    content = dict(read_acceptances(run_dir))
    content[acceptance.stage] = {
        "wanted": acceptance.wanted,
        "kept": acceptance.kept,
        "accepted_at": time.time(),
        "differences": [list(item) for item in acceptance.differences],
    }
    durable.write_json(run_dir / ACCEPTED_FILE, content)


def _finished(root: Path, name: str, prefix: str) -> Record | None:
    for directory in earlier_stage_dirs(root, name):
        record = read_record(directory)
        if record is not None and record.fingerprint.startswith(prefix):
            return record
    return None


@dataclass(frozen=True, kw_only=True)
class PlannedStage:
    """One stage of a project as it stands now."""

    name: str
    spec: Stage
    identity: Mapping[str, Any]
    """What the file asks for."""
    asked_fingerprint: str
    """The hash of `identity`."""
    kept: AdoptedRecord | None
    """The finished record of another fingerprint that stands in its place, by `charter artifacts accept` or a pin."""
    directory: Path
    inputs: Mapping[str, tuple[JobInput, ...]]
    constitution: str | None

    @property
    def fingerprint(self) -> str:
        """Return the fingerprint that later stages build on: the kept one, or the one that is asked for."""
        return self.kept.fingerprint if self.kept else self.asked_fingerprint

    @property
    def stage_inputs(self) -> tuple[str, ...]:
        """The stages that it reads from, each once."""
        items = (item for items in self.inputs.values() for item in items if item.source == "stage")
        return tuple(dict.fromkeys(item.name for item in items))

    @property
    def outside_inputs(self) -> tuple[str, ...]:
        """The models and data sets that it reads, and `constitution` if it does."""
        items = (item for items in self.inputs.values() for item in items if item.source != "stage")
        names = tuple(dict.fromkeys(item.name for item in items))
        return (*names, "constitution") if self.constitution else names


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """All stages in execution order, and what was resolved on the way."""

    project: Project
    root: Path
    stages: Mapping[str, PlannedStage]
    inputs: Inputs

    def stage(self, name: str) -> PlannedStage:
        """The stage of that name; a UsageError that says which there are."""
        if name not in self.stages:
            raise UsageError(f"no stage is called {name!r}; the stages are {', '.join(self.stages)}")
        return self.stages[name]


def with_project(pipeline: Pipeline, project: Project) -> Pipeline:
    """Return the pipeline of a project that differs in how and where it runs alone: every fingerprint is the same."""
    stages = {name: replace(stage, spec=project.pipeline[name]) for name, stage in pipeline.stages.items()}
    return replace(pipeline, project=project, stages=stages)


def build_pipeline(
    project: Project,
    root: Path,
    *,
    keep_hashes: bool = False,
    hashes: FileHashes | None = None,
    revisions: Mapping[str, Mapping[str, Any]] | None = None,
) -> Pipeline:
    """Resolve every input and compute every fingerprint. Nothing is started.

    Nothing is written either, so that who only looks changes nothing; `keep_hashes`, for who writes into the run
    anyway, keeps on disk the hashes of the files that were read. `hashes` are those that a caller has, for one that
    looks again and again; `revisions` stand in for those that were accepted in the run.
    """
    root = root.resolve()
    project = replace(project, engines=engines_at(project.engines, root))
    hashes = hashes or hashes_of(root)
    inputs = Inputs(project, root, hashes, read_revisions(run_dir(root)) if revisions is None else revisions)
    acceptances = read_acceptances(run_dir(root))
    stages: dict[str, PlannedStage] = {}
    for name in execution_order(project):
        stages[name] = _plan(project, root, name, inputs, stages, acceptances)
    if keep_hashes:
        hashes.save()
    return Pipeline(project=project, root=root, stages=stages, inputs=inputs)


def hashes_of(root: Path) -> FileHashes:
    """Return the hashes of a project's inputs as its last run has left them."""
    return FileHashes(run_dir(root.resolve()) / "hashes.json")


def job_of(stage: PlannedStage, project: Project, frozen: Mapping[str, str | int]) -> Job:
    """Return the job of the stage process."""
    return Job(
        run=project.name,
        stage=stage.name,
        kind=stage.spec.kind,
        fingerprint=stage.asked_fingerprint,
        seed=project.seed_of(stage.name),
        spec=stage.spec,
        inputs=stage.inputs,
        constitution=stage.constitution,
        frozen=frozen,
        keep_last=project.storage.keep_last,
        keep_every=project.storage.keep_every,
        keep_best=project.storage.keep_best,
        serving=serving_of(stage, project),
        engines={name: settings for name, settings in project.engines.items() if name == stage.spec.engine},
        ledger=project.storage.ledger,
        identity=stage.identity,
    )


def serving_of(stage: PlannedStage, project: Project) -> dict[str, Serving]:
    """Return the servings of a stage's models; those it trains or samples from as weights have no entry.

    A pool of the stage's own resources is what the plan, or the file, wants for this stage; what the file says of the
    model beside that (its kind of interface, its limits) holds for it too.
    """
    named = {item.name for items in stage.inputs.values() for item in items}
    servings = {name: serving for name, serving in project.serving.items() if name in named and serving.is_used}
    for name, pool in project.pools_of(stage.spec).items():
        if name in named and (name not in servings or servings[name].pool != pool):
            said = project.serving.get(name, OWN_SERVERS)
            servings[name] = replace(said, pool=pool, endpoint=None, mode="endpoint")
    return servings


OWN_SERVERS = Serving(api="completions", billed=False)
"""How a pool is asked of which the file says nothing: with the text that a model in the stage's own process would get,
since which template a server would apply is its own affair."""


def _plan(
    project: Project,
    root: Path,
    name: str,
    inputs: Inputs,
    before: Mapping[str, PlannedStage],
    acceptances: Mapping[str, Any],
) -> PlannedStage:
    spec = project.pipeline[name]
    sources = {
        role: tuple(_input(project, inputs, before, item, role) for item in names)
        for role, names in inputs_of(project, name).items()
    }
    for role, paths in spec.sources.items():
        sources[role] = tuple(inputs.files(path, role) for path in paths)
    path, constitution = inputs.constitution() if spec.reads_constitution else (None, None)
    identity = stage_identity(
        spec,
        name=name,
        inputs={role: [item.fingerprint for item in items] for role, items in sources.items()},
        seed=project.seed_of(name),
        constitution=constitution,
    )
    wanted = fingerprint(identity)
    accepted = kept_record(root, name, asked=wanted, pin=spec.expected_fingerprint, acceptances=acceptances)
    return PlannedStage(
        name=name,
        spec=spec,
        identity=identity,
        asked_fingerprint=wanted,
        kept=accepted,
        directory=stage_dir(root, name, accepted.fingerprint if accepted else wanted),
        inputs={**sources, **_tokenizer_inputs(project, inputs, sources)},
        constitution=path,
    )


def _input(project: Project, inputs: Inputs, before: Mapping[str, PlannedStage], name: str, role: str) -> JobInput:
    if name in before:
        source = before[name]
        return JobInput(
            name=name,
            role=role,
            source="stage",
            path=str(source.directory / OUTPUTS),
            fingerprint=inputs.revised(name, source.fingerprint),
            stage_kind=source.spec.kind,
        )
    return inputs.model(name, role) if name in project.models else inputs.data(name, role)


def _tokenizer_inputs(
    project: Project, inputs: Inputs, sources: Mapping[str, tuple[JobInput, ...]]
) -> dict[str, tuple[JobInput, ...]]:
    """Data to train a tokenizer on, where a model asks for one; its fingerprint is part of the model's."""
    models = [item.model for items in sources.values() for item in items if item.model is not None]
    names = [name for model in models if model.tokenizer is not None for name in model.tokenizer.train_on]
    items = tuple(inputs.data(name, "tokenizer") for name in dict.fromkeys(names))
    return {"tokenizer": items} if items else {}
