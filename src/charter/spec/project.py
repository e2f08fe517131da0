"""One project: what `charter.yaml` says, as frozen values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from types import MappingProxyType
from typing import ClassVar, Literal, NamedTuple

from charter.spec.architecture import Architecture
from charter.spec.launching import FORBID_EXTRA, Launch
from charter.spec.quantity import Bytes, BytesPerSecond, Count, Names, Seconds, Usd, UsdPerHour, added
from charter.spec.sections import (
    Alerts,
    Budget,
    Costs,
    EngineEnvironment,
    IdlePolicy,
    Metering,
    RiskSettings,
    Samples,
    TrackerEntry,
    TrackerName,
)
from charter.spec.stage import AnyStage
from charter.spec.stage_base import Engine, ServerPool, Stage
from charter.spec.sweep import Sweep


@dataclass(frozen=True, kw_only=True)
class TokenizerSpec:
    """A byte-level BPE tokenizer to be trained on data sets of the project."""

    __pydantic_config__: ClassVar[dict[str, str]] = FORBID_EXTRA

    train_on: Names
    vocab_size: Count = 2048


class Quantisation(NamedTuple):
    """A precision to which vLLM brings a model as it loads it."""

    stored: str
    """Format that its matrices then have, by the names of `physics.precision`."""
    method: str
    """vLLM's name for it."""


QUANTISED: Mapping[str, Quantisation] = MappingProxyType(
    {"fp8": Quantisation("fp8", "fp8"), "int4": Quantisation("nf4", "bitsandbytes")}
)


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
    """`fp8`, `int4`: vLLM brings a model that only answers to it as it loads it (`int4`: bitsandbytes' nf4). Files that
    are quantised already stay as they are. Stages that train say `dtype`."""
    reward_model: bool = False
    """It gives scores, not text: may stand as a `reward` without a preference_model stage. Planned; not run yet."""


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
    format: Literal["auto", "jsonl", "parquet", "hf", "webdataset"] = added("auto")
    """`auto`: by what the path holds. `hf`: a directory written by `datasets`; `webdataset`: tar shards."""
    on_bad_row: Literal["fail", "skip"] = added("fail")
    """A row that cannot be read stops the stage, or is left out and counted."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """One candidate place for `any_of`."""

    __pydantic_config__: ClassVar[dict[str, str]] = FORBID_EXTRA

    infra: str
    """aws, gcp, azure, lambda, nebius, verda, crusoe, hyperstack, runpod, on_prem, slurm or local."""
    region: str | None = None
    accelerators: Names = ()
    nodes: int | None = None
    """Nodes that exist there, for all stages at once: an on-prem cluster, a reservation."""
    market: Literal["capacity_block"] | None = None
    """`capacity_block`: bought in whole days before the stage starts; needs `price`."""
    price: UsdPerHour | None = None
    """Price of one accelerator per hour there; replaces the price book's."""
    lead_time: Seconds | None = None
    """From asking for the capacity to having it; nothing starts there before."""
    queue_wait: Seconds | None = None
    """Median wait in the queue before each stage there (Slurm)."""


@dataclass(frozen=True, kw_only=True)
class Resources:
    """Clouds, regions and accelerators on which the project may run, in SkyPilot's spelling."""

    __pydantic_config__: ClassVar[dict[str, str]] = FORBID_EXTRA

    infra: str | None = None
    any_of: tuple[Place, ...] = ()
    clouds: Names = ()
    """Only these providers, of `any_of` or of the price book."""
    regions: Names = ()
    """Only these regions; a provider whose prices name no region is kept."""
    accelerators: Names = ()
    """`H100:8`: type and number per node; `cpu` for none; `any` for every whole machine of the price book."""
    num_nodes: int | None = None
    max_nodes: int = 16
    """Nodes held at the same time, over all stages that run then."""
    quota: Mapping[str, Count] = field(default_factory=dict)
    """Accelerators that may be held at the same time, by type: `{H100: 64}`."""
    use_spot: bool | Literal["auto"] = False
    reserved: Literal["1y", "3y", "auto"] | None = None
    """`1y`, `3y`: a commitment that is already paid for, billed by the hour; `auto`: compare buying one."""
    lead_time: Seconds | None = None
    """From asking for rented capacity to having it, where a place of `any_of` does not say."""
    queue_wait: Seconds | None = None
    """Median wait in the queue before each stage, where a place of `any_of` does not say."""
    billing_granule: Seconds | None = None
    """Machines are billed in whole multiples of it (`1h`); by the second where it is not given."""
    max_hourly_cost: UsdPerHour | None = None
    """The most that one machine may cost per hour, in the market that it is rented on."""
    network: BytesPerSecond | None = None
    """Speed of one machine's network to the others, all its cards together: `25Gbit/s`. What the offer, or the usual
    machine of the accelerator, has unless given."""
    price: UsdPerHour | None = None
    """Price of one accelerator (or, on a local machine, of the machine) per hour; replaces the catalog's."""
    cpus: int | None = None
    memory: Bytes | None = None
    """System memory of an own node (`on_prem`); the smallest that is offered with its accelerators unless given."""
    max_parallel_stages: int = 1
    """Local runs: how many independent stages may run side by side."""
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Storage:
    """Location of artifacts, and the number of checkpoints to keep."""

    __pydantic_config__: ClassVar[dict[str, str]] = FORBID_EXTRA

    artifacts: str | None = None
    """Second place for checkpoints, records and outputs: a directory on another disk, or `s3://bucket/path`."""
    replicate_every: Count = 1
    """Every so-many-th checkpoint is copied there; outputs always are."""
    ledger: str | None = None
    """`postgresql://host/database` for a team's ledger; its password by `PGPASSFILE` or the like, never here. A SQLite
    file in the run's directory unless given."""
    keep_last: int = 2
    """Newest verified checkpoints of a stage that are kept."""
    keep_every: Count | None = None
    """Also every checkpoint whose step is a multiple of it."""
    keep_best: bool = False
    """Also the one with the best value of the stage's own measure: the lowest loss, the highest reward."""


