"""Terms of a training step's memory, over columns of layouts: states, activations, logits, buffers, overheads."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from charter.physics.columns import Array, Layouts, array
from charter.physics.constants import TrainingMemoryConstants
from charter.physics.kept_activations import SOURCE as ACTIVATION_SOURCE
from charter.physics.kept_activations import in_flight
from charter.physics.memory_shape import MemoryShape, RankColumns, Stage, zero_sharded
from charter.physics.terms import Term, TermColumn
from charter.spec.layout import Recompute
from charter.units import GIB

# -------- The terms of a training step's memory, over arrays of layouts: each names its formula and its source.

CPU_PROCESS_BYTES = 0.6 * GIB
"""Resident size of a process that imported torch and transformers: assumption."""
ZERO_SOURCE = "Rajbhandari et al. 2020, figure 1"
ASSUMED = "assumption (physics/constants.py), moved by calibration"


@dataclass(frozen=True, kw_only=True)
class ExplainedColumn(TermColumn):
    """A column whose formula can be filled with the numbers of one configuration."""

    numbers: Mapping[str, Array] = field(default_factory=dict)

    def at(self, index: int | tuple[int, ...] = ()) -> Term:
        """The addend of one configuration, its formula with numbers."""
        if index == () and not self.values.shape:
            value = float(self.values)
            filled = {name: float(number) for name, number in self.numbers.items()}
        else:
            shape = self.values.shape
            value = float(self.values[index])
            filled = {name: float(np.broadcast_to(number, shape)[index]) for name, number in self.numbers.items()}
        formula = self.formula.format(**filled)
        return Term(name=self.name, part=self.part, value=value, unit=self.unit, formula=formula, source=self.source)


@dataclass(frozen=True, kw_only=True)
class Rank:
    """One pipeline stage of many layouts: what most terms need."""

    shape: MemoryShape
    layouts: Layouts
    constants: TrainingMemoryConstants
    parameters: RankColumns
    stage: Stage

    @cached_property
    def tokens(self) -> Array:
        """Tokens of a micro-batch on one rank."""
        return array(self.layouts.micro_batch * self.shape.seq_len / self.layouts.context)

    @cached_property
    def group(self) -> Array:
        """Ranks over which ZeRO shards."""
        return array(self.layouts.shards)

    @property
    def gathers(self) -> Array:
        """1 where weights are gathered before use."""
        return array(((self.layouts.zero >= 3) & (self.group > 1)) | (self.layouts.offload_parameters > 0))

    @cached_property
    def held(self) -> Array:
        """Micro-batches in flight."""
        index = {"first": array(0.0), "middle": array(1.0), "last": self.layouts.pipeline - 1}[self.stage]
        index = np.minimum(index, self.layouts.pipeline - 1)
        return in_flight(self.layouts.pipeline, self.layouts.interleave, self.layouts.accumulation, index)

    def sharded(self, dense: Array, experts: Array, stage: int) -> Array:
        """Parameters a rank owns of something that ZeRO shards from `stage` on."""
        return zero_sharded(dense, experts, self.layouts, since=stage)


def column(name: str, part: str, values: Array, formula: str, source: str, **numbers: Array) -> ExplainedColumn:
    """A column in bytes."""
    return ExplainedColumn(
        name=name, part=part, values=array(values), unit="bytes", formula=formula, source=source, numbers=numbers
    )


def trained_parameters(rank: Rank) -> tuple[Array, Array]:
    """Trained parameters of a rank before ZeRO shards them: dense ones and routed experts."""
    s, p = rank.shape, rank.parameters
    small = s.adapter_parameters * p.layers / s.model.layers / rank.layouts.tensor + s.trained_ends * p.end_unit
    return array(np.where(s.adapter > 0, small, p.dense)), array(np.where(s.adapter > 0, 0.0, p.experts))


def state_columns(rank: Rank) -> dict[str, ExplainedColumn]:
    """Weights, gradients and optimizer state; with adapters a frozen base and a small trained part."""
    s, lay, states = rank.shape, rank.layouts, rank.constants.states
    dense, experts = trained_parameters(rank)
    owned = {stage: rank.sharded(dense, experts, stage) for stage in (1, 2, 3)}
    # Where 16-bit weights are not a copy there is nothing else to gather.
    copied = (s.second_stage_shards_weights > 0) & (s.parameter_bytes > s.compute_bytes) & (lay.pipeline == 1)
    stored = np.where(copied, owned[2], owned[3])
    total = array(dense + experts)
    device = {"parameters": 1 - lay.offload_parameters, "optimizer": 1 - lay.offload_optimizer}
    # Sharded gradients are where their optimizer steps: ZeRO-Offload (Ren et al. 2021, section 4.2) and FSDP2's
    # `CPUOffloadPolicy` move each to the host once it is reduced.
    away = np.maximum(lay.offload_parameters, lay.offload_optimizer) * (lay.zero >= 2) * (s.adapter == 0)
    over = "N_rank {total:,.0f}, ZeRO-{zero:.0f} over {group:.0f}"
    # Beside a pipeline gradients are reduced once, after the last micro-batch, and are whole until then.
    summed = np.where((rank.gathers > 0) & (lay.pipeline > 1), total, owned[2])
    numbers = {"total": total, "zero": lay.zero, "group": rank.group}
    source = f"{s.source or 'bytes per parameter of the stack'}; ZeRO: {ZERO_SOURCE}"
    base = _frozen_base(rank) * device["parameters"] * states
    return {
        "base": base_column(rank, base),
        "weights": column(
            "weights",
            "parameters",
            s.parameter_bytes * stored * device["parameters"] * states,
            "{size:g} B x " + over,
            source,
            size=s.parameter_bytes,
            **numbers,
        ),
        "gradients": column(
            "gradients",
            "gradients",
            s.gradient_bytes * summed * (1 - away) * states,
            "{size:g} B x {held:,.0f} of " + over,
            source,
            size=s.gradient_bytes,
            held=array(summed),
            **numbers,
        ),
        "optimizer": column(
            "optimizer",
            "optimizer",
            s.optimizer_bytes * owned[1] * device["optimizer"] * states,
            "{size:g} B x " + over,
            source,
            size=s.optimizer_bytes,
            **numbers,
        ),
    }


def base_column(rank: Rank, values: Array) -> ExplainedColumn:
    """The frozen base of adapters."""
    s, p = rank.shape, rank.parameters
    return column(
        "frozen base",
        "parameters",
        values,
        "{size:.3g} B x {matrices:,.0f} + 2 B x {rest:,.0f}, over {shards:.0f} (routed experts over {shards:.0f} / EP)",
        "Hu et al. 2021; Dettmers et al. 2023 (nf4: 4.127 bits with double quantisation, embeddings in 16)",
        size=s.base_bytes,
        matrices=p.matrices,
        rest=array(p.total - p.matrices),
        shards=_base_shards(rank),
    )


def _base_shards(rank: Rank) -> Array:
    return array(np.where(rank.layouts.zero >= 3, rank.group, 1.0))


def _frozen_base(rank: Rank) -> Array:
    s, p = rank.shape, rank.parameters
    head = s.quantises_head * s.model.head_beside_embedding / rank.layouts.tensor * (s.base_bytes < 2)
    dense = s.base_bytes * (p.matrices - p.experts + head) + 2.0 * (p.total - p.matrices - head)
    return array(np.where(s.adapter > 0, rank.sharded(dense, s.base_bytes * p.experts, 3), 0.0))


def activation_columns(rank: Rank) -> dict[str, ExplainedColumn]:
    """Return the activations that the forward pass keeps on a pipeline stage, and one layer's in its backward pass."""
    return {**_kept_columns(rank), **_live_columns(rank)}


