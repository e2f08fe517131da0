"""Seconds of a training step, or tokens per second: a row, its gaps filled by rules, the job, the prediction."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from charter.catalog.accelerators import Accelerator
from charter.physics.columns import Array, Layouts, array
from charter.physics.constants import TrainingConstants
from charter.physics.devices import DeviceColumns
from charter.physics.matrix_products import ProductColumns
from charter.physics.micro_batch import StepInputs, StepWork, step_work
from charter.physics.stacks import StackColumns, StackProfile, StepJob
from charter.physics.step_seconds import step_seconds
from charter.spec.architecture import Architecture
from charter.spec.layout import Layout, Recompute, ZeroStage
from charter.validation.rows.accelerator import accelerator_of, cluster_network, node_size, scaleup_domain
from charter.validation.rows.architecture import architecture_of
from charter.validation.rows.measurement import BYTES_PER_VALUE, Measurement
from charter.validation.rows.metrics import compares_pairs, in_milliseconds, needs_reference, training_metric
from charter.validation.stacks import EVERYWHERE, printed_zero, profile_of, shard_group

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
COMPILED_PARTIAL = 0.8
"""Forward pass that MaxText's policies between `full` and `minimal` repeat: they keep or offload the inputs of layers,
the projections of attention and their output, a fifth of a Llama layer's products; MLP and scores run again."""
_CHECKPOINTS = re.compile(r"unsloth|torchtune|llama-?factory|axolotl|ms-?swift|xtuner")
"""Fine-tuning stacks whose shipped configurations recompute every layer (from memory)."""
TOKENS_PER_STEP = 4e6
"""Of pretraining that does not say: common for models of 1-100 billion parameters (LLaMA, MPT, OLMo papers)."""


@dataclass(frozen=True, kw_only=True)
class MeasuredJob:
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


def parallel_layout(job: MeasuredJob) -> Layout:
    """Degrees of parallelism: those printed; the rest so that they multiply to the number of accelerators."""
    row = job.row
    tensor, pipeline, context = row.tp or 1, row.pp or 1, row.cp or 1
    total = _devices(row) or (row.dp or 1) * tensor * pipeline * context
    if row.tp is None and row.pp is None and row.dp is None and job.megatron:
        tensor, pipeline = _split_for(job, total)
    elif row.tp is None and row.dp and row.gpus and row.gpus % (row.dp * pipeline * context) == 0:
        left = row.gpus // (row.dp * pipeline * context)
        # Replicas beside a sharded group (HSDP prints dp 1 for 1024 ranks) say nothing of tensor parallelism.
        is_fsdp = "fsdp" in f"{row.shard} {row.framework}".casefold()
        tensor = left if left <= max(8, job.accelerator.devices_per_node) and not is_fsdp else 1
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


def _zero_bubble(row: Measurement) -> bool:
    return bool(re.search(r"zero[- ]?bubble|\bzb[-_]?(1p|2p|v|h[12])\b|dualpipe", f"{row.framework} {row.notes}", re.I))


def _devices(row: Measurement) -> int | None:
    """Accelerators as printed, or as the name of the accelerator counts them (`8x H100`)."""
    match = re.match(r"(\d{1,5})\s*[x*]\s*[a-z]", row.gpu.casefold())
    return row.gpus or (int(match[1]) if match else None)


def _experts(job: MeasuredJob) -> int:
    return job.architecture.mixture.num_experts if job.architecture.mixture else 1


def _split_for(job: MeasuredJob, total: int) -> tuple[int, int]:
    """Tensor and pipeline degrees of a Megatron job that does not say: what their parameters need.

    Experts are spread over the data-parallel ranks first (expert parallelism), so they ask for no tensor parallelism.
    """
    each = SHARDED_STATE_BYTES if job.profile.name in RECENT else 18.0
    m, room = ProductColumns.of(job.architecture), 0.6 * job.accelerator.memory_bytes
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