BATCHES = "/batches"
"""Of a batch interface, below its endpoint: calls by file are booked under it, since their price is another."""
MOST_BATCHED = 50_000
"""Requests of one file (https://platform.openai.com/docs/guides/batch); Anthropic takes twice as many."""


@dataclass(frozen=True, kw_only=True)
class Serving:
    """Server of a model that only answers."""

    __pydantic_config__: ClassVar[dict[str, str]] = FORBID_EXTRA

    endpoint: str | None = None
    """Address of a server that answers for the model, in the words of `api`."""
    pool: ServerPool | None = None
    """Servers that Charter starts for every stage that asks the model, in place of an endpoint."""
    also_endpoints: Names = ()
    """Further addresses that serve the same model at the same price."""
    model: str | None = None
    """What the server calls the model; its catalog name or the name in this file unless given."""
    api_key: str | None = None
    """Where the key is, never the key: `env:NAME` or `file:PATH`."""
    api: Literal["chat", "completions", "messages"] = "chat"
    """`completions` sends the prompt as text, which is what a pretrained judge and a prefilled answer need; `messages`
    is Anthropic's API, which gives no log-probabilities."""
    log_probabilities: Literal["top", "none"] = "top"
    """`none`: the server gives none, so labels need `votes`."""
    prefill: bool = False
    """The server continues a last turn of the assistant (vLLM, SGLang: `continue_final_message`)."""
    thinking_tokens: Count = 0
    """Room for what the model thinks before each answer: added to every limit of tokens, and planned as written in
    full. A model that thinks has no choice as its first token, so labels need `votes`."""
    revision: str | None = None
    """Which weights the endpoint serves, in your words; another one is another model, whose answers are bought anew."""
    canary_every: Count = 256
    """Answers of a server between two rounds of eight fixed questions, by which other weights are noticed; 0: none."""
    billed: bool = True
    """Whether a request costs money; only where it does not, slow ones are asked a second time."""
    request_timeout: Seconds = 120.0
    """Longest wait for one reply, retries not included."""
    max_attempts: Count = 8
    """Requests for one answer, after which the stage fails."""
    mode: Literal["endpoint", "own", "auto"] = "endpoint"
    """`endpoint`: the endpoint answers wherever one is given; `own`: never; `auto`: the plan takes what is better."""
    usd_per_million_input_tokens: Usd | None = None
    """What the endpoint charges; without it the stage is unpriced, and its time is planned all the same."""
    usd_per_million_output_tokens: Usd | None = None
    cached_input_usd_per_million_tokens: Usd | None = None
    """Of prompt tokens that the endpoint has seen before; the full price unless given."""
    cached_prompt_share: float = 0.0
    """Share of a prompt that is the same in every request: instructions and few-shot examples in front."""
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    """Of prompts and answers together."""
    concurrency: Count = 64
    """Requests in flight at once."""
    batch: bool = False
    """Ask by files through the provider's batch interface (OpenAI's `/batches`; Anthropic's `/messages/batches` where
    `api` is `messages`): cheaper, and answered within a day."""
    batch_price: float = 0.5
    """Share of the prices above that a request in a batch is charged; both providers publish half of them."""
    batch_poll: Seconds = 30.0
    """Between two looks at a batch that is under way."""

    @property
    def is_used(self) -> bool:
        """Return True if a run asks servers: they are given or started, and not merely compared with or left aside."""
        return (self.endpoint is not None or self.pool is not None) and self.mode != "own"

    @property
    def gives_log_probabilities(self) -> bool:
        """Return True if choices are read from probabilities of the first token: nothing in the file speaks against."""
        return self.log_probabilities == "top" and self.api != "messages" and not self.thinking_tokens

    @property
    def is_by_address(self) -> bool:
        """Return True if the model is reached by address wherever only answers are wanted of it.

        Nothing of such a model is here: no weights, no memory, no architecture, no time of an accelerator. It is
        planned from tokens, their price and the limits of its servers.
        """
        return self.endpoint is not None and self.mode == "endpoint"

    @property
    def token_prices(self) -> tuple[float, float] | None:
        """USD per million tokens read and written: zero where requests cost nothing, None where no price is known."""
        if not self.billed:
            return 0.0, 0.0
        if self.usd_per_million_input_tokens is None or self.usd_per_million_output_tokens is None:
            return None
        return self.usd_per_million_input_tokens, self.usd_per_million_output_tokens


