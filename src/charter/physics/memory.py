"""Memory of a training step by phase and pipeline stage: a table of layouts, one layout, and what would make it fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from charter.catalog.accelerators import Accelerator
from charter.physics.columns import Array, Layouts, array
from charter.physics.constants import (
    CPU_PROCESS_BYTES,
    CPU_PROCESS_FORMULA,
    CPU_PROCESS_SOURCE,
    TrainingMemoryConstants,
    memory_sigma,
)
from charter.physics.memory_profiles import (
    NATIVE,
    VISITING_BYTES,
    AdapterUse,
    Head,
    MemoryJob,
    MemoryProfile,
)
from charter.physics.memory_rank import Rank, trained_parameters
from charter.physics.memory_shape import MemoryShape, Stage, rank_columns, stage_layers
from charter.physics.memory_terms import (
    ASSUMED,
    activation_columns,
    buffer_columns,
    gathered_copies,
    joined_share,
    logit_columns,
    sequence_group,
    state_columns,
)
from charter.physics.precision import FSDP_MIXED, TrainingPrecision
from charter.physics.step_time import distinct, rows_of
from charter.physics.terms import ExplainedColumn, MemoryBreakdown, PhaseTables, PhaseTerms, TermTable, column
from charter.spec.architecture import Architecture
from charter.spec.layout import Adapter, Layout, Recompute, ZeroStage

# -------- Memory of a training step by phase and pipeline stage, for arrays of layouts: the peak is the largest of all.
#
# A step loads weights once, then repeats forward, loss, backward and optimizer step, and sometimes saves. Every phase
# is a sum of its own terms; a term that is alive in several phases is the same column in each.

RESIDENT = ("base", "weights", "optimizer")
BUFFERS = ("fp8", "dequantised", "messages", "gathered_sequence", "workspace")
KEPT = ("early_gradients", "kept", "inputs", "encoder", "around")
PHASES: dict[str, tuple[str, ...]] = {
    "load": (*RESIDENT, "start", "dequantised", "workspace"),
    "forward": (*RESIDENT, *KEPT, "low_kept", "forward_live", "gathered", "copies", *BUFFERS),
    "loss": (*RESIDENT, *KEPT, "low_kept", "logits", "early_buckets", "gathered_loss", "copies_loss", *BUFFERS),
    "backward": (
        *RESIDENT,
        *KEPT[:-1],
        "low_grown",
        "live",
        "backward",
        "around_backward",
        "unreduced",
        "buckets",
        "gathered_backward",
        "copies_backward",
        *BUFFERS,
    ),
    "end of backward": (
        *RESIDENT,
        "gradients",
        "low",
        "live",
        "backward",
        "unreduced_end",
        "buckets",
        "gathered_end",
        "copies_end",
        *BUFFERS,
    ),
    "optimizer step": (*RESIDENT, "gradients", "low_kept", "step", "new_weights", "visiting", "buckets", "workspace"),
    "checkpoint": (*RESIDENT, "early_gradients", "low_kept", "gathered", "workspace"),
}
"""Which terms are alive in a phase. Gradients exist before the end of the backward pass where they are accumulated over
micro-batches or kept in a buffer of their own."""
TRANSIENT = ("activations", "logits", "buffers")


@dataclass(frozen=True, kw_only=True)
class StageTable(PhaseTables):
    """One pipeline stage: a table of terms per phase."""

    @property
    def peak(self) -> Array:
        """Bytes at the fullest phase."""
        totals = iter(self.totals.values())
        peak = next(totals)
        for total in totals:
            peak = np.maximum(peak, total)
        return peak


@dataclass(frozen=True, kw_only=True)
class MemoryTable:
    """Memory of many layouts: per stage, per phase, per term."""

    stages: Mapping[Stage, StageTable]

    @cached_property
    def total(self) -> Array:
        """Bytes of the fullest rank at its fullest phase."""
        peaks = [table.peak for table in self.stages.values()]
        return array(np.maximum.reduce(np.broadcast_arrays(*peaks)))

    def fullest(self) -> tuple[Stage, str]:
        """The stage and the phase of the peak, where the table has one configuration."""
        sizes = {(at, phase): float(size) for at, table in self.stages.items() for phase, size in table.totals.items()}
        return max(sizes, key=lambda pair: sizes[pair])


def training_memory_table(
    shape: MemoryShape, layouts: Layouts, constants: TrainingMemoryConstants | None = None
) -> MemoryTable:
    """Memory of every layout; `shape` is of one job, or one per layout.

    Without uneven splits a middle stage holds no more than the first (as many layers, fewer micro-batches, no
    embedding), so only the ends are computed.
    """
    constants = constants or TrainingMemoryConstants()
    stages: list[Stage] = ["first"]
    if np.any(layouts.pipeline > 1):
        stages += ["middle", "last"] if np.any(shape.first_layers > 0) else ["last"]
    return MemoryTable(stages={stage: _stage_table(shape, layouts, constants, stage) for stage in stages})


def _rank(shape: MemoryShape, layouts: Layouts, constants: TrainingMemoryConstants, stage: Stage) -> Rank:
    parameters = rank_columns(shape.model, layouts, stage=stage, layers=_layers(shape, layouts, stage))
    return Rank(shape=shape, layouts=layouts, constants=constants, parameters=parameters, stage=stage)


def _stage_table(shape: MemoryShape, layouts: Layouts, constants: TrainingMemoryConstants, stage: Stage) -> StageTable:
    rank = _rank(shape, layouts, constants, stage)
    columns = {
        **state_columns(rank),
        **activation_columns(rank),
        "around": _around_column(rank),
        **logit_columns(rank),
        **buffer_columns(rank),
    }
    columns["around_backward"] = _around_backward(rank, columns)
    persists = (shape.persistent_gradients > 0) | ((shape.gradient_views > 0) & (layouts.copies > 0))
    early = np.where(persists | (layouts.accumulation > 1), 1.0, 0.0)
    gradients = columns["gradients"]
    columns["early_gradients"] = replace(gradients, values=array(gradients.values * early))
    columns["early_buckets"] = _scaled(columns["buckets"], shape.whole_buckets)
    columns["visiting"], columns["start"] = _visiting_column(rank), _start_column(rank)
    columns["forward_live"] = _forward_live(columns["live"])
    columns["low_kept"] = _scaled(columns["low"], shape.low_gradients_stay)
    columns["low_grown"] = _low_grown(rank, columns)
    cached = {stepping: _cached_column(rank, columns["step"].values, stepping=stepping) for stepping in (False, True)}
    always = tuple(_constant_columns(rank).values())
    tables = {name: _phase(rank, columns, name, keys, cached, always) for name, keys in PHASES.items()}
    return StageTable(phases=tables)


def _scaled(column: ExplainedColumn, share: Array) -> ExplainedColumn:
    return replace(column, values=array(column.values * share))


def _low_grown(rank: Rank, columns: Mapping[str, ExplainedColumn]) -> ExplainedColumn:
    """16-bit gradients of a backward pass as far as they outgrow the activations of the micro-batch that it frees."""
    freed = (columns["kept"].values + columns["inputs"].values) / np.maximum(rank.held, 1.0)
    low = columns["low"]
    return replace(low, values=array(np.maximum(low.values - freed, 0.0)), formula=low.formula + ", less what is freed")


def _start_column(rank: Rank) -> ExplainedColumn:
    """The rest of a model that ZeRO-3 has not divided yet."""
    dense, experts = trained_parameters(rank)
    others = (dense + experts - rank.sharded(dense, experts, 3)) * rank.shape.starts_whole * (rank.layouts.zero >= 3)
    return column(
        "model before it is divided",
        "parameters",
        rank.shape.compute_bytes * others,
        "{value:g} B x {others:,.0f}",
        "DeepSpeed `_configure_distributed_model`: `module.to(device)`",
        value=rank.shape.compute_bytes,
        others=array(others),
    )


def _visiting_column(rank: Rank) -> ExplainedColumn:
    """Moments that come from the host for their step: a few weights' at a time, or those of the largest one."""
    s, lay = rank.shape, rank.layouts
    owned = rank.sharded(*trained_parameters(rank), 1)
    embedding = rank.parameters.end_unit - s.model.head_beside_embedding / lay.tensor
    largest = rank.sharded(np.maximum(s.model.largest_matrix / lay.tensor, embedding), array(0.0), 1)
    at_once = np.minimum(s.optimizer_bytes * owned, np.maximum(VISITING_BYTES, s.optimizer_bytes * largest))
    return column(
        "visiting moments",
        "buffers",
        at_once * s.moments_visit * lay.offload_optimizer * (1 - lay.offload_parameters),
        "max({least:,.0f} B, {size:g} B x {largest:,.0f} of the largest weight)",
        "moments in host memory come to the device for their step (train/optimizers.py)",
        least=array(VISITING_BYTES),
        size=s.optimizer_bytes,
        largest=largest,
    )