def _again(rank: Rank) -> Array:
    """Share of the layers that the backward pass computes once more."""
    return array(rank.layouts.recomputes(Recompute.FULL) * rank.shape.recompute_share)


def _sequence_group(rank: Rank) -> Array:
    """Ranks that share what tensor parallelism replicates."""
    return array(np.where(rank.layouts.sequence_parallel > 0, rank.layouts.tensor, 1.0))


def _kept_columns(rank: Rank) -> dict[str, ExplainedColumn]:
    s, lay, layers = rank.shape, rank.layouts, rank.parameters.layers
    again, sequence = _again(rank), _sequence_group(rank)
    eager = s.keeps_scores * (lay.recompute == 0)
    sharded = np.where(lay.context > 1, s.sharded_ring, s.sharded)
    saved_bytes = s.replicated / sequence + (sharded + eager * s.scores) / lay.tensor
    inputs = s.compute_bytes * s.hidden / sequence
    on_device = rank.constants.activations * rank.tokens * layers * rank.held * (1 - s.offload_activations)
    shape = "{tokens:,.0f} tokens x {layers:.0f} layers x {held:.4g} micro-batches in flight"
    numbers = {"tokens": rank.tokens, "layers": layers, "held": rank.held}
    encoder = s.encoder_bytes * lay.micro_batch * (rank.stage == "first") * rank.held
    return {
        "kept": column(
            "kept activations",
            "activations",
            saved_bytes * on_device * (1 - again),
            "{kept:,.0f} B per token and layer x " + shape,
            ACTIVATION_SOURCE,
            kept=array(saved_bytes),
            **numbers,
        ),
        "inputs": column(
            "layer inputs",
            "activations",
            inputs * on_device * again,
            "{inputs:,.0f} B per token and layer x " + shape,
            "Korthikanti et al. 2022, table 2 (2 s b h per layer)",
            inputs=array(inputs),
            **numbers,
        ),
        "encoder": column(
            "encoder activations",
            "activations",
            array(encoder),
            "{encoder:,.0f} B per sequence",
            "the list of a plain layer, per token of the encoder",
            encoder=s.encoder_bytes,
        ),
    }


