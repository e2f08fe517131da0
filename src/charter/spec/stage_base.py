"""The fields that stages share: optimizer, sampling, resources, and those of every stage.

A field is part of a stage's identity unless it is marked `execution()`: changing a learning rate makes a stage stale,
changing where it runs does not. The fields that name another stage, a model or a data set are listed in `REFERENCES`,
so that the graph can be drawn and checked without knowing the kinds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from types import MappingProxyType
from typing import Annotated, ClassVar, Final, Literal, Self

from charter.spec.layout import Adapter
from charter.spec.quantity import Bytes, Count, Reads, Seconds, added, execution

Schedule = Literal["constant", "linear", "cosine"]
Dtype = Literal["fp32", "bf16", "fp16", "fp8"]
FP8 = "fp8"
OptimizerName = Literal["adamw", "adamw_8bit"]
OnDivergence = Literal["stop", "skip", "roll_back"]


@dataclass(frozen=True, kw_only=True)
class Guard:
    """Response to a loss that is not finite or jumps: stop, leave the update out, or go back and around it."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    on_divergence: OnDivergence = "stop"
    spike_ratio: float | None = None
    """A loss of so many times its running mean counts as divergence; only what is not finite does without it."""
    roll_back_steps: Count = 100
    """`roll_back`: how far before the divergence training goes on from (PaLM, arXiv:2204.02311, section 5.1)."""
    skip_steps: Count = 200
    """`roll_back`: how many steps' data are left out from there."""
    most: Count = 3
    """Divergences in all, after which the stage fails."""


@dataclass(frozen=True, kw_only=True)
class Optimization:
    """Settings of the optimizer; shared by every stage that trains."""

    learning_rate: float = 1e-5
    epochs: float | None = None
    steps: Count | None = None
    """Optimizer steps; give either epochs or steps."""
    global_batch: Count = 64
    """Sequences (or pairs) per optimizer step."""
    seq_len: Count = 1024
    warmup_steps: Count = 0
    schedule: Schedule = "cosine"
    min_learning_rate_ratio: float = 0.1
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.95
    gradient_clip: float = 1.0
    dropout: float = 0.0
    """Share of token embeddings and attention weights dropped; in a preference model, of the head's input."""
    dtype: Dtype = "bf16"
    """Precision of the forward and backward pass; weights and optimizer are kept in fp32. `fp8`: matrix products of the
    layers in 8 bits, all else in bf16; engine megatron."""
    adapter: Adapter | None = None
    optimizer: OptimizerName = added("adamw")
    """`adamw_8bit` keeps Adam's moments in 8 bits (Dettmers et al. 2022, arXiv:2110.02861)."""
    guard: Guard | None = None
    """What happens when the loss is not finite or jumps; the stage stops unless given."""

    @property
    def shared_rows(self) -> Mapping[str, int]:
        """Return the batch, of which every row is alone."""
        return {"global_batch": 1}

    def steps_of(self, rows: float) -> int:
        """Return the optimizer steps over so many rows."""
        return self.steps or ceil(rows / self.global_batch)

    def shortened(self, steps: int) -> Self:
        """Return the stage with so many steps."""
        return replace(self, steps=steps, epochs=None, warmup_steps=min(self.warmup_steps, steps))

    def amount_of(self, rows: float) -> "WorkAmount | None":
        """Return its steps, where they are given, or its epochs."""
        if self.steps:
            return WorkAmount(field="steps", value=self.steps)
        return WorkAmount(field="epochs", value=self.epochs or 1.0)


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Settings of sampling text from a model."""

    temperature: float = 1.0
    top_p: float = 1.0
    max_new_tokens: Count = 512
    min_new_tokens: Count = 0
    """The end-of-text token is banned before this many tokens."""
    max_prompt_tokens: Count = 512
    """Longer prompts are cut at the left."""
    rollout_batch: Count = 64
    """Sequences generated together: the fixed unit that is replayed whole after a crash."""
    mean_new_tokens: Count | None = execution(None)
    """Mean tokens of an answer where it is known, for the plan alone; `max_new_tokens` unless given."""

    @property
    def expected_new_tokens(self) -> int:
        """Tokens of an answer that a plan counts."""
        return min(self.mean_new_tokens or self.max_new_tokens, self.max_new_tokens)

    @property
    def answers_together(self) -> int:
        """Answers to one prompt that are drawn side by side, from its first token on."""
        return 1


MODEL, DATA = "model", "data"
NATIVE: Final = "native"
Engine = str
"""Name of what updates weights; `charter.engines` lists those that there are, and checks a project's."""


AUTO = "auto"
StageEngine = Annotated[Engine, Reads(lambda value: value, {"type": "string"})]
"""An engine, or `auto`, which `spec.load` turns into the one that was chosen."""


@dataclass(frozen=True, kw_only=True)
class ServerPool:
    """Servers of one model that Charter starts for the time of a stage, and ends with it."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    engine: Literal["vllm", "charter"] = "vllm"
    """`charter` is the small server of `charter run serve`."""
    replicas: Count = 1
    """Servers over all nodes; each answers for the whole model."""
    tensor: Count = 1
    """Accelerators of one server."""
    max_num_seqs: Count | None = None
    """Sequences that a server decodes together."""
    max_tokens: Count | None = None
    """Longest prompt and answer together; the model's own limit unless given."""
    memory_share: float | None = None
    """Share of an accelerator's memory that a server takes."""

    @property
    def most_at_once(self) -> int | None:
        """Sequences that a server computes together; None: as many as vLLM finds room for."""
        return self.max_num_seqs or (1 if self.engine == "charter" else None)