def _around_column(rank: Rank) -> ExplainedColumn:
    """Return what the last norm keeps, and around the loss its output, the positions asked for and their gradient."""
    s = rank.shape
    wide = np.where(rank.is_autocast > 0, s.parameter_bytes, s.compute_bytes)
    handed = np.where(
        s.scalar > 0, s.compute_bytes, 2 * wide + np.where(rank.is_autocast > 0, 2.0, 1.0) * s.compute_bytes
    )
    each = s.hidden * (4 + wide + handed) * (1 / sequence_group(rank) + joined_share(rank))
    return column(
        "last norm",
        "activations",
        (s.ends_apart > 0) * each * rank.tokens * rank.constants.activations,
        "{each:,.0f} B per token x {tokens:,.0f} tokens",
        "its input in fp32, the normalised value, what it hands to the head",
        each=array(each),
        tokens=rank.tokens,
    )


def _around_backward(rank: Rank, columns: Mapping[str, ExplainedColumn]) -> ExplainedColumn:
    """Peak around a layer's backward pass: what the last norm keeps goes with its own, before (seen in our engine)."""
    around, layer = columns["around"], columns["live"].values + columns["backward"].values
    layer = layer * (rank.shape.moments_visit > 0)
    return replace(around, values=array(np.maximum(around.values - layer, 0.0)), formula=around.formula + ", alone")


