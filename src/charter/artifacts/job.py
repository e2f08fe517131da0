"""Job of a stage process: one JSON file in its stage directory; the plan of its step, and what its engine said."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar

from charter.artifacts import durable
from charter.artifacts.whole_dir import SEAL, broken_seal, write_sealed
from charter.data.rows import SkippedRows
from charter.errors import DataError, loads_json
from charter.spec.execution import Execution, execution_from_json
from charter.spec.project import DataSpec, ModelSpec, Serving
from charter.spec.sections import EngineEnvironment
from charter.spec.stage import STAGE_KINDS
from charter.spec.stage_base import MODEL, Stage

PLANNED_FILE = "planned.json"
PLANNED_SCHEMA = "charter.planned_step/1"


@dataclass(frozen=True, kw_only=True)
class PlannedStep:
    """One step of one stage on this machine: optimizer step, rollout, or batch of records."""

    seconds_per_step: float
    """Working time: without checkpoints, waits and restarts."""
    seconds_by_phase: Mapping[str, float] = field(default_factory=dict)
    """generate, score, update; their sum is `seconds_per_step`."""
    peak_bytes: float
    """Tensors of one process at the fullest moment; without the process itself and the allocator's slack."""
    bytes_by_part: Mapping[str, float] = field(default_factory=dict)
    """parameters, gradients, optimizer, activations, logits, buffers, kv_cache; their sum is `peak_bytes`."""
    flops_per_step: float
    """Model operations, 6 N and 2 N per token: attention scores are left out."""


def write_planned_step(directory: Path, planned: PlannedStep) -> None:
    """Put it beside a stage that has none yet; nothing depends on it, so it is not flushed to disk."""
    if not (directory / PLANNED_FILE).exists():
        directory.mkdir(parents=True, exist_ok=True)
        durable.write_hint(directory / PLANNED_FILE, {"schema": PLANNED_SCHEMA, **asdict(planned)})


def read_planned_step(directory: Path) -> PlannedStep | None:
    """Read the planned step; None where there is none, or where it cannot be read."""
    try:
        content = loads_json((directory / PLANNED_FILE).read_text(encoding="utf-8"))
        return PlannedStep(**content) if content.pop("schema") == PLANNED_SCHEMA else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


Spec = TypeVar("Spec", bound=Stage)
JOB_FILE = "job.json"
SCHEMA = "charter.job/2"


@dataclass(frozen=True, kw_only=True)
class JobInput:
    """One thing that a stage reads."""

    name: str
    role: str
    source: Literal["stage", "model", "data"]
    path: str | None
    """Absolute: the `outputs` directory of a stage, a model's directory, a data set's path.

    None for an inline architecture.
    """
    fingerprint: str
    stage_kind: str | None = None
    """The kind of the stage that made it."""
    model: ModelSpec | None = None
    data: DataSpec | None = None

    def location(self) -> Path:
        """The model directory or data file itself; a catalog model without weights here is refused."""
        if self.path is None:
            named = self.model.model if self.model else self.name
            raise DataError(
                f"model {self.name!r} ({named}) has no weights on this machine; give `model:` the path of a "
                "Hugging Face directory, or an inline architecture with a tokenizer"
            )
        if self.stage_kind is None:
            return Path(self.path)
        product = STAGE_KINDS[self.stage_kind].MAKES
        return Path(self.path) / ("model" if product == MODEL else "records.jsonl")


def served_name(item: JobInput, serving: Serving) -> str:
    """Return what a server calls a model: as `serving` says, or its catalog name, or its name in the project."""
    return serving.model or (item.model.model if item.model and item.model.model else item.name)


@dataclass(frozen=True, kw_only=True)
class Job:
    """Everything a stage process needs.

    `inputs` is keyed by role (the field of the stage's spec). A model whose tokenizer is to be trained adds
    the role `tokenizer` with the data sets to train it on.
    """

    run: str
    stage: str
    kind: str
    fingerprint: str
    seed: int
    """The project's seed; every draw is `draw_seed(job.seed, purpose, ...)`."""
    spec: Stage
    inputs: Mapping[str, tuple[JobInput, ...]]
    constitution: str | None
    """Absolute path."""
    frozen: Mapping[str, str | int]
    """What the bits depend on, fixed when the stage first starts: `threads`, `device`, library versions."""
    keep_last: int
    keep_every: int | None = None
    keep_best: bool = False
    serving: Mapping[str, Serving] = field(default_factory=dict)
    """Where models of this stage are served, by the name of the model or stage; never part of the identity."""
    engines: Mapping[str, EngineEnvironment] = field(default_factory=dict)
    """Where the engine that computes the stage is installed, by its name; never part of the identity."""
    ledger: str | None = None
    """Database for calls that cost money, where it is not a file of the stage directory."""
    identity: Mapping[str, Any] = field(default_factory=dict)
    """The canonical payload that the fingerprint is the hash of."""

    def spec_as(self, kind: type[Spec]) -> Spec:
        """The fields of the stage, which must be of a kind; a DataError where the job is that of another."""
        if not isinstance(self.spec, kind):
            raise DataError(f"stage {self.stage} is of kind {self.spec.kind}, which this process does not compute")
        return self.spec

    def only(self, role: str) -> JobInput:
        """The single input of a role."""
        items = self.inputs.get(role, ())
        if len(items) != 1:
            raise DataError(f"stage {self.stage} has {len(items)} inputs for {role}, where exactly one is needed")
        return items[0]


