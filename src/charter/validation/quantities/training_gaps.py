"""Gaps of a measured training step: parallel degrees, ZeRO stage, batches, recomputation.

The rules are the habits of the stacks (their default recipes, from memory), and a rough memory estimate that says what
fits."""

import math
import re
from dataclasses import dataclass, replace

from charter.catalog.accelerators import Accelerator
from charter.physics.matrix_products import ModelColumns
from charter.physics.stacks import StackProfile
from charter.spec.architecture import Architecture
from charter.spec.layout import Layout, Recompute, ZeroStage
from charter.validation.rows.measurement import Measurement

RECENT = ("megatron-lm", "megatron-core", "nemo", "megatron-bridge", "megatron-bridge-2026")
ROOM, KEPT_ROOM = 0.80, 0.90
"""Share of the memory that a guess at a blank micro-batch fills, and above which a blank policy recomputes."""
MOST_MICRO_BATCH, MOST_MICRO_TOKENS = 16.0, 32_768
"""No guess goes beyond: what published recipes use."""
MICRO_BATCHES_PER_STAGE = 6
"""That a guess at a pipeline's micro-batch keeps (tables of Narayanan et al. 2021)."""
MOST_CHUNKS = 8
ZERO_BUBBLE = 3
"""Chunks that idle as long as a zero-bubble schedule (`physics/step_seconds.py`)."""
SHARDED_STATE_BYTES = 9.0
"""Per parameter with a distributed optimizer over a few replicas: 6, and a part of 12."""
EIGHT_BIT_KEPT = 0.75
"""Kept activations where matrix products read 8 bits (Transformer Engine keeps the quantised inputs)."""
TITAN_SELECTIVE = 0.35
"""Forward pass that torchtitan's selective policy repeats: every second product and what is no product."""
NAMED_MODULES = 0.12
"""Forward pass that Megatron's `recompute_modules` repeat (activation function, up-projections); judgement."""
PARTIAL = 0.5
"""Layers that a `partial` policy repeats: the middle of what it may be, none to all."""
_CHECKPOINTS = re.compile(r"unsloth|torchtune|llama-?factory|axolotl|ms-?swift|xtuner")
"""Fine-tuning stacks whose shipped configurations recompute every layer (from memory)."""
TOKENS_PER_STEP = 4e6
"""Of pretraining that does not say: common for models of 1-100 billion parameters (LLaMA, MPT, OLMo papers)."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A row with what was read from it so far."""

    row: Measurement
    architecture: Architecture
    accelerator: Accelerator
    profile: StackProfile
    seq: float

    @property
    def megatron(self) -> bool:
        """Any release of Megatron, NeMo or Megatron-Bridge."""
        return self.profile.name.startswith("megatron") or self.profile.name == "nemo"

    @property
    def trained(self) -> bool:
        """Return True if all parameters are trained."""
        return self.row.adapter in ("", "full") and self.row.kind != "lora"