def _forward_live(live: ExplainedColumn) -> ExplainedColumn:
    """While a layer runs forward about half of what it would keep is alive at once."""
    return replace(live, values=array(0.5 * live.values), formula="half of " + live.formula)


def _phase(
    rank: Rank,
    columns: Mapping[str, ExplainedColumn],
    phase: str,
    keys: tuple[str, ...],
    cached: Mapping[bool, ExplainedColumn],
    always: tuple[ExplainedColumn, ...],
) -> TermTable:
    alive = [columns[key] for key in keys]
    transient = array(sum((item.values for item in alive if item.part in TRANSIENT), start=np.float64(0.0)))
    reserved = () if phase in ("load", "checkpoint") else (cached[phase == "optimizer step"],)
    return TermTable(columns=(*alive, _slack_column(rank, transient), *reserved, *always))


def _slack_column(rank: Rank, transient: Array) -> ExplainedColumn:
    """Allocator slack on what comes and goes in a phase."""
    return column(
        "allocator slack",
        "overhead",
        rank.shape.reserved * rank.constants.slack * transient,
        "{share:.0%} of activations, logits and buffers",
        ASSUMED,
        share=rank.constants.slack,
    )


def _cached_column(rank: Rank, step: Array, *, stepping: bool) -> ExplainedColumn:
    """Return the part of the optimizer step's buffers (`step` bytes) that the allocator keeps while no step runs."""
    s, gathered = rank.shape, rank.shape.idle * gathered_copies(rank)
    cast = s.cast_bytes * rank.largest_parameter
    # Temporaries of many small tensors lie in segments of 2 or 20 MB, from which no large buffer can be cut.
    scattered = s.step_bytes * rank.sharded(rank.adapters, array(0.0), 1) * rank.constants.step * (s.adapter > 0)
    later = np.maximum(np.maximum(s.flat_step * step, scattered), gathered) * (0.0 if stepping else 1.0)
    return column(
        "cached by the allocator",
        "overhead",
        s.reserved * (later + cast),
        "buffers of the optimizer step and of casts, too large to be cut from freed activations",
        "caching allocator: large blocks are never merged over segments; counted as used, but free on demand",
    )


def _constant_columns(rank: Rank) -> dict[str, ExplainedColumn]:
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
            CPU_PROCESS_FORMULA,
            CPU_PROCESS_SOURCE,
        ),
    }


def _layers(shape: MemoryShape, layouts: Layouts, stage: Stage) -> Array:
    even = stage_layers(shape.model.layers, layouts.pipeline, stage)
    between = (shape.model.layers - shape.first_layers - shape.last_layers) / np.maximum(layouts.pipeline - 2, 1)
    given = {"first": shape.first_layers, "middle": np.ceil(between), "last": shape.last_layers}[stage]
    return array(np.where((shape.first_layers > 0) & (layouts.pipeline > 1), given, even))


# -------- Bytes per accelerator at the peak of a training step, phase by phase and term by term, for one layout.
#
# The formulas are those of `memory_table`, over arrays; serving is in `inference_memory`.