@dataclass(frozen=True, kw_only=True)
class StageResources:
    """Resources of one stage; they override the project's `resources`."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    accelerators: str | None = None
    """`H100:8`, SkyPilot's spelling; `cpu` for none."""
    num_nodes: int | None = None
    use_spot: bool | None = None
    cpus: int | None = None
    """Processor cores: the threads of a local stage."""
    memory: Bytes | None = None
    """System memory that a job asks for on each of its nodes; what the plan counts there, unless it is given here or in
    the project's resources."""
    shards: int | None = None
    """Processes that share the batches of a stage that makes records; each has `cpus` cores. The records are the same
    whatever their number, which may change between runs."""
    micro_batch: int | None = None
    """Sequences of a forward and backward pass on one replica; of a pair both answers count."""
    decode_batch: int | None = None
    """Answers of a rollout that one replica draws at once, one part of its share after the other; 0: all of it. As many
    as the plan finds room for, unless given; `generator: native` alone."""
    zero: int | None = None
    tensor: int | None = None
    pipeline: int | None = None
    recompute: Literal["none", "selective", "full"] | None = None
    interleave: int | None = None
    """Chunks of layers per pipeline stage."""
    context: int | None = None
    """Accelerators that share one sequence."""
    expert: int | None = None
    """Accelerators over which routed experts are spread."""
    replicas: int | None = None
    """Whole copies of what ZeRO-3 shards (hybrid sharding): 1, or one per node."""
    sequence_parallel: bool | None = None
    offload: Literal["none", "optimizer", "all"] | None = None
    """What is kept in host memory: nothing, the optimizer's state, or parameters too."""
    offload_activations: bool | None = None
    """Whether the inputs of recomputed layers wait in host memory for the backward pass; with recompute: full."""
    attention: Literal["eager", "sdpa", "flash_attention_2", "flex_attention"] | None = None
    """Attention implementation of the model classes; `sdpa` unless given."""
    compile: bool | None = None
    """`torch.compile` of the training forward pass."""
    pools: Mapping[str, ServerPool] | None = None
    """Pools of servers that answer for models of this stage, by the name of the model or stage."""


@dataclass(frozen=True, kw_only=True)
class WorkAmount:
    """Field of a stage that says how much it has to do."""

    field: str
    value: float
    multiple: int = 1
    """Its value is a multiple of this."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Fields of every stage: its kind, its seed, and the execution fields that never make it stale."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}
    REVISION: ClassVar[int] = 1
    """Raised by hand when the computation of this kind changes."""
    REFERENCES: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Field name -> what it must name: `model` (a model, or a stage that makes one) or `data` (likewise)."""
    SEQUENCES_PER_ROW: ClassVar[int] = 1
    """Sequences that a row of its data becomes: two where answers are compared."""
    MAKES: ClassVar[str] = DATA
    """What its output is to a later stage."""
    ROLLS_OUT: ClassVar[bool] = False
    """Whether it learns from answers that it draws itself: reinforcement learning."""
    RUNS: ClassVar[bool] = True
    """Whether the native engine runs this kind yet; the others only plan."""

    kind: str
    # Not counted among a stage's fields, since the seed that its draws derive from is in its identity, whoever gave it.
    seed: int | None = execution()
    """Of this stage's draws; the project's unless given."""
    resources: StageResources | None = execution()
    engine: StageEngine = execution("native")
    """Who computes it: this package, or another one, whose layouts are then planned and whose processes are started.
    `auto`: the quickest of those under `engines:` that keeps what `exact` demands, this package where none does."""
    engine_by: Literal["file", "plan"] = execution("file")
    """`plan`: the engine was `auto`, and was chosen; not to be written by hand."""
    checkpoint_every: Count = execution(100)
    """Optimizer steps, rollouts or batches of records between checkpoints."""
    checkpoint_interval: Seconds | None = execution()
    """Also a checkpoint when so much time has passed since the last one, at the next boundary."""
    hang_timeout: Seconds | None = execution()
    """A process without a sign of life for so long is taken to hang, and restarted; by its own pace unless given."""
    expected_fingerprint: str | None = execution()
    """Pin: refuse to run this stage under any other fingerprint, keep a finished one that has it."""
    timeout: Seconds | None = execution()
    needs_approval: bool = execution(False)
    """Held until a person has looked at samples of what it reads and said `charter approve STAGE`."""

    def named(self, role: str) -> str | tuple[str, ...] | None:
        """The name or names that stand in a role of `REFERENCES`."""
        value: str | tuple[str, ...] | None = getattr(self, role)
        return value

    @property
    def shared_rows(self) -> Mapping[str, int]:
        """Return the fields that count rows which data ranks share evenly, and how many of those rows stay together."""
        return {}

    @property
    def silent_seconds(self) -> float:
        """Return how long it may show no sign of life in its first step; 0: as long as any stage."""
        return 0.0

    def steps_of(self, rows: float) -> int:
        """Return the steps of the stage over so many rows, in the unit in which its process reports; 0: not known."""
        return 0

    def shortened(self, steps: int) -> Self:
        """Return the stage with so many steps, for a look at their pace; as it is where it has none."""
        return self

    def amount_of(self, rows: float) -> WorkAmount | None:
        """Return the field that says how much a stage of so many rows has to do; None where none does."""
        return None

    @property
    def sources(self) -> Mapping[str, tuple[str, ...]]:
        """Files that are neither data nor models, by role: their content is part of the stage's key."""
        return {}

    @property
    def reads_constitution(self) -> bool:
        """Return True if the project's principles are an input."""
        return self.kind in ("judge", "critique", "label")