def _live_columns(rank: Rank) -> dict[str, ExplainedColumn]:
    s, lay, sequence = rank.shape, rank.layouts, _sequence_group(rank)
    one = s.live_replicated / sequence + (s.live_sharded + s.keeps_scores * s.live_scores) / lay.tensor
    gradients = s.backward_replicated / sequence + (s.backward_sharded + s.keeps_scores * s.live_scores) / lay.tensor
    live = np.where((_again(rank) > 0) | (s.offload_activations > 0), 1.0, 0.0)
    return {
        "live": column(
            "one live layer",
            "activations",
            live * one * rank.tokens * rank.constants.activations,
            "{one:,.0f} B per token x {tokens:,.0f} tokens",
            ACTIVATION_SOURCE,
            one=array(one),
            tokens=rank.tokens,
        ),
        "backward": column(
            "gradients of one layer",
            "activations",
            gradients * rank.tokens * rank.constants.activations,
            "{gradients:,.0f} B per token x {tokens:,.0f} tokens",
            "inner values of the widest part of a layer, while its backward pass runs",
            gradients=array(gradients),
            tokens=rank.tokens,
        ),
    }


def logit_columns(rank: Rank) -> dict[str, ExplainedColumn]:
    """Logits, probabilities and their gradients on the stage that has the output projection."""
    s, lay = rank.shape, rank.layouts
    # A tile is cut by the part of the vocabulary that a rank has, so that tensor parallelism makes it longer.
    rows = s.loss_rows * np.where(s.loss_head > 0, lay.tensor, 1.0)
    positions = np.minimum(rank.tokens * s.loss_share, rows)
    has_head = (lay.pipeline == 1) | (rank.stage == "last")
    logits, head = positions * s.vocabulary, s.loss_head
    # A gradient made in the forward pass is fp32; a tile's part of it is in 16 bits, when the tile's logits are gone.
    tile = np.maximum(s.loss_bytes * logits + 4 * head, (s.loss_bytes - 2) * logits + 6 * head)
    per_rank = np.where(head > 0, tile, s.loss_bytes * logits)
    value = per_rank / lay.tensor * has_head * rank.constants.logits
    return {
        "logits": column(
            "logits and loss",
            "logits",
            array(value),
            "({per_logit:g} B x {positions:,.0f} positions x vocabulary {vocabulary:,.0f} + {head:,.0f} B) "
            "/ TP {tensor:.0f}",
            "bytes per logit of the cross-entropy in use (physics/memory_profiles.py)",
            per_logit=s.loss_bytes,
            head=array(per_rank - s.loss_bytes * logits),
            positions=array(positions),
            vocabulary=s.vocabulary,
            tensor=lay.tensor,
        )
    }


# -------- Buffers of a training step: gathered and cast weights, buckets, pipeline and step temporaries, and overheads.


def buffer_columns(rank: Rank) -> dict[str, ExplainedColumn]:
    """Every buffer, by key."""
    return {**_weight_buffers(rank), **_gradient_buffers(rank), **_sequence_buffers(rank), **_step_buffers(rank)}