def zero_stage(job: MeasuredJob, data: int) -> ZeroStage:
    """The stage printed; else the stack's habit: distributed optimizer, FSDP, or DeepSpeed's usual files."""
    deepspeed = "deepspeed" in job.row.framework.casefold()
    if "grad_op" in job.row.shard:
        return ZeroStage.PARAMETERS
    printed = printed_zero(job.row.shard)
    if printed is not None:
        return printed
    if job.megatron:
        return ZeroStage.OPTIMIZER if job.profile.name in RECENT else ZeroStage.NONE
    if data == 1 and not deepspeed:
        return ZeroStage.NONE
    if job.trained:
        return ZeroStage.PARAMETERS
    return ZeroStage.GRADIENTS if deepspeed else ZeroStage.NONE


def _sequence_parallel(job: MeasuredJob, tensor: int) -> bool:
    if tensor == 1 or job.row.seqpar is not None:
        return tensor > 1 and bool(job.row.seqpar)
    return job.profile.name in (*RECENT, "torchtitan", "maxtext")


def with_batches(job: MeasuredJob, layout: Layout) -> Layout:
    """Micro-batch and accumulation: what is printed; else from the batch; else what a step usually holds."""
    row, data = job.row, layout.data
    batch = row.gbs
    if not batch and row.mbs:
        batch = row.mbs * data * (4 * layout.pipeline if layout.pipeline > 1 else 1)
    if not batch:
        batch = max(data, round(TOKENS_PER_STEP / job.seq)) if row.kind == "pretrain" else 16.0 * data
    each = max(1.0, batch / data)
    habit = micro_batch_of_habit(job.profile.name, layout.pipeline, each)
    micro = min(row.mbs or habit or _guessed_micro_batch(job, layout, each), each)
    return replace(layout, micro_batch=max(1, round(micro)), accumulation=max(1, math.ceil(each / micro - 1e-6)))


def micro_batch_of_habit(stack: str, pipeline: int, each: float) -> float | None:
    """Part of a replica's batch for each pipeline stage (torchtitan's `pipeline_parallel_microbatches`), or None."""
    return max(1.0, each / pipeline) if stack == "torchtitan" and pipeline > 1 else None


def _guessed_micro_batch(job: MeasuredJob, layout: Layout, each: float) -> float:
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


def with_recompute(job: MeasuredJob, layout: Layout, *, eight_bit: bool) -> tuple[Layout, float, float]:
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
    partial = "block" in plain or "partial" in plain
    return Recompute.FULL, 0.0, (COMPILED_PARTIAL if profile == "maxtext" else PARTIAL) if partial else 1.0


def _state_bytes(job: MeasuredJob, layout: Layout) -> float:
    """Weights, gradients and Adam of one rank, about (physics/memory.py is exact)."""
    m = ProductColumns.of(job.architecture)
    dense = (float(m.parameters) - float(m.expert_parameters)) / (layout.tensor * layout.pipeline)
    experts = float(m.expert_parameters) / (layout.expert * layout.pipeline)
    ranks = layout.data * layout.context
    if not job.trained:
        return 2.0 * (dense + experts) / (ranks if layout.zero >= ZeroStage.PARAMETERS else 1)
    owner = max(1.0, ranks / layout.expert)
    replicated, divided = {0: (18.0, 0.0), 1: (6.0, 12.0), 2: (2.0, 16.0), 3: (0.0, 18.0)}[int(layout.zero)]
    return (replicated + divided / ranks) * dense + (replicated + divided / owner) * experts


def _activation_bytes(job: MeasuredJob, layout: Layout) -> float:
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


