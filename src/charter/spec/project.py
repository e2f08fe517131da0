"""One project: what `charter.yaml` says, as frozen values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from charter.spec.architecture import Architecture
from charter.spec.quantity import Bytes, Count, Names, Seconds, Usd, UsdPerHour
from charter.spec.stage import AnyStage

FORBID_EXTRA: dict[str, str] = {"extra": "forbid"}


@dataclass(frozen=True, kw_only=True)
class TokenizerSpec:
    """A byte-level BPE tokenizer to be trained on data sets of the project."""

    __pydantic_config__: ClassVar[dict[str, str]] = FORBID_EXTRA

    train_on: Names
    vocab_size: Count = 2048


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """A model: a catalog name or the path of a Hugging Face directory, or an inline architecture."""

    __pydantic_config__: ClassVar[dict[str, str]] = FORBID_EXTRA

    model: str | None = None
    """Catalog name (`meta-llama/Llama-3.1-8B`), directory with a `config.json`, or the path of that file."""
    architecture: Architecture | None = None
    tokenizer: TokenizerSpec | None = None
    """Needed with an inline architecture that is trained from scratch."""
    precision: Literal["fp32", "bf16", "fp8", "int4"] = "bf16"


@dataclass(frozen=True, kw_only=True)
class DataSpec:
    """A data set: JSONL in TRL's formats (`messages`, `prompt`, `prompt/chosen/rejected`, `text`)."""

    __pydantic_config__: ClassVar[dict[str, str]] = FORBID_EXTRA

    path: str
    part: str | None = None
    """`1/2`: the first of two halves, split by the hash of the first user turn: no prompt is in both."""
    column: Literal["chosen", "rejected", "both"] | None = None
    """Read preference rows as conversations: which answer."""
    limit: Count | None = None
    """At most so many rows, in file order, after `part`."""
    rows: Count | None = None
    """Rows (after `part` and `limit`) that the planner assumes while the file is not there."""
    mean_tokens: float | None = None
    """Tokens of a row that the planner assumes instead of measuring the file."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """One candidate place for `any_of`."""

    __pydantic_config__: ClassVar[dict[str, str]] = FORBID_EXTRA

    infra: str
    """aws, gcp, azure, lambda, nebius, verda, crusoe, hyperstack, runpod, on_prem or local."""
    region: str | None = None
    accelerators: Names = ()


@dataclass(frozen=True, kw_only=True)
class Resources:
    """Where the project may run, in SkyPilot's spelling."""

    __pydantic_config__: ClassVar[dict[str, str]] = FORBID_EXTRA

    infra: str | None = None
    any_of: tuple[Place, ...] = ()
    accelerators: Names = ()
    """`H100:8`: type and number per node; `cpu` for none."""
    num_nodes: int | None = None
    max_nodes: int = 16
    use_spot: bool | Literal["auto"] = False
    max_hourly_cost: UsdPerHour | None = None
    price: UsdPerHour | None = None
    """Price of one accelerator (or, on a local machine, of the machine) per hour; replaces the catalog's."""
    cpus: int | None = None
    memory: Bytes | None = None
    max_parallel_stages: int = 1
    """Local runs: how many independent stages may run side by side."""
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How much may be spent, and what happens when it is gone."""

    __pydantic_config__: ClassVar[dict[str, str]] = FORBID_EXTRA

    limit: Usd
    on_exceed: Literal["warn", "checkpoint_and_stop"] = "checkpoint_and_stop"


@dataclass(frozen=True, kw_only=True)
class Storage:
    """Where artifacts live and how many checkpoints are kept."""

    __pydantic_config__: ClassVar[dict[str, str]] = FORBID_EXTRA

    artifacts: str | None = None
    keep_last: int = 2


@dataclass(frozen=True, kw_only=True)
class Serving:
    """Where a model that only answers is served."""

    __pydantic_config__: ClassVar[dict[str, str]] = FORBID_EXTRA

    endpoint: str | None = None


@dataclass(frozen=True, kw_only=True)
class Project:
    """A whole `charter.yaml`. Identity: models, constitution, data, pipeline, seed. The rest is execution."""

    __pydantic_config__: ClassVar[dict[str, str]] = FORBID_EXTRA

    name: str
    """Name of the project; part of its run's name, never of what is computed."""
    models: Mapping[str, ModelSpec]
    """The models that stages start from or ask, by name; a text stands for `{model: ...}`."""
    pipeline: Mapping[str, AnyStage]
    """The stages by name, in any order; every edge between them is a name."""
    data: Mapping[str, DataSpec] = field(default_factory=dict)
    """The data sets by name; a text stands for `{path: ...}`."""
    constitution: str | None = None
    """Path of the principles that critique, label and judge stages draw from."""
    seed: int = 0
    """Every random draw derives from it."""
    resources: Resources = field(default_factory=Resources)
    """Where the project may run."""
    budget: Budget | None = None
    """How much may be spent."""
    deadline: Seconds | None = None
    """How long the whole project may take."""
    serving: Mapping[str, Serving] = field(default_factory=dict)
    """Where models that only answer are served, by the name of the model or stage."""
    storage: Storage = field(default_factory=Storage)
    """Where artifacts and checkpoints are kept."""
    tracking: tuple[Literal["jsonl", "mlflow", "wandb", "tensorboard"], ...] = ("jsonl",)
    """Where metrics are written."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """Free text per stage, shown in reports."""