def _weight_buffers(rank: Rank) -> dict[str, ExplainedColumn]:
    s, p, value = rank.shape, rank.parameters, rank.shape.compute_bytes
    live = np.where(rank.layouts.pipeline > 1, p.total, np.minimum(s.live_parameters, p.total))
    quantised = (s.adapter > 0) & (s.base_bytes < 2)
    stored = np.where(quantised, s.base_bytes, value)
    gathered = np.maximum(2 * stored * p.layer_unit + value * p.end_unit, stored * live)
    copies = np.where((s.parameter_bytes > value) & (s.adapter == 0) & (rank.gathers == 0), p.total, 0.0)
    head = s.quantises_head * s.model.head_beside_embedding
    matrix = np.maximum(s.model.largest_matrix, head) / rank.layouts.tensor
    return {
        "gathered": column(
            "gathered weights",
            "buffers",
            gathered * rank.gathers,
            "max(2 layers x {layer:,.0f} x {stored:.3g} B + embedding and head {ends:,.0f} x {value:g} B; "
            "kept gathered {live:,.0f} x {stored:.3g} B)",
            "FSDP2: one layer in use, one prefetched, the root unit; all beside a pipeline; DeepSpeed: "
            "stage3_max_live_parameters",
            value=value,
            stored=array(stored),
            layer=p.layer_unit,
            ends=p.end_unit,
            live=array(live),
        ),
        "copies": column(
            "16-bit copies",
            "buffers",
            value * copies,
            "{value:g} B x {total:,.0f}",
            "autocast caches its casts",
            value=value,
            total=p.total,
        ),
        "fp8": column(
            "8-bit copies",
            "buffers",
            s.fp8_copies * np.where(rank.gathers > 0, np.minimum(2 * p.layer_unit, p.matrices), p.matrices),
            "{size:g} B x {matrices:,.0f}",
            "TransformerEngine casts each weight once per step, as it is and transposed",
            size=s.fp8_copies,
            matrices=p.matrices,
        ),
        "dequantised": column(
            "dequantised weights",
            "buffers",
            np.where(quantised, value * s.dequantised_copies * matrix, 0.0),
            "{value:g} B x {copies:g} x largest matrix {matrix:,.0f}",
            "bitsandbytes and GPTQ kernels, one matrix at a time",
            value=value,
            copies=s.dequantised_copies,
            matrix=array(matrix),
        ),
    }


def _gradient_buffers(rank: Rank) -> dict[str, ExplainedColumn]:
    s, p, lay = rank.shape, rank.parameters, rank.layouts
    dense, experts = trained_parameters(rank)
    trained = array(dense + experts)
    unit = np.minimum(p.largest_unit, trained)
    alone = rank.group <= 1
    buckets = np.where((lay.zero >= 1) & (lay.zero < 3) & ~alone, np.minimum(s.bucket_elements, trained), 0.0)
    ddp = np.where((lay.zero == 0) & ~alone, s.ddp_buckets * trained, 0.0)
    coalesced = np.where((lay.zero >= 1) & (lay.zero < 3) & ~alone, s.coalesced_copies * trained, 0.0)
    return {
        "low": column(
            "16-bit gradients",
            "gradients",
            s.compute_bytes * s.low_gradients * trained,
            "{value:g} B x {trained:,.0f}, beside those to which they are added",
            "DeepSpeed `bf16_optimizer.py`, nanotron `gradient_accumulator.py`",
            value=s.compute_bytes,
            trained=trained,
        ),
        "coalesced": column(
            "copies for the reduction",
            "buffers",
            s.gradient_bytes * coalesced,
            "{size:g} B x {coalesced:,.0f}",
            "all gradients flattened at once (nanotron `reduce_scatter_coalesced`)",
            size=s.gradient_bytes,
            coalesced=array(coalesced),
        ),
        "unreduced": column(
            "unreduced gradients",
            "buffers",
            s.gradient_bytes * unit * rank.gathers,
            "{size:g} B x largest unit {unit:,.0f}",
            "one unit before its reduction",
            size=s.gradient_bytes,
            unit=array(unit),
        ),
        "buckets": column(
            "communication buckets",
            "buffers",
            s.compute_bytes * buckets + s.gradient_bytes * ddp,
            "{value:g} B x {buckets:,.0f} (ZeRO) + {size:g} B x {ddp:,.0f} (DDP)",
            "DeepSpeed reduce and gather buckets; torch DDP copies gradients into buckets",
            value=s.compute_bytes,
            size=s.gradient_bytes,
            buckets=array(buckets),
            ddp=array(ddp),
        ),
    }


def _sequence_buffers(rank: Rank) -> dict[str, ExplainedColumn]:
    """Messages between pipeline stages, stage outputs, and sequences gathered over a tensor-parallel group."""
    s, lay = rank.shape, rank.layouts
    state = s.compute_bytes * s.hidden * rank.tokens
    piped = lay.pipeline > 1
    divided = np.where(lay.sequence_parallel > 0, lay.tensor, 1.0)
    messages = np.where(piped, 2 + s.stage_outputs * rank.held / lay.tensor, 0.0) / divided
    gathered = np.where((lay.sequence_parallel > 0) & (lay.tensor > 1), 2.0, 0.0)
    return {
        "messages": column(
            "pipeline messages",
            "buffers",
            state * messages,
            "{copies:.3g} x {state:,.0f} B (hidden states of a micro-batch)",
            "one received, one sent; what the pipeline engine keeps per micro-batch in flight",
            copies=array(messages),
            state=array(state),
        ),
        "gathered_sequence": column(
            "gathered sequence",
            "buffers",
            state * gathered,
            "{copies:.3g} x {state:,.0f} B (hidden states of a micro-batch)",
            "sequence parallelism gathers the input of a projection, forward and backward",
            copies=array(gathered),
            state=array(state),
        ),
    }