BATCHES_PER_FILL = 2
"""Times that the requests of all batches under way fill the endpoint: while one waits for its last answer, the others
keep it busy."""


def batches_under_way(serving: Sequence[Serving], batch: int) -> int:
    """Return the number of batches that are asked at once: one where everything is computed here.

    >>> batches_under_way([], 64), batches_under_way([Serving(concurrency=256)], 64)
    (1, 8)
    """
    places = max((item.concurrency * _servers(item) for item in serving), default=0)
    if any(item.batch for item in serving):
        places = MOST_BATCHED  # of one file: what is asked later waits for another
    return max(1, BATCHES_PER_FILL * ceil(places / batch))


def _servers(serving: Serving) -> int:
    return serving.pool.replicas if serving.pool is not None else 1 + len(serving.also_endpoints)


EXACT, BITS = "exact", "bits"


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
    objective: Literal["cheapest", "fastest", "balanced"] = "cheapest"
    """What the plan minimises within deadline, quota and nodes; `fastest` and `balanced` keep the budget too."""
    exact: Literal["bits", "record", "none"] = "bits"
    """What a run that is resumed repeats: `bits`, every one; `record`, the order of data and what was stored; `none`.
    Less than bits frees the native engine's kernels, and lets `engine: auto` (then the default) take other engines."""
    serving: Mapping[str, Serving] = field(default_factory=dict)
    """Where models that only answer are served, by the name of the model or stage."""
    storage: Storage = field(default_factory=Storage)
    """Where artifacts and checkpoints are kept."""
    costs: Costs = field(default_factory=Costs)
    """What is paid beside accelerators and storage."""
    risk: RiskSettings = field(default_factory=RiskSettings)
    """How often machines fail, and how the job comes back."""
    tracking: tuple[TrackerName | TrackerEntry, ...] = ("jsonl",)
    """Where metrics are written: names, or entries with settings (`{mlflow: {uri: http://127.0.0.1:5000}}`)."""
    owner: str | None = None
    """Person or team that the run is billed to."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """Put on jobs, pods, objects in buckets and lines of the ledger, beside project, owner, run, stage and attempt."""
    launch: Launch = field(default_factory=Launch)
    """How stages are started on Slurm, Ray, Kubernetes or SkyPilot."""
    engines: Mapping[Engine, EngineEnvironment] = field(default_factory=dict)
    """Where the engines that stages name in `engine:` are installed."""
    metering: Metering = field(default_factory=Metering)
    """What is measured on the machines of a run."""
    samples: Samples = field(default_factory=Samples)
    """Answers to read while models are trained."""
    idle: IdlePolicy = field(default_factory=IdlePolicy)
    """When an allocation counts as idle, and what happens then."""
    alerts: Alerts = field(default_factory=Alerts)
    """Who is told of budgets, failures and idle machines."""
    sweeps: Mapping[str, Sweep] = field(default_factory=dict)
    """Values and seeds over which the project is planned, run and compared, by name."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """Free text per stage, shown in reports."""

    @property
    def run_in_ledger(self) -> str | None:
        """Return the name of its rows in a ledger of many; None for a file of its own, whatever they are called.

        The file of a project that was renamed has rows of both names.
        """
        return self.name if self.storage.ledger else None

    @property
    def sample_data(self) -> str | None:
        """Return the data set whose prompts a run answers while it trains; None without samples, or prompts.

        The file's own word first, then what an evaluation, PPO, a label or a critique stage reads.
        """
        if not self.samples.count:
            return None
        if self.samples.prompts is not None:
            return self.samples.prompts
        for kind in ("eval", "ppo", "label", "critique"):
            for stage in self.pipeline.values():
                names = getattr(stage, "prompts", ()) if stage.kind == kind else ()
                if usable := [str(name) for name in names if name in self.data]:
                    return usable[0]
        return None

    def pools_of(self, stage: Stage) -> dict[str, ServerPool]:
        """Servers that the file has Charter start for a stage, by model: in the stage's own words, else the model's."""
        used = {name: serving.pool for name, serving in self.serving.items() if serving.is_used}
        pools = {name: pool for name, pool in used.items() if pool is not None}
        own = (stage.resources.pools if stage.resources else None) or {}
        return pools | {name: pool for name, pool in own.items() if name not in used or name in pools}

    def seed_of(self, stage: str) -> int:
        """Return the seed from which all draws of a stage derive: its own, else the project's."""
        own = self.pipeline[stage].seed
        return self.seed if own is None else own