def write_job(stage_dir: Path, job: Job) -> None:
    """Write `job.json`."""
    write_sealed(stage_dir / JOB_FILE, job_to_json(job))


def read_job(stage_dir: Path) -> Job:
    """Read `job.json`; a DataError names what is wrong with it."""
    path = stage_dir / JOB_FILE
    content = durable.read_json(path)
    if (wrong := broken_seal(path, content)) is not None:
        raise DataError(f"{path} is not a job of this version of Charter, or was damaged: it {wrong}")
    try:
        return job_from_json(content)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path} is not a job of this version of Charter: {error}") from None


EXECUTION_FILE = "execution.json"
"""In a stage's directory: what it was started as. Its layout holds until the stage is done."""


def read_execution(stage_dir: Path) -> Execution | None:
    """Return what a stage was started as; None where that is not on disk."""
    try:
        return execution_from_json(durable.read_json(stage_dir / EXECUTION_FILE))
    except (DataError, KeyError, TypeError, AttributeError):
        return None


def job_to_json(job: Job) -> dict[str, Any]:
    """A job as plain JSON types."""
    plain = {item.name: getattr(job, item.name) for item in fields(job)}
    plain["schema"] = SCHEMA
    plain["spec"] = _adapter(type(job.spec)).dump_python(job.spec, mode="json")
    plain["inputs"] = {role: [_dump_input(item) for item in items] for role, items in job.inputs.items()}
    plain["frozen"] = dict(job.frozen)
    plain["serving"] = {name: _adapter(Serving).dump_python(item, mode="json") for name, item in job.serving.items()}
    plain["engines"] = {
        name: _adapter(EngineEnvironment).dump_python(item, mode="json") for name, item in job.engines.items()
    }
    plain["identity"] = dict(job.identity)
    return plain


def job_from_json(content: Mapping[str, Any]) -> Job:
    """The job that `job_to_json` wrote."""
    values = {key: value for key, value in content.items() if key not in ("schema", SEAL)}
    values["spec"] = _adapter(STAGE_KINDS[values["kind"]]).validate_python(values["spec"])
    adapter = _adapter(JobInput)
    values["inputs"] = {
        role: tuple(adapter.validate_python(item) for item in items) for role, items in values["inputs"].items()
    }
    serving = values.get("serving", {})
    values["serving"] = {name: _adapter(Serving).validate_python(item) for name, item in serving.items()}
    engines = values.get("engines", {})
    values["engines"] = {name: _adapter(EngineEnvironment).validate_python(item) for name, item in engines.items()}
    return Job(**values)


def _dump_input(item: JobInput) -> Any:
    return _adapter(JobInput).dump_python(item, mode="json")


def _adapter(kind: type) -> Any:
    from pydantic import TypeAdapter

    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


_ADAPTERS: dict[type, Any] = {}


Made = TypeVar("Made")
Reader = Callable[[Path, DataSpec | None, SkippedRows | None], Iterable[Made]]
"""`read_pairs`, `each_text` and their like, of `data/dataset`."""


def each_stage_row(job: Job, role: str, read: Reader[Made], skipped: SkippedRows) -> Iterator[Made]:
    """Yield the values that `read` makes of every data set of a role, one by one; bad rows are counted in `skipped`."""
    for item in job.inputs.get(role, ()):
        yield from read(item.location(), item.data, skipped)


def stage_rows(job: Job, role: str, read: Reader[Made]) -> tuple[list[Made], SkippedRows]:
    """All rows of a role, and what was left out: for the log `skipped.lines()`, for reports `skipped.metrics()`."""
    skipped = SkippedRows()
    return list(each_stage_row(job, role, read, skipped)), skipped


HOSTED_FILE = "hosted.json"
HOSTED_SCHEMA = "charter.hosted/1"


@dataclass(frozen=True, kw_only=True)
class HostedFacts:
    """One engine, as it was last started for a stage."""

    engine: str
    version: str
    checked_version: str
    """That the mapping was read from and is checked against."""
    guarantee: str
    """`bit_exact`, `same_data_order` or `best_effort`: of a run that was killed and went on (`handover.rendered`)."""
    reason: str
    source: str
    notes: tuple[str, ...] = ()
    """What a reader of the results must know: rows that were left out, a version that was not checked."""
    conversion: Mapping[str, Any] = field(default_factory=dict)
    """How the engine's weights became a model directory, where that took a program of its own."""

    def words(self) -> str:
        """In one line, for records."""
        return f"computed by {self.engine} {self.version}; resume: {self.guarantee}"


def write_hosted_facts(directory: Path, facts: HostedFacts) -> None:
    """Put them beside the stage; nothing depends on them."""
    durable.write_hint(directory / HOSTED_FILE, {"schema": HOSTED_SCHEMA, **asdict(facts)})


def read_hosted_facts(directory: Path) -> HostedFacts | None:
    """The facts of a stage; None of one that the native engine computes, or where they cannot be read."""
    try:
        content = durable.read_json(directory / HOSTED_FILE)
        if content.pop("schema") != HOSTED_SCHEMA:
            return None
        return HostedFacts(**{**content, "notes": tuple(content["notes"])})
    except (DataError, TypeError, KeyError, AttributeError):
        return None
