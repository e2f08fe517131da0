"""Traits of training stacks that memory depends on, and the job that runs on one."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from charter.catalog.accelerators import Accelerator
from charter.physics.kept_activations import Implementation, Matrices
from charter.physics.precision import FSDP_MIXED, TrainingPrecision
from charter.spec.architecture import Architecture
from charter.spec.layout import Adapter

# -------- Memory profile of a training stack besides layout and precision: a few named traits of its code.

CrossEntropy = Literal[
    "eager",
    "released",
    "sharded",
    "shifted",
    "fused",
    "chunked",
    "liger",
    "native",
    "inplace",
    "compiled",
    "scaled",
    "blocks",
    "tiled",
    "each",
]
LOSS_BYTES: dict[str, float] = {
    "eager": 12.0,
    "released": 10.0,
    "sharded": 8.0,
    "shifted": 6.0,
    "fused": 6.0,
    "chunked": 12.0,
    "liger": 0.0,
    "native": 4.0,
    "inplace": 1.0,
    "compiled": 2.0,
    "scaled": 2.0,
    "blocks": 16.0,
    "tiled": 6.0,
    "each": 6.0,
}
"""Bytes per logit at the peak, besides the logit itself. eager: log-probabilities and the gradients of both in fp32,
4 + 4 + 4 (torch cross_entropy on upcast logits: what its autograd nodes hold at the start of the backward pass);
released: the same, the logits themselves gone before the backward pass (torchtitan: `del pred`);
sharded: logits in fp32 and a softmax of them, which becomes their gradient, 4 + 4, beside the block of the 16-bit ones,
which is too small for either (nanotron, `_ShardedCrossEntropy`);
shifted: a copy of the logits shifted by a position, log-probabilities and gradients in 16 bits, 2 + 2 + 2 (classes of
transformers that do not upcast, without autocast);
fused: the fp32 softmax, 4, and the 16-bit gradient, 2 (Megatron's fused vocabulary-parallel cross-entropy); chunked:
as eager, of `LOSS_CHUNK` positions at a time; liger: gradients overwrite the logits of one part, beside those of the
output projection and of its input, made in the forward pass and in their type (`fused_linear_cross_entropy_forward`;
its releases 0.6 to 0.8.1 make each part's gradient of the projection apart, for a moment, in 16 and in 32 bits: a lower
bound for them); native: log-probabilities and gradients in 16 bits, 2 + 2
(litgpt); inplace: the gradient overwrites the logits (flash-attn's fused loss, as llm-foundry uses it);
compiled: its gradient in 16 bits, 2: XLA fuses the element-wise chain between the two products (MaxText); scaled: the
gradient overwrites logits that were divided by a temperature, and is divided in its turn, 2 (flash-attn's loss as a
policy's log-probabilities, without entropy); blocks: of `LOSS_BLOCK` logits, made again in the backward pass: scaled
logits, probabilities, the gradient and what it becomes, 4 x 4, beside those of output projection and input (prime-rl's
`_SequenceChunkedLogProbEntropyFn`); tiled:
Charter's own summed loss, `LOSS_TILE` logits at a time, log-probabilities and probabilities in fp32, beside the fp32
gradient of the output projection, which is made in the forward pass (`charter.models.token_forward`); each: the same
tiles for the log-probability of each token (PPO, DPO), whose gradients come in the backward pass, from fp32
probabilities that are kept for it up to `KEPT_LOGITS` and made again above it. An entropy bonus, whose gradient is
4 bytes more per logit of a tile, is not counted."""
SPLIT_LOSS_BYTES = 4.0
"""More per logit where torch's `loss_parallel` has a released loss over parts of a vocabulary: its backward pass holds
log-probabilities, a zeroed gradient, exponentials and the sum of both, 4 + 4 + 4 + 4
(torch.distributed.tensor.parallel.loss, `_nll_loss_and_log_softmax_backward`)."""
OWN_LOSSES: tuple[CrossEntropy, ...] = ("tiled", "each")
"""Losses of Charter's engine (`charter.models.token_forward`)."""
KEPT_LOGITS, CPU_KEPT_LOGITS = 2.0**30, 2.0**26
"""Logits whose probabilities Charter's own loss of each token keeps for the backward pass at most."""
LOSS_TILE, CPU_LOSS_TILE = 2.0**28, 2.0**20
"""Logits of Charter's own losses that exist at once: on a GPU enough to fill it, on a CPU what stays in its caches."""
LEAST_TILE_ROWS = 16.0
"""Positions of a tile at least, however large the vocabulary."""
MOST_ASKED = 0.75
"""Share of a model's positions above which its last layer computes all: gathering and spreading would cost more than
is left out."""
VISITING_BYTES = 2.0**28
"""Moments in host memory that Charter's optimizer has beside their weights at once, or those of one weight."""
LOSS_CHUNK = 1024.0
"""Positions whose logits exist at once under a chunked loss (torchtune: 8 chunks; Unsloth: by memory)."""
LOSS_BLOCK = 8192.0**2
"""Logits of a block of positions and words that exist at once (prime-rl: `fused_lm_head_token_chunk_size`)."""


@dataclass(frozen=True, kw_only=True)
class MemoryProfile:
    """Traits of a stack."""

    name: str
    implementation: Implementation = "huggingface"
    cross_entropy: CrossEntropy = "eager"
    freed_logits: float = 0.0
    """Bytes of a logit that the allocator keeps when a loss in 32 bits is differentiated: 16-bit logits, or a copy of
    them, are gone, but no tensor of 32 bits fits where they were."""
    scored_bytes: float = 6.0
    """Bytes per logit where log-probabilities are read and nothing is learnt: in 16 bits, and them in 32."""
    loss_parts: float = 1.0
    """Parts of a micro-batch whose logits exist one after the other."""
    persistent_gradients: bool = False
    """Gradient buffers that exist through the whole step (Megatron, DeepSpeed), not only from the first backward."""
    step_bytes: float = 0.0
    """Temporary bytes per parameter of a rank's optimizer shard while it steps."""
    step_parameters: float = float("inf")
    """At most so many parameters of the shard step at a time (DeepSpeed ZeRO-3: `sub_group_size`)."""
    bucket_elements: float = 0.0
    """Elements of the communication buckets of ZeRO 1 and 2."""
    alone_elements: float = 0.0
    """Elements of those that are there without data parallelism, too (`DeepSpeedZeroOptimizer.reduce_gradients` makes
    one for a pipeline, and flattens its gradients into another of its size)."""
    whole_buckets: bool = False
    """They have that size however few parameters are trained, on one device too: DeepSpeed's `backward` makes them with
    `torch.empty(reduce_bucket_size)`, two where reductions overlap (`DeepSpeedZeroOptimizer.ipg_buffer`)."""
    third_bucket_elements: float = 0.0
    """Elements of ZeRO-3's reduction buffer, which is there from the start (`DeepSpeedZeroOptimizer_Stage3`:
    `torch.empty(reduce_bucket_size)` where gradients are contiguous). A trainer's `auto` makes it the square of the
    hidden size, next to nothing."""
    reduces_tensors: bool = False
    """Gradients of ZeRO-3 are copied there or reduced one tensor at a time, not those of a layer or of both tables."""
    starts_whole: bool = False
    """ZeRO-3 divides a model that stands whole on each device at first, in 16 bits: DeepSpeed's engine moves one there
    that was made without `zero.Init` (`_configure_distributed_model`)."""
    live_parameters: float = 0.0
    """Parameters that stay gathered under ZeRO-3 (`stage3_max_live_parameters`); at least two layers always do."""
    second_stage_shards_weights: bool = False
    """ZeRO-2 is FSDP that keeps 16-bit weights gathered through a pass: those that are stepped on are sharded."""
    ends_apart: bool = False
    """FSDP2 as Charter's engine and torchtune have it: embedding and output projection are units of their own where
    they are two tensors, and 16-bit gradients are copied to the gradients' type when their unit is reduced."""
    autocasts: bool = False
    """Where nothing is sharded, autocast casts weights and adapters that are wider than what is computed in."""
    keeps_products: bool = False
    """Selective recomputation keeps what products and fused attention make of a layer, and computes the rest again;
    else it computes the scores of unfused attention again and keeps the rest."""
    gathers_stay_frozen: bool = False
    """FSDP of 2023 reshards a layer when its gradient arrives: frozen layers stay gathered in the backward pass."""
    gradient_views: bool = False
    """Gradients lie in the buckets of torch DDP (`gradient_as_bucket_view`), which stay from step to step."""
    ddp_buckets: bool = False
    """Torch DDP copies gradients into buckets of its own (`gradient_as_bucket_view=False`)."""
    low_buckets: float = 0.0
    """1 where such buckets have the 16 bits of computation, beside gradients in 32."""
    stage_outputs: float = 0.0
    """Layer outputs that a pipeline stage keeps per micro-batch in flight, beside what autograd keeps; each rank of a
    tensor-parallel group keeps its part."""
    flat_step: float = 0.0
    """The step works on huge flat arrays, which the caching allocator cannot carve from freed activations: bytes that
    it keeps of them per byte that the step needs at once."""
    norm_bytes: float = 0.0
    """Bytes per element of the largest parameter of a shard while its gradient is checked and its norm is taken."""
    cast_bytes: float = 0.0
    """Bytes per element of the largest parameter while its 16-bit gradient is cast, which the allocator keeps."""
    further_groups: float = 0.0
    """Communicators besides one of each kind of parallelism."""
    gather_copies: float = 0.0
    """1 where new 16-bit weights are gathered as lists: NCCL's flat outputs belong to its stream until it is done, so
    that all of them exist at once, and the allocator keeps them."""
    low_gradients: float = 0.0
    """1 where a backward pass leaves 16-bit gradients of all parameters, which are then added to 32-bit ones."""
    low_gradients_stay: float = 0.0
    """1 where they stay until the next backward pass begins, not only until they are added."""
    streamed_outputs: float = 0.0
    """1 where tensor parallelism divides the outputs of a layer's two halves by collectives on a stream of their own:
    the allocator takes each back when the host sees it done, and the host is a forward pass ahead."""
    dequantised_copies: float = 1.0
    """16-bit copies of the largest matrix while a quantised one is used."""
    quantised_keeps_inputs: bool = False
    """The quantised product keeps its input though its weight is frozen (bitsandbytes until 0.42)."""
    moments_visit: bool = False
    """Moments in host memory come to the device for their step, `VISITING_BYTES` at a time; gradients stay there."""
    exchanges_heads: bool = False
    """Context parallelism exchanges positions for heads around attention (`StackProfile.exchanges_heads`)."""
    autocast_adapters: bool = False
    """Adapters of peft under autocast over a base of which only linear layers are cast: each adapted matrix keeps a
    16-bit copy of its own input, and a frozen embedding stays in the parameters' type."""
    workspace: float = 1.0
    """Share of the stack-independent workspace."""
    compiled: bool = False
    """XLA lays out the whole step: no allocator that keeps what is freed; one layer's weights are gathered at a time,
    embedding and output projection where they are used; a gradient is reduced in the type of computation, one matrix
    at a time. Every policy computes again what lies between products; a selective one attention, too."""
    source: str = ""

    @property
    def with_entropy(self) -> MemoryProfile:
        """Return the stack where entropy is learnt from, which reads the logits again: nothing overwrites them."""
        return replace(self, cross_entropy="eager") if self.cross_entropy == "scaled" else self


MEGATRON_STACK = MemoryProfile(
    name="megatron",
    implementation="megatron",
    cross_entropy="fused",
    persistent_gradients=True,
    source="Megatron-Core: contiguous gradient buffer, distributed optimizer in place, TransformerEngine kernels",
)
MEGATRON_DEEPSPEED = MemoryProfile(
    name="megatron-deepspeed",
    implementation="lean",
    cross_entropy="eager",
    persistent_gradients=True,
    step_bytes=6.0,
    bucket_elements=2e9,
    alone_elements=1e9,
    stage_outputs=1.0,
    flat_step=1.0,
    norm_bytes=12.0,
    further_groups=4.0,
    source="DeepSpeed pipeline engine (`PartitionedTensor`); ZeRO-1 (`DeepSpeedZeroOptimizer.step`) "
    "makes a flat fp16 (2 B) and from it a flat fp32 gradient (4 B), on which Apex's FusedAdam steps in place; the "
    "check for overflow casts each gradient to 32 bits and the norm to 64 (`has_overflow_serial`, "
    "`get_grad_norm_direct`); reduce and gather buckets of 5e8 elements, two of each, since NCCL's stream owns one "
    "while the next is filled; groups of all ranks, of the model, of the tied embeddings, and data parallelism twice "
    "(Megatron's and DeepSpeed's)",
)
MEGATRON_DEEPSPEED_BF16 = replace(
    MEGATRON_DEEPSPEED,
    step_bytes=0.0,
    bucket_elements=1e9,
    flat_step=0.0,
    norm_bytes=0.0,
    cast_bytes=4.0,
    gather_copies=1.0,
    low_gradients=1.0,
    low_gradients_stay=1.0,
    source="DeepSpeed's `BF16_Optimizer` under its pipeline engine: bf16 gradients stay until the "
    "next backward pass, beside fp32 ones of all parameters; Apex's FusedAdam steps on those in place; "
    "each is cast to be added, and weights are gathered as lists (`all_gather_dp_groups`) while gradients still exist",
)
DEEPSPEED = MemoryProfile(
    name="deepspeed",
    persistent_gradients=True,
    step_bytes=8.0,
    step_parameters=1e9,
    bucket_elements=4e8,
    whole_buckets=True,
    reduces_tensors=True,
    live_parameters=1e9,
    flat_step=1.0,
    source="DeepSpeed defaults: flat fp32 gradient (4 B) and Adam's temporaries (4 B), sub_group_size 1e9, "
    "stage3_max_live_parameters 1e9, buckets of 2e8 (HF's example configurations)",
)
DEEPSPEED_DIRECT = replace(DEEPSPEED, bucket_elements=5e8, third_bucket_elements=5e8)
"""With DeepSpeed's own defaults: `reduce_bucket_size` 5e8 (`DeepSpeedZeroConfig`), and one buffer of ZeRO-2, since
`overlap_comm` is off there."""
DEEPSPEED_ALONE = replace(DEEPSPEED_DIRECT, starts_whole=True)
"""Driven without a trainer that tells transformers of it (`HfDeepSpeedConfig`) before the model is made."""
INTERNEVO = MemoryProfile(
    name="internevo",
    implementation="lean",
    cross_entropy="fused",
    persistent_gradients=True,
    step_bytes=12.0,
    bucket_elements=2 * 512 * 1024**2,
    flat_step=1.5,
    source="InternEvo's `HybridZeroOptimizer._step`: a flat fp32 gradient (4 B) and torch's "
    "Adam over one flat array (`sqrt` and the quotient, 4 + 4 B); the allocator also keeps the 32-bit copies of the "
    "norm (4 B, `reduce_grads`) and the flat 16-bit gradient (2 B); buckets of `reduce_bucket_size` 512 Mi elements",
)
INTERNEVO_FSDP = replace(
    INTERNEVO,
    bucket_elements=0.0,
    flat_step=1.0,
    source="InternEvo's `FSDPadaptOptimizer.step`: fp32 copies of gradients (4 B), which take the place of those of "
    "the norm, and torch's Adam over the list of them (4 + 4 B); gradients are in one piece per layer, none is flat",
)
FSDP = MemoryProfile(
    name="fsdp",
    step_bytes=4.0,
    source="PyTorch FSDP2: one layer in use and one prefetched; Adam over lists of tensors makes one fp32 copy",
)
FSDP_POLICY = replace(FSDP, cross_entropy="scaled", scored_bytes=2.0)
"""An update of a policy whose log-probabilities come from flash-attn's loss."""
FSDP_BLOCKS = replace(FSDP, cross_entropy="blocks")
"""An update of a policy whose output projection gives log-probabilities, and never all logits."""
FSDP_OR_COPIES = replace(FSDP, ddp_buckets=True, autocasts=True)
"""FSDP, or torch's DDP under autocast where nothing is sharded."""
HUGGINGFACE = MemoryProfile(
    name="huggingface",
    step_bytes=4.0,
    ddp_buckets=True,
    autocasts=True,
    source="transformers Trainer: DDP with buckets of its own, AdamW over lists of tensors",
)
UNSLOTH = MemoryProfile(
    name="unsloth",
    implementation="triton",
    cross_entropy="chunked",
    source="Unsloth: Triton kernels keep little, chunked cross-entropy, 8-bit Adam by default",
)
TORCHTUNE = MemoryProfile(
    name="torchtune",
    cross_entropy="chunked",
    loss_parts=8.0,
    ends_apart=True,
    source="torchtune: own decoder, three projections and norms in fp32, loss over 8 chunks of the sequence, fused "
    "AdamW; its full configurations shard embedding and output projection apart (`custom_sharded_layers`)",
)
LITGPT = MemoryProfile(
    name="litgpt",
    implementation="litgpt",
    cross_entropy="native",
    gathers_stay_frozen=True,
    dequantised_copies=2.0,
    quantised_keeps_inputs=True,
    workspace=0.25,
    source="litgpt 2023: joint projection, FSDP1 without resharding of frozen layers, bitsandbytes 0.41",
)
TORCHTITAN = MemoryProfile(
    name="torchtitan",
    implementation="lean",
    cross_entropy="released",
    freed_logits=2.0,
    step_bytes=0.0,
    source="torchtitan: compiled layers keep little, fused AdamW, FSDP2; `del pred` before the backward pass",
)
MAXTEXT = MemoryProfile(
    name="maxtext",
    implementation="lean",
    cross_entropy="compiled",
    keeps_products=True,
    compiled=True,
    workspace=0.0,
    source="MaxText: `remat_policy` names the products that stay (`full`: none, `minimal`: all but attention's, "
    "`minimal_with_context`: all) of layers in one scan (its get_remat_policy); `DenseGeneral` casts "
    "fp32 weights to the inputs' type before the product, so that its gradient has it too",
)
NANOTRON = MemoryProfile(
    name="nanotron",
    implementation="lean",
    cross_entropy="sharded",
    persistent_gradients=True,
    low_gradients=1.0,
    gather_copies=1.0,
    low_buckets=1.0,
    streamed_outputs=1.0,
    source="nanotron of 2024-25: fp32 gradient buffer of all parameters, to which 16-bit ones are added after each "
    "backward pass (its gradient accumulator), reduced in place; ZeRO-1 gathers weights as lists "
    "(`all_gather_coalesced`), whose flat output NCCL makes; without ZeRO torch's DDP has buckets of 16-bit gradients; "
    "fused AdamW",
)
COMPOSER = MemoryProfile(
    name="composer",
    implementation="lean",
    cross_entropy="inplace",
    step_bytes=4.0,
    source="llm-foundry: MPT with low-precision LayerNorm, flash attention and flash-attn's loss, FSDP1",
)
NATIVE = MemoryProfile(
    name="native",
    cross_entropy="tiled",
    keeps_products=True,
    second_stage_shards_weights=True,
    ends_apart=True,
    autocasts=True,
    moments_visit=True,
    gradient_views=True,
    exchanges_heads=True,
    autocast_adapters=True,
    source="Charter's own engine: transformers classes under FSDP2, a loss of its own in tiles",
)
PROFILES = {
    profile.name: profile
    for profile in (
        MEGATRON_STACK,
        MEGATRON_DEEPSPEED,
        DEEPSPEED,
        INTERNEVO,
        FSDP,
        HUGGINGFACE,
        UNSLOTH,
        TORCHTUNE,
        LITGPT,
        TORCHTITAN,
        MAXTEXT,
        NANOTRON,
        COMPOSER,
        NATIVE,
    )
}
OF_ENGINES = PROFILES | {"fsdp-policy": FSDP_POLICY, "fsdp-blocks": FSDP_BLOCKS, "fsdp-or-copies": FSDP_OR_COPIES}
"""By what engines call them (`Capabilities.memory`); the name of one says whose constants it takes."""


# -------- One training job without its layout: model, batch shape, precision, adapters, and whose code runs.

Head = Literal["lm", "scalar"]
LINEAR: Matrices = frozenset(("qkv", "out", "up", "down"))
"""Adapters on every linear layer of the blocks."""
FROZEN_WEIGHT_BYTES = {16: 2.0, 8: 1.02, 4: 4.127 / 8}
"""Bytes per frozen weight of a layer by bits: 16-bit, LLM.int8 with its row scales, nf4 with double quantisation."""


@dataclass(frozen=True, kw_only=True)
class AdapterUse:
    """Adapters as a stack trains them."""

    rank: int
    base_bytes: float = 2.0
    """Bytes per frozen weight of the layers."""
    targets: Matrices = LINEAR
    dropout: bool = False
    """Dropout in front of the adapters: each keeps its own copy of the input and a mask."""
    trains_ends: bool = False
    """Embedding and output projection are trained too (`modules_to_save`)."""
    quantises_head: bool = False
    trained: float | None = None
    """Trained parameters where a source prints them."""
    scaled_outputs: bool = False
    """Every linear layer scales its output by a trained vector, and so keeps it (LLaMA-Adapter v2, IA3)."""
    prefixed: bool = False
    """Attention reads a trained prefix apart, and a gate keeps what that gives (LLaMA-Adapter)."""

    @property
    def groups(self) -> Matrices:
        """Groups of matrices that carry an adapter; queries or values alone count as their group."""
        attention = {"qkv"} if self.targets & {"q", "k", "v", "qkv"} else set()
        return frozenset(attention | (self.targets & (LINEAR | {"norms"})))

    @classmethod
    def of(cls, adapter: Adapter) -> AdapterUse:
        """The planner's adapters: all linear layers, no dropout."""
        return cls(rank=adapter.rank, base_bytes=FROZEN_WEIGHT_BYTES[adapter.base_bits])


@dataclass(frozen=True, kw_only=True)
class MemoryJob:
    """One training job without its layout."""

    architecture: Architecture
    seq_len: float
    precision: TrainingPrecision = FSDP_MIXED
    profile: MemoryProfile = NATIVE
    adapter: AdapterUse | None = None
    head: Head = "lm"
    fused_attention: bool = True
    fp8: bool = False
    """Matrices multiply in 8 bits and keep their inputs so."""
    fp8_copies: float = 0.0
    """Bytes per parameter of 8-bit copies of the weights: 2 (as they are and transposed) beside 16-bit weights, 0 where
    the weights themselves are kept in 8 bits, twice."""
    cross_entropy: CrossEntropy | None = None
    logit_share: float = 1.0
    """Share of the positions whose logits are computed."""
    dropout: bool = False
    recompute_share: float = 1.0
    """Share of the layers that full recomputation covers (Megatron's block method, `ac_every_n_layers`)."""
    end_layers: tuple[int, int] | None = None
    """Layers of the first and of the last pipeline stage where they differ from an even split."""
    accelerator: Accelerator | None = None
    reserved: bool = True
    """Whether the figure wanted counts what the allocator reserves, not only what is allocated."""
    idle: bool = True
    """Whether that includes what it would free before it ran out of memory."""
    context: bool = True
    """Whether it counts the device context and communicators too (`nvidia-smi`)."""
    loads_all_kernels: bool = False
    """Software from before CUDA 11.7 (2022), which loads every kernel of its libraries at once."""


def loss_numbers(job: MemoryJob) -> dict[str, float]:
    """The cross-entropy over the vocabulary."""
    kind, a, has_logits = job.cross_entropy or job.profile.cross_entropy, job.architecture, job.head == "lm"
    freed = job.profile.freed_logits * (job.reserved and job.idle) * (kind in ("released", "eager"))
    head = float(a.hidden_size * a.vocab_size * (has_logits and job.adapter is None))
    makes_gradients, value = kind in ("liger", "blocks"), job.precision.compute_bytes
    return {
        "vocabulary": a.vocab_size,
        "loss_bytes": (value + LOSS_BYTES[kind] + freed) * has_logits,
        "loss_split": SPLIT_LOSS_BYTES * (kind == "released" and has_logits),
        "loss_share": job.logit_share,
        "loss_rows": _loss_rows(job, kind),
        "loss_parts": _loss_parts(job, kind),
        "loss_head": head * (kind in OWN_LOSSES),
        "loss_kept": (CPU_KEPT_LOGITS if _on_cpu(job) else KEPT_LOGITS) * (kind == "each" and has_logits),
        "loss_gradient": value * head * makes_gradients,
        "loss_input": value * a.hidden_size * (makes_gradients and has_logits),
    }


def _loss_rows(job: MemoryJob, kind: str) -> float:
    """Return the positions whose logits exist at once."""
    if kind in OWN_LOSSES:
        return max((CPU_LOSS_TILE if _on_cpu(job) else LOSS_TILE) // job.architecture.vocab_size, LEAST_TILE_ROWS)
    if kind == "blocks":
        return LOSS_BLOCK / job.architecture.vocab_size
    return LOSS_CHUNK if kind == "chunked" else math.inf


def _loss_parts(job: MemoryJob, kind: str) -> float:
    """Parts of a micro-batch whose logits exist one after the other: Liger's are about as large as its input."""
    if kind == "liger":
        return float(math.ceil(job.architecture.vocab_size / job.architecture.hidden_size))
    return job.profile.loss_parts if kind == "chunked" else 1.0


def _on_cpu(job: MemoryJob) -> bool:
    return job.accelerator is not None and job.accelerator.kind == "cpu"