def _step_buffers(rank: Rank) -> dict[str, ExplainedColumn]:
    s, lay = rank.shape, rank.layouts
    dense, experts = trained_parameters(rank)
    owned = rank.sharded(dense, experts, 1)
    at_once = np.minimum(owned, np.where(lay.zero >= 3, s.step_parameters, np.inf)) * (1 - lay.offload_optimizer)
    largest = _largest_parameter(rank)
    norm = s.norm_bytes * np.minimum(largest, owned) * (1 - lay.offload_optimizer)
    bytes_at_once = array(np.maximum(s.step_bytes * at_once, norm) * rank.constants.step)
    workspace = np.where(s.cpu > 0, 0.0, s.workspace * rank.constants.workspace_bytes)
    return {
        "step": column(
            "optimizer step",
            "buffers",
            bytes_at_once,
            "{size:g} B x {at_once:,.0f}",
            "fp32 gradient of a flat shard, and what Adam computes over lists of tensors",
            size=array(np.where(norm > s.step_bytes * at_once, s.norm_bytes, s.step_bytes)),
            at_once=array(np.where(norm > s.step_bytes * at_once, np.minimum(largest, owned), at_once)),
        ),
        "workspace": column(
            "workspaces",
            "buffers",
            array(workspace),
            "cuBLAS and fused kernels, {workspace:,.0f} B",
            ASSUMED,
            workspace=array(workspace),
        ),
    }


def _largest_parameter(rank: Rank) -> Array:
    """Elements of the largest parameter of a rank."""
    return array(np.maximum(rank.shape.model.largest_matrix / rank.layouts.tensor, rank.parameters.end_unit))


def slack_column(rank: Rank, transient: Array) -> ExplainedColumn:
    """Allocator slack on what comes and goes in a phase."""
    return column(
        "allocator slack",
        "overhead",
        rank.shape.reserved * rank.constants.slack * transient,
        "{share:.0%} of activations, logits and buffers",
        ASSUMED,
        share=rank.constants.slack,
    )


def cached_column(rank: Rank, step: Array, *, stepping: bool) -> ExplainedColumn:
    """Return the part of the optimizer step's buffers (`step` bytes) that the allocator keeps while no step runs."""
    s, dense_and_experts = rank.shape, trained_parameters(rank)
    cast = s.cast_bytes * _largest_parameter(rank)
    shared = (rank.layouts.zero >= 1) & (rank.layouts.zero < 3) & (rank.group > 1)
    gathered = np.where(shared, s.gather_copies * s.compute_bytes * (dense_and_experts[0] + dense_and_experts[1]), 0.0)
    later = np.maximum(s.flat_step * step, gathered) * (0.0 if stepping else 1.0)
    return column(
        "cached by the allocator",
        "overhead",
        s.reserved * (later + cast),
        "buffers of the optimizer step and of casts, too large to be cut from freed activations",
        "caching allocator: large blocks are never merged over segments; counted as used, but free on demand",
    )


def constant_columns(rank: Rank) -> dict[str, ExplainedColumn]:
    """Return the terms that every phase holds: device context and communicators; a plain process on a processor."""
    s, lay, constants = rank.shape, rank.layouts, rank.constants
    degrees = (rank.group, lay.tensor, lay.pipeline, lay.expert)
    groups = array(sum((degree > 1).astype(float) for degree in degrees) + s.further_groups)
    device = s.context * (1 - s.cpu)
    return {
        "context": column(
            "device context",
            "overhead",
            device * np.maximum(constants.context_bytes * s.context_factor, s.all_kernels_bytes),
            "driver and libraries, max({factor:.2g} x {size:,.0f} B, {all:,.0f} B)",
            ASSUMED,
            factor=s.context_factor,
            size=constants.context_bytes,
            all=s.all_kernels_bytes,
        ),
        "communicators": column(
            "communicators",
            "overhead",
            device * constants.communicator_bytes * groups,
            "{size:,.0f} B x {groups:.0f} communicators",
            ASSUMED,
            size=constants.communicator_bytes,
            groups=groups,
        ),
        "process": column(
            "process",
            "overhead",
            s.cpu * CPU_PROCESS_BYTES,
            "resident size with torch and transformers imported",
            "assumption (physics/memory_terms.py)",
        ),
    }