USUAL_SEQUENCE = {"pretrain": 4096.0, "tuning": 2048.0}
"""Tokens per sequence where a source prints none: judgement. Rates hardly depend on it; a step's time is in proportion
to it, so that such a row is a rough guess."""
_PACKED = re.compile(r"(?<!no )(?<!without )(?<!un)(?<!non-)pack(ed|ing)?\b")
_COMPRESSED = re.compile(r"zero ?\+\+|\bq[wg]z\b", re.IGNORECASE)
"""ZeRO++ (arXiv:2306.10209): weights gathered in 8 bits, gradients reduced in 4; without its copies inside a node."""
REFERENCE = 1.3
"""Time of a step that also scores its pairs with a frozen reference (DPO), over one that does not: one forward pass
more beside three or four; judgement."""
KERNELS = {
    "unfused": "unfused", "flash1": "flash1", "triton": "flash1", "flash2": "flash2",
    "flash3": "flash3", "flash4": "flash3", "cudnn": "recent", "trtllm": "recent", "splash": "compiled",
}  # fmt: skip
"""Generation of an attention kernel by its typed name. PyTorch's `sdpa` and `flex` choose one by release and device,
so that there the stack's habit stays."""
USUAL_SAMPLE = 512.0
"""Tokens of a sample of tuning data that is packed and does not say: instructions and short answers have 200 to 1,000;
judgement. Attention is then a small part of the step, so the figure matters little."""
_BEFORE_EARLY_STOP = re.compile(r"20(1\d|2[0-3])\b")
"""Versions by year: torch 2.1, whose checkpoints stop early (`StackProfile.stops_early`), came in October 2023."""
SPREAD = 0.6
"""Of the longest of b sequences over their mean, per unit of ln b: an exponential tail would give 1; judgement."""


@dataclass(frozen=True, kw_only=True)
class TrainingCase:
    """One measured training step, ready for the planner."""

    architecture: Architecture
    accelerator: Accelerator
    profile: StackProfile
    layout: Layout
    seq: float
    """Tokens computed per sequence."""
    metric: str
    tokens: float
    """Tokens (samples, steps) of a step as the source counts them."""
    scale: float = 1.0
    """From seconds to the row's unit."""
    bits: float = 16.0
    value_bytes: float = 2.0
    block_scaled: bool = False
    autocast: bool = False
    frozen: bool = False
    trains_ends: bool = False
    adapter_rank: float = 0.0
    base_bits: float = 16.0
    shard_group: float = EVERYWHERE
    keeps_gathered: bool = False
    module_recompute: float = 0.0
    recompute_share: float = 1.0
    head_share: float = 1.0
    document: float = EVERYWHERE
    """Tokens of a packed sample beyond which attention does not look."""
    compression: float = 1.0
    mtp: bool = False
    network_bytes_per_second: float | None = None
    """Of a node."""
    node: int | None = None
    domain: int | None = None


def training_case(row: Measurement) -> TrainingCase:
    """Every gap of a row filled; raises Refusal where model or accelerator are unknown."""
    architecture, accelerator, seq = architecture_of(row), accelerator_of(row), _sequence(row)
    job = MeasuredJob(row=row, architecture=architecture, accelerator=accelerator, profile=profile_of(row), seq=seq)
    adapter = _adapter(row)
    bits, block_scaled = _bits(row.dtype) if adapter not in ("qlora", "8bit") else (16.0, False)
    layout = with_batches(job, parallel_layout(job))
    layout, modules, share = with_recompute(job, layout, eight_bit=bits < 16)
    sequences = layout.micro_batch * layout.accumulation * layout.data
    pairs = 2 if row.kind == "rm" or compares_pairs(row) else 1
    reference = REFERENCE if needs_reference(row) else 1.0
    computed, counted = _lengths(job, layout.micro_batch)
    return TrainingCase(
        architecture=architecture,
        accelerator=accelerator,
        profile=_profile(job, layout),
        layout=replace(layout, micro_batch=layout.micro_batch * pairs),
        seq=computed,
        metric=_metric(row),
        tokens=_counted(row, sequences, pairs * counted) / reference,
        scale=(1e3 if in_milliseconds(row) else 1.0) * reference,
        bits=bits,
        value_bytes=4.0 if bits > 16 else 2.0,
        block_scaled=block_scaled,
        autocast="amp" in row.dtype.casefold(),
        frozen=adapter != "full",
        trains_ends=adapter != "full" and "ends" in row.extras,
        adapter_rank=float(row.lora_rank or 16) if adapter != "full" else 0.0,
        base_bits={"qlora": 4.0, "8bit": 8.0}.get(adapter, 16.0),
        shard_group=shard_group(row, accelerator),
        keeps_gathered="grad_op" in row.shard,
        module_recompute=modules,
        recompute_share=share,
        head_share=0.0 if row.kind == "rm" else 1.0,
        document=_document(row),
        compression=0.5 if _COMPRESSED.search(f"{row.shard} {row.framework} {row.notes}") else 1.0,
        mtp=bool(architecture.num_mtp_layers) and row.kind == "pretrain" and "w/o mtp" not in row.notes.casefold(),
        network_bytes_per_second=cluster_network(row, accelerator),
        node=node_size(row, accelerator),
        domain=scaleup_domain(row.interconnect, row.gpu),
    )