def training_memory(
    architecture: Architecture,
    layout: Layout,
    *,
    seq_len: int,
    precision: TrainingPrecision = FSDP_MIXED,
    adapter: Adapter | None = None,
    head: Head = "lm",
    accelerator: Accelerator | None = None,
    profile: MemoryProfile = NATIVE,
    constants: TrainingMemoryConstants | None = None,
) -> MemoryBreakdown:
    """Bytes of the fullest rank at the fullest phase of a training step.

    `profile` says whose code runs. Reading it: docs/concepts/memory.md.

    >>> from charter.catalog import models
    >>> from charter.spec.layout import Recompute, ZeroStage
    >>> llama = models.get("Llama-3.1-8B").architecture
    >>> layout = Layout(data=8, zero=ZeroStage.PARAMETERS, recompute=Recompute.FULL)
    >>> memory = training_memory(llama, layout, seq_len=4096)
    >>> round(memory.parameter_bytes / 2**30, 2), memory.phase
    (3.74, 'loss')
    """
    job = MemoryJob(
        architecture=architecture,
        seq_len=seq_len,
        precision=precision,
        profile=profile,
        adapter=AdapterUse.of(adapter) if adapter else None,
        head=head,
        accelerator=accelerator,
    )
    return job_memory(job, layout, constants)


def job_memory(job: MemoryJob, layout: Layout, constants: TrainingMemoryConstants | None = None) -> MemoryBreakdown:
    """The same of a job whose traits are all given."""
    table = training_memory_table(MemoryShape.of(job), Layouts.of(layout), constants)
    stage, phase = table.fullest()
    phases = PhaseTerms(table.stages[stage])
    return MemoryBreakdown(
        terms=phases[phase],
        stage="only" if layout.pipeline == 1 else stage,
        phase=phase,
        phases=phases,
        sigma=memory_sigma(job.profile.name),
    )


# -------- Changes that make a job fit on the accelerators at hand: a short, ordered list, tried one by one.

MAX_ACCELERATORS = 1024
MAX_TENSOR = 64


@dataclass(frozen=True, kw_only=True)
class Alternative:
    """A layout that fits, and what changes to get there."""

    change: str
    count: int
    """Accelerators it needs."""
    total_bytes: float
    layout: Layout
    weights: str | None = None
    """Stored weights, where they are others."""


def training_alternatives(
    layout: Layout,
    memory: Callable[[Layout], MemoryBreakdown],
    capacity_bytes: float,
    *,
    offloads_activations: bool = False,
) -> tuple[Alternative, ...]:
    """Changes that bring a training layout within the capacity, each layout once; the least invasive first.

    Tried in turn: a smaller micro-batch, higher ZeRO stages, recomputation, both, optimizer offload; where none of them
    fits and the engine `offloads_activations`, inputs of layers on the host; and twice as many accelerators until it
    fits. Each is judged by the same memory estimate.
    """
    alternatives: list[Alternative] = []
    on_host = _inputs_on_host(layout) if offloads_activations else ()
    for change, candidate in (*_training_changes(layout), *on_host, *_more_accelerators(layout)):
        is_last_resort = candidate.offload_activations and not layout.offload_activations
        if any(is_last_resort or candidate == item.layout for item in alternatives):
            continue
        total = memory(candidate).total_bytes
        if total <= capacity_bytes:
            count = candidate.num_accelerators
            alternatives.append(Alternative(change=change, count=count, total_bytes=total, layout=candidate))
            if candidate.num_accelerators > layout.num_accelerators:
                break
    return tuple(alternatives)


def _training_changes(layout: Layout) -> Iterator[tuple[str, Layout]]:
    group = layout.data * layout.context
    modes = list(Recompute)
    if layout.micro_batch > 1:
        yield "micro-batch 1, accumulating instead", _small_batch(layout)
    for zero in ZeroStage:
        if zero > layout.zero and group > 1:
            yield f"ZeRO stage {int(zero)} over {group}", replace(layout, zero=zero)
    for mode in modes[modes.index(layout.recompute) + 1 :]:
        yield f"{mode} recomputation", replace(layout, recompute=mode)
    if group > 1:
        yield "micro-batch 1, ZeRO stage 3, full recomputation", _leanest(layout)
    if not layout.offload_optimizer:
        yield "optimizer in host memory", replace(layout, offload_optimizer=True)
        lean = replace(_leanest(layout), offload_optimizer=True)
        yield "micro-batch 1, ZeRO stage 3, full recomputation, optimizer in host memory", lean


def _inputs_on_host(layout: Layout) -> Iterator[tuple[str, Layout]]:
    if layout.offload_activations:
        return
    recomputed = replace(layout, recompute=Recompute.FULL, offload_activations=True)
    yield "full recomputation, layer inputs in host memory", recomputed
    lean = replace(_leanest(layout), offload_activations=True)
    yield "micro-batch 1, ZeRO stage 3, full recomputation, layer inputs in host memory", lean
    both = "micro-batch 1, ZeRO stage 3, full recomputation, layer inputs and optimizer in host memory"
    yield both, replace(lean, offload_optimizer=True)


