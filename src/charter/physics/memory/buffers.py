"""Buffers of a training step: gathered and cast weights, buckets, pipeline and step temporaries, and overheads."""

import numpy as np

from charter.physics.arrays import Array, array
from charter.physics.memory.terms import ASSUMED, CPU_PROCESS_BYTES, ExplainedColumn, Rank, column, trained_parameters


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
    return {
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
    messages = np.where(piped, 2 + s.stage_outputs * rank.held, s.stage_outputs) / divided
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
    bytes_at_once = array(s.step_bytes * at_once * rank.constants.step)
    workspace = np.where(s.cpu > 0, 0.0, s.workspace * rank.constants.workspace_bytes)
    return {
        "step": column(
            "optimizer step",
            "buffers",
            bytes_at_once,
            "{size:g} B x {at_once:,.0f}",
            "fp32 gradient of a flat shard, and what Adam computes over lists of tensors",
            size=s.step_bytes,
            at_once=array(at_once),
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
    return column(
        "cached by the allocator",
        "overhead",
        rank.shape.reserved * rank.shape.flat_step * step * (0.0 if stepping else 1.0),
        "buffers of the optimizer step, too large to be cut from freed activations",
        "caching allocator: large blocks are never merged over segments; counted as used, but free on demand",
    )


def constant_columns(rank: Rank) -> dict[str, ExplainedColumn]:
    """Return the terms that every phase holds: device context and communicators; a plain process on a processor."""
    s, lay, constants = rank.shape, rank.layouts, rank.constants
    degrees = (rank.group, lay.tensor, lay.pipeline, lay.expert)
    groups = array(sum((degree > 1).astype(float) for degree in degrees))
    device = s.context * (1 - s.cpu)
    return {
        "context": column(
            "device context",
            "overhead",
            device * constants.context_bytes * s.context_factor,
            "driver and libraries, {factor:.2g} x {size:,.0f} B",
            ASSUMED,
            factor=s.context_factor,
            size=constants.context_bytes,
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
            "assumption (memory/terms.py)",
        ),
    }