def _metric(row: Measurement) -> str:
    counted = training_metric(row) or ""
    if counted == "step":
        return "step_time_s"
    return "tokens_per_s_per_gpu" if counted.endswith("per gpu") else "tokens_per_s_total"


def _counted(row: Measurement, sequences: float, tokens: float) -> float:
    """Return the units that a rate of the row counts in one step: its tokens, its samples, or the step itself."""
    unit = training_metric(row) or ""
    if unit.startswith("samples"):
        return sequences
    return 1.0 if unit.startswith("steps") else sequences * tokens


def _sequence(row: Measurement) -> float:
    """As printed; blank: prompt and answer, else what a run of its kind usually has."""
    seq = row.seq or row.mean_len or (row.isl or 0) + (row.osl or 0)
    return float(seq or USUAL_SEQUENCE["pretrain" if row.kind == "pretrain" else "tuning"])


def _lengths(job: MeasuredJob, micro_batch: int) -> tuple[float, float]:
    """Tokens computed and tokens counted per sequence.

    Packed or padded to the limit: the limit. Where batches are padded to their longest answer, the longest of b
    lengths is about `1 + 0.6 ln b` means, and the source counts real tokens.
    """
    mean, seq = job.row.mean_len, job.seq
    packed = bool(_PACKED.search(job.row.notes.casefold())) or job.row.attention_kernel == "flex"
    packed = packed or job.megatron or job.row.kind == "pretrain"
    if not mean or mean >= seq or packed:
        return seq, seq
    return min(seq, mean * (1 + SPREAD * math.log(max(micro_batch, 1)))), mean


def _document(row: Measurement) -> float:
    """Tokens of a packed sample where the kernel gets the samples' bounds, as flex attention does (a block mask)."""
    masks = row.attention_kernel == "flex" and row.kind != "pretrain"
    return (row.mean_len or USUAL_SAMPLE) if masks else EVERYWHERE


def _profile(job: MeasuredJob, layout: Layout) -> StackProfile:
    """The stack's profile with what the row says of kernels and of gradients on the wire.

    Megatron reduces the buffer of summed gradients (`grad_reduce_in_fp32`), as does DeepSpeed's BF16 optimizer;
    FSDP and ZeRO have a type of their own for it, which no column says.

    nanotron with ZeRO-1 reduces its fp32 gradients when the last backward pass is over (`sync_gradients_across_dp`; no
    DDP is made around the model).
    """
    profile, dtype = job.profile, job.row.dtype.casefold()
    if (job.megatron or profile.name == "megatron-deepspeed") and job.row.gradient_dtype in ("bf16", "fp16", "fp32"):
        profile = replace(profile, gradient_bytes=BYTES_PER_VALUE[job.row.gradient_dtype])
    if profile.name == "nanotron" and layout.zero == ZeroStage.OPTIMIZER:
        profile = replace(profile, data_hidden=0.0)
    if _BEFORE_EARLY_STOP.match(job.row.stack_version):
        profile = replace(profile, stops_early=0.0)
    if kernel := KERNELS.get(job.row.attention_kernel):
        profile = replace(profile, attention=kernel)
    elif job.row.flash == 0:
        profile = replace(profile, attention="unfused")
    elif job.row.flash == 1 and profile.attention == "unfused":
        profile = replace(profile, attention="flash2")
    if "pure" in dtype:
        return replace(profile, gradient_bytes=2.0)
    if "amp" in dtype and profile.name in ("composer", "fsdp", "litgpt"):
        return replace(profile, gradient_bytes=4.0)
    return profile


