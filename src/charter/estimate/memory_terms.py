"""The terms of a memory estimate: one function per group, each naming its formula and its source."""

from dataclasses import dataclass, replace
from typing import Literal

from charter.catalog.accelerators import Accelerator
from charter.estimate.activations import SOURCE as ACTIVATION_SOURCE
from charter.estimate.activations import Implementation, in_flight_microbatches, layer_activations
from charter.estimate.parameters import adapter_parameters, count_parameters, num_moe_layers
from charter.estimate.precision import WEIGHT_BYTES, TrainingPrecision
from charter.estimate.states import ModelState, RankParameters, layers_of_stage, model_state
from charter.estimate.terms import Term
from charter.spec.architecture import Architecture
from charter.spec.layout import Adapter, Layout, Recompute, ZeroStage
from charter.units import GIB, MIB

Head = Literal["lm", "scalar"]
CrossEntropy = Literal["eager", "fused", "chunked"]
LOSS_BYTES: dict[str, float | None] = {"eager": 12.0, "fused": 4.0, "chunked": None}
"""Bytes per logit at the peak, besides the logit itself. eager: log-probabilities and the gradients of both in fp32,
4 + 4 + 4 (torch cross_entropy on upcast logits: what its autograd nodes hold at the start of the backward pass);
fused: one fp32 array; chunked: the logits never exist whole."""
CONTEXT_BYTES = 1.0 * GIB
"""Driver context, libraries, handles: 0.5-1.5 GiB (middle of the usual range)."""
COMMUNICATOR_BYTES = 256 * MIB
"""Buffers of one NCCL communicator: assumption, not measured."""
ALLOCATOR_SLACK = 0.06
"""Share of the transient bytes lost to fragmentation. Assumption: reserved exceeds allocated by up to 20 %
(docs/concepts/memory.md), a few per cent with expandable segments."""
CPU_PROCESS_BYTES = 0.6 * GIB
"""Resident size of a process that imported torch and transformers: assumption."""


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """What a training step holds in memory, besides the layout: the shape of the batch and how numbers are kept."""

    architecture: Architecture
    layout: Layout
    seq_len: int
    precision: TrainingPrecision
    adapter: Adapter | None
    head: Head
    fused_attention: bool
    cross_entropy: CrossEntropy
    logit_share: float
    dropout: float
    implementation: Implementation
    accelerator: Accelerator | None

    @property
    def tokens(self) -> float:
        """Tokens of a micro-batch on one rank."""
        return self.layout.micro_batch * self.seq_len / self.layout.context

    @property
    def group(self) -> int:
        """Ranks over which ZeRO shards."""
        return self.layout.data * self.layout.context


def _bytes(name: str, part: str, value: float, formula: str, source: str) -> Term:
    return Term(name=name, part=part, value=value, unit="bytes", formula=formula, source=source)