def _more_accelerators(layout: Layout) -> Iterator[tuple[str, Layout]]:
    candidate = _leanest(layout)
    while candidate.num_accelerators <= MAX_ACCELERATORS // 2:
        candidate = replace(candidate, data=candidate.data * 2)
        yield f"{candidate.num_accelerators} accelerators, ZeRO stage 3, full recomputation", candidate


def _small_batch(layout: Layout) -> Layout:
    return replace(layout, micro_batch=1, accumulation=layout.accumulation * layout.micro_batch)


def _leanest(layout: Layout) -> Layout:
    return replace(_small_batch(layout), zero=ZeroStage.PARAMETERS, recompute=Recompute.FULL)


def inference_alternatives(
    memory: Callable[[Layout, str], MemoryBreakdown], layout: Layout, weights: str, capacity_bytes: float
) -> tuple[Alternative, ...]:
    """Wider tensor parallelism and smaller weights that bring a model within the capacity."""
    alternatives = []
    smaller = [kind for kind in ("fp8", "int4") if _BITS[kind] < _BITS.get(weights, 16)]
    for kind in smaller:
        total = memory(layout, kind).total_bytes
        if total <= capacity_bytes:
            change, count = f"weights in {kind}", layout.num_accelerators
            alternatives.append(Alternative(change=change, count=count, total_bytes=total, layout=layout, weights=kind))
    wider = layout
    while wider.tensor * 2 <= MAX_TENSOR:
        wider = replace(wider, tensor=wider.tensor * 2, data=max(1, wider.data // 2))
        total = memory(wider, weights).total_bytes
        if total <= capacity_bytes:
            change, count = f"tensor parallel {wider.tensor}", wider.num_accelerators
            alternatives.append(Alternative(change=change, count=count, total_bytes=total, layout=wider))
            break
    return tuple(alternatives)


_BITS = {"fp32": 32, "fp8": 8, "int8": 8, "bnb-int8": 8, "int4": 4, "fp4": 4, "mxfp4": 4, "nf4": 4}


# -------- Memory of very many layouts: rows that differ only in what memory does not depend on are computed once.

MEMORY_AXES = (
    "data",
    "tensor",
    "pipeline",
    "context",
    "expert",
    "sequence_parallel",
    "zero",
    "replicas",
    "micro_batch",
    "accumulation",
    "recompute",
    "interleave",
    "offload_optimizer",
    "offload_parameters",
    "offload_activations",
)


def factored_memory(
    shape: MemoryShape,
    layouts: Layouts,
    constants: TrainingMemoryConstants,
    read: Callable[[MemoryTable, int], dict[str, Array]],
    *,
    beside: Sequence[Array] = (),
) -> dict[str, Array]:
    """Columns that `read` takes from the memory table of the distinct layouts (and their number), for every layout.

    `beside` holds a whole number per row and trait of `shape` in which rows differ.
    """
    rows, which = distinct([*(getattr(layouts, name) for name in MEMORY_AXES), *beside])
    few = replace(rows_of(replace(shape, source=""), rows), source=shape.source)
    table = training_memory_table(few, rows_of(layouts, rows), constants)
    columns = read(table, len(rows))
    return {name: array(np.broadcast_to(column, (len(rows),))[which]) for name, column in columns.items()}


def least_state_bytes(shape: MemoryShape, layouts: Layouts, constants: TrainingMemoryConstants) -> Array:
    """Weights and optimizer state of the first pipeline stage: never more than the peak of the layout.

    Both exist in every phase of a step, on every stage; the peak is a maximum over phases and stages of sums that
    contain them. A bound, so what it rules out does not fit.
    """
    layers = np.where(
        (shape.first_layers > 0) & (layouts.pipeline > 1),
        shape.first_layers,
        array(np.ceil(shape.model.layers / layouts.pipeline)),
    )
    parameters = rank_columns(shape.model, layouts, stage="first", layers=array(layers))
    rank = Rank(shape=shape, layouts=layouts, constants=constants, parameters=parameters, stage="first")
    columns = state_columns(rank)
    return array(columns["base"].values + columns["weights"].values + columns["optimizer"].values)


def offloaded_input_bytes(shape: MemoryShape, layouts: Layouts, constants: TrainingMemoryConstants) -> Array:
    """Inputs of layers of a rank that wait in host memory for the backward pass."""
    stays = replace(layouts, offload_activations=array(0.0))
    columns = activation_columns(_rank(shape, stays, constants, "first"))
    return array((columns["kept"].values + columns["inputs"].values) * layouts.offload_activations)