def _bits(dtype: str) -> tuple[float, bool]:
    """Bits of the operands of products, and whether blocks of them share a scale."""
    text = dtype.casefold()
    if "fp4" in text and "nf4" not in text and "bnb" not in text:
        return 4.0, True
    if any(word in text for word in ("fp8", "float8", "e4m3", "f8")) or text == "int8":
        return 8.0, any(word in text for word in ("mx", "alt", "block"))
    if "tf32" in text:
        return 19.0, False
    if "fp32" in text or "float32" in text:
        return 32.0, False
    return 16.0, False


def _adapter(row: Measurement) -> str:
    text, dtype = row.adapter.casefold(), row.dtype.casefold()
    lora = any(word in text for word in ("lora", "adapter", "dora")) or (not text and row.kind == "lora")
    if "qlora" in text or (lora and any(word in dtype for word in ("int4", "nf4", "4bit", "4-bit", "fp4"))):
        return "qlora"
    if lora and any(word in dtype for word in ("int8", "8bit", "8-bit")):
        return "8bit"
    return "lora" if lora else "full"


KINDS = ("pretrain", "sft", "lora", "rm")
_JOB_COLUMNS = (
    "seq",
    "bits",
    "value_bytes",
    "block_scaled",
    "autocast",
    "frozen",
    "trains_ends",
    "adapter_rank",
    "base_bits",
    "shard_group",
    "keeps_gathered",
    "module_recompute",
    "recompute_share",
    "head_share",
    "document",
    "compression",
)


@dataclass(frozen=True, kw_only=True)
class PreparedSteps:
    """Cases as columns, with the work that no constant changes."""

    model: ProductColumns
    device: DeviceColumns
    job: StepJob
    stack: StackColumns
    work: StepWork
    tokens: Array
    """Tokens that a rate divides by the step: of the whole job, or of one accelerator."""
    is_rate: Array
    scale: Array
    """From seconds to the unit of a time."""

    def inputs(self, constants: TrainingConstants) -> StepInputs:
        """With constants: what the physics needs."""
        return StepInputs(
            model=self.model,
            device=self.device,
            job=self.job,
            stack=self.stack,
            work=self.work,
            constants=constants,
        )


class TrainingTime:
    """Seconds of a training step, or tokens per second."""

    name = "training step time"
    constants: type = TrainingConstants

    def accepts(self, row: Measurement) -> bool:
        """Steps and token rates of the kinds that train."""
        return row.kind in KINDS and training_metric(row) is not None

    def case(self, row: Measurement) -> TrainingCase:
        """The configuration with its gaps filled."""
        return training_case(row)

    def stack(self, case: TrainingCase) -> str:
        """The family of profiles whose constants apply."""
        return case.profile.family

    def prepare(self, cases: Sequence[TrainingCase]) -> PreparedSteps:
        """Cases as columns."""
        model = ProductColumns.stack([ProductColumns.of(case.architecture, mtp=case.mtp) for case in cases])
        device = DeviceColumns.stack([_device(case) for case in cases])
        columns = {name: array([float(getattr(case, name)) for case in cases]) for name in _JOB_COLUMNS}
        job = StepJob(layouts=Layouts.of([case.layout for case in cases]), **columns)
        stack = StackColumns.stack([case.profile for case in cases])
        shares = [case.layout.num_accelerators if case.metric == "tokens_per_s_per_gpu" else 1 for case in cases]
        return PreparedSteps(
            model=model,
            device=device,
            job=job,
            stack=stack,
            work=step_work(model, device, job, stack),
            tokens=array([case.tokens for case in cases]) / array(shares),
            is_rate=array([case.metric != "step_time_s" for case in cases]),
            scale=array([case.scale for case in cases]),
        )

    def predict(self, prepared: PreparedSteps, constants: TrainingConstants) -> Array:
        """Seconds, or tokens per second."""
        seconds = step_seconds(prepared.inputs(constants))
        return array(np.where(prepared.is_rate > 0, prepared.tokens / seconds, prepared.scale * seconds))


def _device(case: TrainingCase) -> DeviceColumns:
    columns = DeviceColumns.of(case.accelerator)
    return columns.with_network(case.network_bytes_per_second, case.node, case.domain)


TRAINING_TIME = TrainingTime()