def state_terms(job: TrainingJob, rank: RankParameters) -> list[Term]:
    """Weights, gradients and optimizer state of a rank."""
    layout, precision, group = job.layout, job.precision, job.group
    expert_group = max(1, group // layout.expert)
    if job.adapter:
        return _adapter_state_terms(job, rank, job.adapter)
    dense = model_state(rank.dense, data_parallel=group, zero=layout.zero, precision=precision)
    routed = model_state(rank.experts, data_parallel=expert_group, zero=layout.zero, precision=precision)
    state = _offloaded(_sum(dense, routed), layout)
    over = f"N_rank {rank.total:,.0f}, ZeRO-{int(layout.zero)} over {group}"
    source = f"{precision.source}; ZeRO: Rajbhandari et al. 2020, figure 1"
    return [
        bytes_term("weights", "parameters", state.parameter_bytes, f"{precision.parameter_bytes:g} B x {over}", source),
        bytes_term("gradients", "gradients", state.gradient_bytes, f"{precision.gradient_bytes:g} B x {over}", source),
        bytes_term(
            "optimizer", "optimizer", state.optimizer_bytes, f"{precision.optimizer_bytes:g} B x {over}", source
        ),
    ]


def _sum(one: ModelState, other: ModelState) -> ModelState:
    return ModelState(
        parameter_bytes=one.parameter_bytes + other.parameter_bytes,
        gradient_bytes=one.gradient_bytes + other.gradient_bytes,
        optimizer_bytes=one.optimizer_bytes + other.optimizer_bytes,
    )


def _offloaded(state: ModelState, layout: Layout) -> ModelState:
    """Offloaded state lives in host memory (estimate.host counts it there)."""
    return ModelState(
        parameter_bytes=0.0 if layout.offload_parameters else state.parameter_bytes,
        gradient_bytes=state.gradient_bytes,
        optimizer_bytes=0.0 if layout.offload_optimizer else state.optimizer_bytes,
    )


def _adapter_state_terms(job: TrainingJob, rank: RankParameters, adapter: Adapter) -> list[Term]:
    """A frozen base (16-bit, or 4-bit in the layers) and a small trained part."""
    layout, precision = job.layout, job.precision
    share = rank.layers / job.architecture.num_layers
    trained = adapter_parameters(job.architecture, adapter) * share / layout.tensor
    quantised = _matrices_of_layers(job, rank)
    rest = rank.total - quantised
    base_bytes = 2.0 if adapter.base_bits == 16 else WEIGHT_BYTES["nf4"]
    base = (base_bytes * quantised + 2.0 * rest) / (job.group if layout.zero >= ZeroStage.PARAMETERS else 1)
    state = _offloaded(model_state(trained, data_parallel=job.group, zero=layout.zero, precision=precision), layout)
    source = "Hu et al. 2021" if adapter.base_bits == 16 else "Dettmers et al. 2023 (4.127 bits, embeddings in 16)"
    small = f"{trained:,.0f} adapter parameters, ZeRO-{int(layout.zero)}"
    shape = f"{base_bytes:.3g} B x {quantised:,.0f} + 2 B x {rest:,.0f}"
    weights, gradients, moments = (
        f"{size:g} B x {small}"
        for size in (precision.parameter_bytes, precision.gradient_bytes, precision.optimizer_bytes)
    )
    return [
        bytes_term("frozen base", "parameters", 0.0 if layout.offload_parameters else base, shape, source),
        bytes_term("adapter weights", "parameters", state.parameter_bytes, weights, precision.source),
        bytes_term("gradients", "gradients", state.gradient_bytes, gradients, precision.source),
        bytes_term("optimizer", "optimizer", state.optimizer_bytes, moments, precision.source),
    ]


def _matrices_of_layers(job: TrainingJob, rank: RankParameters) -> float:
    """Parameters of the linear layers of the blocks on a rank: what 4-bit storage quantises."""
    count = count_parameters(job.architecture)
    share = rank.layers / job.architecture.num_layers
    matrices = count.layers - count.norms - count.experts
    return share * (matrices + count.experts / job.layout.expert) / job.layout.tensor


def activation_terms(job: TrainingJob, stage: int) -> list[Term]:
    """What the forward pass keeps on a pipeline stage."""
    layers = layers_of_stage(job.architecture, job.layout, stage)
    kept, live, checkpoint = _activations_per_token(job)
    held = in_flight_microbatches(job.layout, stage=stage)
    shape = f"{job.tokens:,.0f} tokens x {layers} layers x {held:.4g} micro-batches in flight"
    if job.layout.recompute is not Recompute.FULL:
        formula = f"{kept:,.0f} B per token and layer x {shape}"
        value = kept * job.tokens * layers * held
        return [bytes_term("kept activations", "activations", value, formula, ACTIVATION_SOURCE)]
    inputs = checkpoint * job.tokens * layers * held
    formula = f"{checkpoint:,.0f} B per token and layer x {shape}"
    table = "Korthikanti et al. 2022, table 2 (2 s b h per layer)"
    one_layer = f"{live:,.0f} B per token x {job.tokens:,.0f} tokens"
    return [
        bytes_term("layer inputs", "activations", inputs, formula, table),
        bytes_term("one live layer", "activations", live * job.tokens, one_layer, ACTIVATION_SOURCE),
    ]


def _activations_per_token(job: TrainingJob) -> tuple[float, float, float]:
    """Bytes per token: kept by an average layer, by the largest layer, and by a recomputed layer."""
    moe_share = num_moe_layers(job.architecture) / job.architecture.num_layers
    kept = live = checkpoint = 0.0
    for moe_layer, share in ((False, 1 - moe_share), (True, moe_share)):
        if not share:
            continue
        layer = layer_activations(
            job.architecture,
            seq_len=job.seq_len,
            dropout=job.dropout > 0,
            bytes_per_value=job.precision.compute_bytes,
            moe_layer=moe_layer,
            implementation=job.implementation,
        )
        per_token = layer.bytes_per_token(job.layout, fused_attention=job.fused_attention)
        whole = layer.bytes_per_token(
            replace(job.layout, recompute=Recompute.NONE), fused_attention=job.fused_attention
        )
        kept += share * per_token
        live = max(live, whole)
        checkpoint += share * layer.checkpoint_bytes_per_token(job.layout)
    return kept, live, checkpoint


def logit_terms(job: TrainingJob) -> list[Term]:
    """Logits, probabilities and their gradients on the stage that has the output projection."""
    positions = job.tokens * job.logit_share
    size = LOSS_BYTES[job.cross_entropy]
    per_logit = 0.0 if size is None else job.precision.compute_bytes + size
    vocabulary = job.architecture.vocab_size
    value = per_logit * positions * vocabulary / job.layout.tensor
    formula = f"{per_logit:g} B x {positions:,.0f} positions x vocabulary {vocabulary:,} / TP {job.layout.tensor}"
    return [bytes_term("logits and loss", "logits", value, formula, f"{job.cross_entropy} cross-entropy")]


def buffer_terms(job: TrainingJob, rank: RankParameters) -> list[Term]:
    """Gathered or cast weights, and gradients before their reduction."""
    precision, unit = job.precision, rank.largest_unit
    value = precision.compute_bytes
    gathers = job.layout.zero >= ZeroStage.PARAMETERS and job.group > 1
    terms = []
    if gathers or job.layout.offload_parameters:
        gathered = 2 * rank.layer_unit + rank.end_unit
        formula = f"{value:g} B x (2 layers x {rank.layer_unit:,.0f} + embedding and head {rank.end_unit:,.0f})"
        terms.append(
            bytes_term(
                "gathered weights",
                "buffers",
                value * gathered,
                formula,
                "FSDP2: one layer in use, one prefetched, the root unit",
            )
        )
    if job.adapter:
        if job.adapter.base_bits == 4:
            formula = f"{value:g} B x largest unit {unit:,.0f}"
            terms.append(bytes_term("dequantised weights", "buffers", value * unit, formula, "bitsandbytes, one unit"))
        return terms
    if gathers:
        formula = f"{precision.gradient_bytes:g} B x largest unit {unit:,.0f}"
        size = precision.gradient_bytes * unit
        terms.append(bytes_term("unreduced gradients", "buffers", size, formula, "one unit before its reduction"))
    elif precision.parameter_bytes > value:
        formula = f"{value:g} B x {rank.total:,.0f}"
        terms.append(bytes_term("16-bit copies", "buffers", value * rank.total, formula, "autocast caches its casts"))
    return terms


def overhead_terms(layout: Layout, terms: list[Term], accelerator: Accelerator | None) -> list[Term]:
    """Allocator slack, driver context and communicators; a plain process on a processor."""
    transient = sum(term.value for term in terms if term.part in ("activations", "logits", "buffers"))
    slack = f"{ALLOCATOR_SLACK:.0%} of activations, logits and buffers"
    assumed = "assumption (memory_terms.py)"
    found = [bytes_term("allocator slack", "overhead", ALLOCATOR_SLACK * transient, slack, assumed)]
    if accelerator is not None and accelerator.kind == "cpu":
        formula = "resident size with torch and transformers imported"
        return [*found, bytes_term("process", "overhead", CPU_PROCESS_BYTES, formula, assumed)]
    found.append(
        bytes_term(
            "device context",
            "overhead",
            CONTEXT_BYTES,
            "0.5-1.5 GiB",
            "0.5-1.5 GiB seen in practice; docs/concepts/memory.md",
        )
    )
    degrees = (layout.data * layout.context, layout.tensor, layout.pipeline, layout.expert)
    groups = sum(degree > 1 for degree in degrees)
    formula = f"256 MiB x {groups} communicators"
    return [*found, bytes_term("communicators", "overhead", groups * COMMUNICATOR_BYTES, formula, assumed)]


def bytes_term(name: str, part: str, value: float, formula: str, source: str) -> Term:
    """A term in bytes."""
    return Term(name=name, part=part, value=value, unit="bytes", formula=formula, source=source)