def parallel_layout(job: Job) -> Layout:
    """Degrees of parallelism: those printed; the rest so that they multiply to the number of accelerators."""
    row = job.row
    tensor, pipeline, context = row.tp or 1, row.pp or 1, row.cp or 1
    total = _devices(row) or (row.dp or 1) * tensor * pipeline * context
    if row.tp is None and row.pp is None and row.dp is None and job.megatron:
        tensor, pipeline = _split_for(job, total)
    elif row.tp is None and row.dp and row.gpus and row.gpus % (row.dp * pipeline * context) == 0:
        left = row.gpus // (row.dp * pipeline * context)
        # Replicas beside a sharded group (HSDP prints dp 1 for 1024 ranks) say nothing of tensor parallelism.
        tensor = left if left <= max(8, job.accelerator.devices_per_node) and not _is_fsdp(row) else 1
    data = max(1, total // (tensor * pipeline * context))
    expert = row.ep or (math.gcd(_experts(job), min(data, 64)) if job.profile.name in RECENT else 1)
    chunks = row.vpp or (ZERO_BUBBLE if _zero_bubble(row) and pipeline > 1 else 0)
    chunks = chunks or (_chunks(job.architecture.num_layers, pipeline) if job.profile.name in RECENT else 1)
    return Layout(
        data=data,
        tensor=tensor,
        pipeline=pipeline,
        context=context,
        expert=max(1, min(expert, _experts(job))),
        interleave=max(1, chunks),
        zero=zero_stage(job, data * context),
        sequence_parallel=_sequence_parallel(job, tensor),
        offload_optimizer="optim" in row.offload or "param" in row.offload,
        offload_parameters="param" in row.offload,
    )


def _is_fsdp(row: Measurement) -> bool:
    return "fsdp" in f"{row.shard} {row.framework}".casefold()


def _zero_bubble(row: Measurement) -> bool:
    return bool(re.search(r"zero[- ]?bubble|\bzb[-_]?(1p|2p|v|h[12])\b|dualpipe", f"{row.framework} {row.notes}", re.I))


def _devices(row: Measurement) -> int | None:
    """Accelerators as printed, or as the name of the accelerator counts them (`8x H100`)."""
    match = re.match(r"(\d{1,5})\s*[x*]\s*[a-z]", row.gpu.casefold())
    return row.gpus or (int(match[1]) if match else None)


def _experts(job: Job) -> int:
    return job.architecture.mixture.num_experts if job.architecture.mixture else 1


def _split_for(job: Job, total: int) -> tuple[int, int]:
    """Tensor and pipeline degrees of a Megatron job that does not say: what their parameters need.

    Experts are spread over the data-parallel ranks first (expert parallelism), so they ask for no tensor parallelism.
    """
    each = SHARDED_STATE_BYTES if job.profile.name in RECENT else 18.0
    m, room = ModelColumns.of(job.architecture), 0.6 * job.accelerator.memory_bytes
    experts = each * float(m.expert_parameters) / room
    need = each * float(m.parameters) / room - experts
    tensor = pipeline = 1
    while tensor < min(8, need, total):
        tensor *= 2
    need += experts * tensor / (job.row.ep or math.gcd(_experts(job), min(total // tensor, 64)))
    layers = job.architecture.num_layers
    while tensor * pipeline < need and tensor * pipeline * 2 <= total and layers % (2 * pipeline) == 0:
        pipeline *= 2
    return tensor, pipeline


def _chunks(layers: int, pipeline: int) -> int:
    """Chunks per stage of recent Megatron recipes: as many as divide evenly, at most eight.

    Where layers do not divide, embedding and head count as layers (Llama-3.1-405B: 126 + 2 over 16 stages).
    """
    units = layers if layers % pipeline == 0 else layers + 2
    if pipeline == 1 or units % pipeline:
        return 1
    each = units // pipeline
    divisor = next(count for count in range(min(each, MOST_CHUNKS), 0, -1) if each % count == 0)
    return each if divisor == 1 else divisor


def zero_stage(job: Job, data: int) -> ZeroStage:
    """The stage printed; else the stack's habit: distributed optimizer, FSDP, or DeepSpeed's usual files."""
    text, deepspeed = job.row.shard.casefold(), "deepspeed" in job.row.framework.casefold()
    printed = re.search(r"(?:zero|stage)[-_ ]*(\d)", text)
    if printed:
        return ZeroStage(min(3, int(printed[1])))
    if any(word in text for word in ("fsdp", "shard", "hybrid", "full")):
        return ZeroStage.PARAMETERS
    if "dist" in text and "data" not in text:
        return ZeroStage.OPTIMIZER
    if text in ("none", "ddp", "no", "replicated") or "data parallel" in text:
        return ZeroStage.NONE
    if job.megatron:
        return ZeroStage.OPTIMIZER if job.profile.name in RECENT else ZeroStage.NONE
    if data == 1 and not deepspeed:
        return ZeroStage.NONE
    if job.trained:
        return ZeroStage.PARAMETERS
    return ZeroStage.GRADIENTS if deepspeed else ZeroStage.NONE


def _sequence_parallel(job: Job, tensor: int) -> bool:
    if tensor == 1 or job.row.seqpar is not None:
        return tensor > 1 and bool(job.row.seqpar)
    return job.profile.name in (*RECENT, "torchtitan", "maxtext")


def with_batches(job: Job, layout: Layout) -> Layout:
    """Micro-batch and accumulation: what is printed; else from the batch; else what a step usually holds."""
    row, data = job.row, layout.data
    batch = row.gbs
    if not batch and row.mbs:
        batch = row.mbs * data * (4 * layout.pipeline if layout.pipeline > 1 else 1)
    if not batch:
        batch = max(data, round(TOKENS_PER_STEP / job.seq)) if row.kind == "pretrain" else 16.0 * data
    each = max(1.0, batch / data)
    micro = min(row.mbs or _guessed_micro_batch(job, layout, each), each)
    return replace(layout, micro_batch=max(1, round(micro)), accumulation=max(1, math.ceil(each / micro - 1e-6)))


def _guessed_micro_batch(job: Job, layout: Layout, each: float) -> float:
    """The largest power of two that fits and divides, with six micro-batches per stage in a pipeline."""
    room = ROOM * job.accelerator.memory_bytes - _state_bytes(job, layout)
    one = _activation_bytes(job, layout)
    if recompute_of(job.row.recompute, job.profile.name)[0] is Recompute.FULL:
        layers = job.architecture.num_layers
        one = 2.0 * job.seq * job.architecture.hidden_size * layers + one / max(1.0, layers / layout.pipeline)
    micro = 1.0
    while micro < MOST_MICRO_BATCH and each % (2 * micro) == 0 and 2 * micro * one <= room:
        if layout.pipeline > 1 and each / (2 * micro) < MICRO_BATCHES_PER_STAGE * layout.pipeline:
            break
        if layout.pipeline == 1 and 2 * micro * job.seq > MOST_MICRO_TOKENS:
            break
        micro *= 2
    return micro


def with_recompute(job: Job, layout: Layout, *, eight_bit: bool) -> tuple[Layout, float, float]:
    """The layout with its recomputation; the share of the forward pass a selective policy repeats beside unfused
    attention; the share of layers that a full one repeats. A blank policy recomputes where nothing else fits.
    """
    if job.row.recompute.strip():
        mode, modules, share = recompute_of(job.row.recompute, job.profile.name)
        return replace(layout, recompute=mode), modules, share
    if job.row.kind in ("sft", "lora") and _CHECKPOINTS.search(job.row.framework.casefold()):
        return replace(layout, recompute=Recompute.FULL), 0.0, 1.0
    room = KEPT_ROOM * job.accelerator.memory_bytes - _state_bytes(job, layout)
    need = layout.micro_batch * _activation_bytes(job, layout) * (EIGHT_BIT_KEPT if eight_bit else 1.0)
    if need <= room:
        return layout, 0.0, 1.0
    if not job.megatron:
        return replace(layout, recompute=Recompute.FULL), 0.0, 1.0
    modules = 0.0 if job.row.flash == 0 else min(0.1, 0.2 * (1 - max(room, 0.0) / need))
    return replace(layout, recompute=Recompute.SELECTIVE), modules, 1.0


def recompute_of(text: str, profile: str) -> tuple[Recompute, float, float]:
    """Mode, share of modules and share of layers of a policy as printed.

    >>> recompute_of("full", "fsdp"), recompute_of("block 5/20", "nemo")
    ((<Recompute.FULL: 'full'>, 0.0, 1.0), (<Recompute.FULL: 'full'>, 0.0, 0.25))
    """
    plain = text.casefold().strip()
    if plain in ("", "none", "no", "false", "0", "off"):
        return Recompute.NONE, 0.0, 1.0
    share = re.search(r"(\d+)\s*(?:of|/)\s*(\d+)", plain)
    percent = re.search(r"(\d+)\s*%", plain)
    every = re.search(r"every\s*(\d+)|selective[-_ :]*(\d+)", plain)
    if share or percent or every:
        part = float(share[1]) / float(share[2]) if share else 1.0
        part = float(percent[1]) / 100 if percent else part
        part = 1 / float(every[1] or every[2]) if every and not share and not percent else part
        return Recompute.FULL, 0.0, min(1.0, part)
    if "save" in plain or "offload" in plain or "custom" in plain:
        return Recompute.FULL, 0.0, 0.6
    if any(word in plain for word in ("selective", "attn", "attention", "mlp", "moe", "norm", "minimal", "core", "op")):
        modules = NAMED_MODULES if re.search("mlp|moe|norm|act|minimal", plain) else 0.0
        return Recompute.SELECTIVE, TITAN_SELECTIVE if profile == "torchtitan" else modules, 1.0
    return Recompute.FULL, 0.0, PARTIAL if "block" in plain or "partial" in plain else 1.0


def _state_bytes(job: Job, layout: Layout) -> float:
    """Weights, gradients and Adam of one rank, about (physics/memory.py is exact)."""
    m = ModelColumns.of(job.architecture)
    dense = (float(m.parameters) - float(m.expert_parameters)) / (layout.tensor * layout.pipeline)
    experts = float(m.expert_parameters) / (layout.expert * layout.pipeline)
    ranks = layout.data * layout.context
    if not job.trained:
        return 2.0 * (dense + experts) / (ranks if layout.zero >= ZeroStage.PARAMETERS else 1)
    owner = max(1.0, ranks / layout.expert)
    replicated, divided = {0: (18.0, 0.0), 1: (6.0, 12.0), 2: (2.0, 16.0), 3: (0.0, 18.0)}[int(layout.zero)]
    return (replicated + divided / ranks) * dense + (replicated + divided / owner) * experts


def _activation_bytes(job: Job, layout: Layout) -> float:
    """Kept per sequence on the first stage without recomputation: inputs of norms, products and activations.

    Twelve bytes per hidden value, four per value of queries, keys and values, six per value of the MLP (re-derived
    from Korthikanti et al. 2022, section 4.1, for fused norms and no dropout), unfused scores, and the logits.
    """
    a, mixture = job.architecture, job.architecture.mixture
    active = mixture.experts_per_token if mixture else 0
    width = active * mixture.expert_intermediate_size + mixture.shared_width if mixture else a.intermediate_size
    own = (12.0 + 2.0 * active) * a.hidden_size
    divided = 4.0 * (a.num_heads + a.kv_heads) * a.head_size + 6.0 * width
    scores = 5.0 * a.num_heads * job.seq if job.row.flash == 0 else 0.0
    tokens, layers = job.seq / layout.context, a.num_layers / layout.pipeline
    in_flight = layout.pipeline + (layout.pipeline - 1) / layout.interleave
    replicated = own / (layout.tensor if layout.sequence_parallel else 1)
    layer_bytes = tokens * (replicated + (divided + scores) / layout.tensor)
    return layer_bytes * layers * in_flight + 6.0 * tokens * a.vocab_size / layout.tensor
