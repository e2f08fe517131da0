"""Shape of a training step as numbers: parameters and states of each rank, activations, logits, buffers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import numpy as np

from charter.physics.columns import Array, Layouts, array, stacked
from charter.physics.constants import ALL_KERNELS_BYTES, context_factor
from charter.physics.kept_activations import (
    ALL_MATRICES,
    LayerActivations,
    LayerKind,
    Matrices,
    kept_by_layer,
    layer_mix,
)
from charter.physics.memory_profiles import LINEAR, AdapterUse, MemoryJob, loss_numbers
from charter.physics.shapes import (
    adapter_parameters,
    attention_parameters,
    count_parameters,
    dense_mlp_layers,
    expert_parameters,
    layer_norm_parameters,
    mlp_parameters,
    state_space_parameters,
)
from charter.spec.architecture import Architecture, Encoder
from charter.spec.layout import Adapter, Layout

# -------- Parameters, gradients and optimizer state of one rank under TP, PP, EP and ZeRO.

Stage = Literal["first", "middle", "last"]


@dataclass(frozen=True, kw_only=True)
class RankParameters:
    """Parameters of one tensor-, pipeline- and expert-parallel rank, before ZeRO shards them."""

    dense: float
    """Sharded by ZeRO over data * context."""
    experts: float
    """Routed experts; sharded by ZeRO over data * context / expert."""
    layer_unit: float
    """Parameters of the largest layer: what ZeRO-3 gathers at a time."""
    end_unit: float
    """Embedding and output projection: a unit of their own, gathered through the whole pass."""
    layers: int

    @property
    def total(self) -> float:
        """Dense and routed."""
        return self.dense + self.experts

    @property
    def largest_unit(self) -> float:
        """The larger of the two: the most gradients that wait for their reduction at once."""
        return max(self.layer_unit, self.end_unit)


@dataclass(frozen=True, kw_only=True)
class ModelColumns:
    """Parameter counts of a model, or of many, as arrays that broadcast against layouts."""

    layers: Array
    norms: Array
    matrices: Array
    """Of all layers, routed experts aside."""
    experts: Array
    """Routed experts of all layers."""
    embedding: Array
    """Embedding, positions and the encoder in front: on the first stage."""
    head: Array
    """What the last stage adds when it is not the first: a tied head has a copy of its own there."""
    head_beside_embedding: Array
    """What the head adds when embedding and head are on one rank."""
    layer_matrices: Array
    """The largest layer without routed experts."""
    layer_experts: Array
    """Routed experts of one layer."""
    largest_matrix: Array
    """Elements of the largest single matrix of the layers."""

    @classmethod
    def of(cls, architecture: Architecture, *, scalar_head: bool = False) -> ModelColumns:
        """Counts of one model; a scalar head (reward, value) replaces the output projection."""
        a, count = architecture, count_parameters(architecture)
        table = float(count.head if not a.tied_embeddings else count.embedding + a.head_bias * a.vocab_size)
        end, beside = (table, 0.0 if a.tied_embeddings else table)
        if scalar_head:
            end = beside = float(a.hidden_size)
        mixture = a.mixture
        shared = mlp_parameters(a, mixture.shared_width) if mixture and mixture.shared_width else 0
        dense = mlp_parameters(a, a.intermediate_size) if dense_mlp_layers(a) else 0
        mixer = max(
            attention_parameters(a) if a.attention_layers else 0,
            state_space_parameters(a, a.state_space) if a.state_space else 0,
        )
        widths = [a.num_heads * a.head_size, a.intermediate_size if dense or not mixture else 0]
        widths += [mixture.expert_intermediate_size, mixture.shared_width] if mixture else []
        return cls(
            layers=array(a.num_layers),
            norms=array(count.norms),
            matrices=array(
                count.attention
                + count.dense_mlp
                + count.router
                + count.shared_experts
                + count.state_space
                + count.mtp_projections
            ),
            experts=array(count.experts),
            embedding=array(count.embedding + count.positions + count.encoder),
            head=array(end),
            head_beside_embedding=array(beside),
            layer_matrices=array(mixer + max(dense, shared) + layer_norm_parameters(a)),
            layer_experts=array(expert_parameters(a) * mixture.num_experts if mixture else 0),
            largest_matrix=array(a.hidden_size * max(widths)),
        )


@dataclass(frozen=True, kw_only=True)
class RankColumns:
    """Parameters of one rank of many layouts at once; the fields of `RankParameters`."""

    dense: Array
    experts: Array
    layer_unit: Array
    end_unit: Array
    layers: Array
    matrices: Array
    """Of `dense` and `experts`, the matrices of the layers: what quantisation makes smaller."""

    @property
    def total(self) -> Array:
        """Dense and routed."""
        return array(self.dense + self.experts)

    @property
    def largest_unit(self) -> Array:
        """The larger of a layer and the ends."""
        return np.maximum(self.layer_unit, self.end_unit)


@dataclass(frozen=True, kw_only=True)
class Ends:
    """Parameters before and after the layers, by the unit in which FSDP2 gathers them (`charter.models.parallel`)."""

    embedding: Array
    """Alone; freed after its forward pass, its gradients come last."""
    head: Array
    """Alone; from the loss to the first moments of the backward pass."""
    root: Array
    """Gathered through the pass, its gradients wait for its end: what is tied, or split over tensor-parallel ranks."""

    @property
    def largest(self) -> Array:
        """The larger of the two tables."""
        return array(np.maximum(self.head + self.root, self.embedding))


def rank_columns(model: ModelColumns, layouts: Layouts, *, stage: Stage, layers: Array) -> RankColumns:
    """Parameters of a rank of the first, a middle or the last pipeline stage, which holds `layers` layers.

    Tensor parallelism divides every matrix and the embedding, not the norms; expert parallelism divides the routed
    experts. The first stage holds the embedding, the last the output projection (a tied one has its own copy when
    the two are on different ranks). Source: Shoeybi et al. 2019 (arXiv:1909.08053), section 3; Narayanan et al. 2021,
    section 2.
    """
    m, tensor = model, layouts.tensor
    share = layers / m.layers
    alone = layouts.pipeline == 1
    own = {"first": m.embedding, "middle": array(0.0), "last": m.head}[stage]
    ends = np.where(alone, m.embedding + m.head_beside_embedding, own)
    experts = m.experts * share / (tensor * layouts.expert)
    matrices = m.matrices * share / tensor
    return RankColumns(
        dense=array(m.norms * share + matrices + ends / tensor),
        experts=array(experts),
        layer_unit=array((m.layer_matrices + m.layer_experts / layouts.expert) / tensor),
        end_unit=array(ends / tensor),
        layers=array(layers),
        matrices=array(matrices + experts),
    )


def stage_layers(num_layers: Array, pipeline: Array, stage: Stage) -> Array:
    """Layers of a stage: an even split, the remainder to the first stages.

    >>> [float(stage_layers(array(126.0), array(4.0), stage)) for stage in ("first", "middle", "last")]
    [32.0, 32.0, 31.0]
    """
    even = np.floor(num_layers / pipeline)
    rest = num_layers - even * pipeline
    index = {"first": array(0.0), "middle": array(np.minimum(pipeline - 1, 1.0)), "last": array(pipeline - 1)}[stage]
    return even + np.where(index < rest, 1.0, 0.0)


def rank_parameters(architecture: Architecture, layout: Layout, *, scalar_head: bool = False) -> RankParameters:
    """Parameters on one rank of the first pipeline stage, as `rank_columns` has them."""
    columns, model = Layouts.of(layout), ModelColumns.of(architecture, scalar_head=scalar_head)
    layers = stage_layers(model.layers, columns.pipeline, "first")
    rank = rank_columns(model, columns, stage="first", layers=layers)
    return RankParameters(
        dense=float(rank.dense),
        experts=float(rank.experts),
        layer_unit=float(rank.layer_unit),
        end_unit=float(rank.end_unit),
        layers=int(layers),
    )


def zero_sharded(dense: Array, experts: Array, layouts: Layouts, *, since: int) -> Array:
    """Return the parameters that one rank owns of something that ZeRO shards from stage `since` on, per layout.

    dense / G + experts / max(1, G // EP) where zero >= since, else dense + experts; G is the sharding group, EP the
    expert-parallel degree: routed experts are replicated only G / EP times. Counts in parameters, not bytes.
    Source: Rajbhandari et al. 2020 (arXiv:1910.02054), section 5. Uneven shards are not rounded up.

    >>> from charter.spec.layout import ZeroStage
    >>> many = Layouts.of([Layout(data=64, zero=ZeroStage(stage)) for stage in (0, 1)])
    >>> zero_sharded(array(7.5e9), array(0.0), many, since=1).tolist()
    [7500000000.0, 117187500.0]
    """
    sharded = layouts.zero >= since
    expert_group = np.maximum(1.0, np.floor(layouts.shards / layouts.expert))
    return array(dense / np.where(sharded, layouts.shards, 1.0) + experts / np.where(sharded, expert_group, 1.0))


def frozen_parameters(architecture: Architecture, layouts: Layouts, *, scalar_head: bool = False) -> Array:
    """Return the parameters of a model that is never trained, on one rank of the first stage: sharded under ZeRO-3."""
    model = ModelColumns.of(architecture, scalar_head=scalar_head)
    rank = rank_columns(model, layouts, stage="first", layers=stage_layers(model.layers, layouts.pipeline, "first"))
    return zero_sharded(rank.dense, rank.experts, layouts, since=3)


def looked_up_parameters(architecture: Architecture, layouts: Layouts) -> Array:
    """Return the parameters of one rank that no product reads: embedding (a tied head in it), positions, norms.

    Charter's engine leaves them in fp32 in a frozen model without ZeRO, so that it computes the bits of the model that
    it was copied from (`charter.models.parallel.cast_frozen`).
    """
    count = count_parameters(architecture)
    return array((count.embedding + count.positions) / layouts.tensor + count.norms)


# -------- Memory shape of a training step besides the layout: one job, or many as arrays, ready for the formulas.


@dataclass(frozen=True, kw_only=True)
class MemoryShape:
    """The numbers of a job that the formulas need; arrays without dimensions, or one value per job."""

    model: ModelColumns
    hidden: Array
    vocabulary: Array
    seq_len: Array
    replicated: Array
    sharded: Array
    sharded_ring: Array
    """The same where context parallelism passes keys and values around, or exchanges positions for heads."""
    repeated_head: Array
    """Of one head more of keys and of values, which an exchange repeats where processes are more than heads."""
    kv_heads: Array
    scores: Array
    products_replicated: Array
    products_sharded: Array
    """0, both, where selective recomputation is that of attention's scores."""
    context_sharded: Array
    """Of `products_sharded`, what selective recomputation computes again: attention's output, where XLA compiles."""
    compiled: Array
    live_replicated: Array
    live_sharded: Array
    live_scores: Array
    backward_replicated: Array
    backward_sharded: Array
    encoder_bytes: Array
    keeps_scores: Array
    loss_bytes: Array
    loss_split: Array
    loss_share: Array
    loss_rows: Array
    loss_parts: Array
    loss_head: Array
    """Parameters of an output projection whose gradient the loss makes itself, in fp32."""
    loss_gradient: Array
    """Bytes of the gradient of the output projection that the loss makes beside its logits (Liger)."""
    loss_input: Array
    """Bytes per position of the gradient of its input that it makes, too; logits come in parts of a power of two."""
    loss_kept: Array
    """Logits whose probabilities are kept for the backward pass at most; 0 where the forward pass makes gradients."""
    parameter_bytes: Array
    gradient_bytes: Array
    optimizer_bytes: Array
    compute_bytes: Array
    adapter: Array
    adapter_parameters: Array
    embedding_bytes: Array
    """Of a frozen embedding beside adapters, where nothing is sharded."""
    trained_ends: Array
    """Share of an adapter's bytes per parameter: copies of embedding and head keep the model's type."""
    base_bytes: Array
    quantises_head: Array
    persistent_gradients: Array
    gradient_views: Array
    second_stage_shards_weights: Array
    ends_apart: Array
    autocasts: Array
    moments_visit: Array
    scalar: Array
    """1 where a scalar head takes the place of the output projection."""
    step_bytes: Array
    step_parameters: Array
    bucket_elements: Array
    alone_elements: Array
    whole_buckets: Array
    third_bucket_elements: Array
    reduces_tensors: Array
    starts_whole: Array
    live_parameters: Array
    ddp_buckets: Array
    low_buckets: Array
    stage_outputs: Array
    flat_step: Array
    norm_bytes: Array
    cast_bytes: Array
    gather_copies: Array
    idle: Array
    further_groups: Array
    all_kernels_bytes: Array
    low_gradients: Array
    low_gradients_stay: Array
    streamed_outputs: Array
    dequantised_copies: Array
    workspace: Array
    recompute_share: Array
    first_layers: Array
    last_layers: Array
    """0 where the split is even."""
    fp8_copies: Array
    """Bytes of 8-bit copies per parameter of a layer's matrices."""
    cpu: Array
    context_factor: Array
    reserved: Array
    context: Array
    source: str = field(default="", compare=False)

    @classmethod
    def of(cls, job: MemoryJob) -> MemoryShape:
        """The numbers of one job."""
        numbers = {**_layer_numbers(job), **loss_numbers(job), **_state_numbers(job), **_run_numbers(job)}
        columns: dict[str, Any] = {name: array(value) for name, value in numbers.items()}
        model = ModelColumns.of(job.architecture, scalar_head=job.head == "scalar")
        return cls(model=model, source=job.precision.source, **columns)

    @classmethod
    def stacked(cls, shapes: Sequence[MemoryShape]) -> MemoryShape:
        """Many jobs, one per configuration."""
        columns: dict[str, Any] = {
            item.name: array([getattr(one, item.name) for one in shapes])
            for item in fields(cls)
            if item.name not in ("model", "source")
        }
        return cls(model=stacked([one.model for one in shapes]), **columns)


def _layer_numbers(job: MemoryJob) -> dict[str, float]:
    """Return the bytes per token that the layers keep, and that the fullest of them holds while it runs."""
    a, value = job.architecture, job.precision.compute_bytes
    keeps, extra = _kept_matrices(job), _adapter_activations(job)
    kinds = [(_kind(job, kind), count) for kind, count in layer_mix(a)]
    layers = [(kept_by_layer(a, kind, keeps), count) for kind, count in kinds]
    exchange = job.profile.exchanges_heads
    rings = [(kept_by_layer(a, replace(kind, ring=not exchange, exchange=exchange), keeps), n) for kind, n in kinds]
    return {
        "hidden": a.hidden_size,
        "seq_len": job.seq_len,
        "replicated": _mean(layers, "replicated") + extra.replicated,
        "sharded": _mean(layers, "sharded") + extra.sharded,
        "sharded_ring": _mean(rings, "sharded") + extra.sharded,
        "repeated_head": exchange * 2 * value * a.head_size * a.attention_layers / a.num_layers,
        "kv_heads": a.kv_heads,
        "scores": _mean(layers, "scores"),
        "products_replicated": job.profile.keeps_products * _mean(layers, "products_replicated"),
        "products_sharded": job.profile.keeps_products * (_mean(layers, "products_sharded") + extra.products_sharded),
        "context_sharded": job.profile.compiled * sum(layer.context * count for layer, count in layers) / a.num_layers,
        "compiled": job.profile.compiled,
        "live_replicated": _largest(layers).replicated + extra.replicated,
        "live_sharded": _largest(layers).sharded + extra.sharded,
        "live_scores": max(activations.scores for activations, _ in layers),
        "backward_replicated": 2 * value * a.hidden_size,
        "backward_sharded": max(_backward(a, kind, frees=job.profile.moments_visit) for kind, _ in kinds),
        "encoder_bytes": _encoder_bytes(a.encoder, job) if a.encoder and job.adapter is None else 0.0,
        "keeps_scores": not job.fused_attention,
        "fp8_copies": job.fp8_copies,
        "recompute_share": job.recompute_share,
    }


def _state_numbers(job: MemoryJob) -> dict[str, float]:
    """Bytes per parameter, and what is trained where there are adapters."""
    precision, adapter = job.precision, job.adapter
    trains_ends = adapter is not None and adapter.trains_ends
    return {
        "parameter_bytes": precision.parameter_bytes,
        "gradient_bytes": precision.gradient_bytes,
        "optimizer_bytes": precision.optimizer_bytes,
        "compute_bytes": precision.compute_bytes,
        "adapter": adapter is not None,
        "adapter_parameters": _adapter_size(job.architecture, adapter) if adapter else 0.0,
        "trained_ends": min(1.0, precision.compute_bytes / precision.parameter_bytes) if trains_ends else 0.0,
        "base_bytes": adapter.base_bytes if adapter else 2.0,
        "embedding_bytes": precision.parameter_bytes if job.profile.autocast_adapters else 2.0,
        "quantises_head": adapter is not None and adapter.quantises_head,
    }


def _run_numbers(job: MemoryJob) -> dict[str, float]:
    """Return the bytes that the stack's code and the device add: buffers, temporaries of the step, the context."""
    profile, device = job.profile, job.accelerator
    return {
        "persistent_gradients": profile.persistent_gradients,
        "gradient_views": profile.gradient_views,
        "second_stage_shards_weights": profile.second_stage_shards_weights,
        "ends_apart": profile.ends_apart,
        "autocasts": profile.autocasts,
        "moments_visit": profile.moments_visit,
        "scalar": job.head == "scalar",
        "step_bytes": profile.step_bytes * _step_share(job),
        "step_parameters": profile.step_parameters,
        "bucket_elements": profile.bucket_elements,
        "alone_elements": profile.alone_elements,
        "whole_buckets": profile.whole_buckets,
        "third_bucket_elements": profile.third_bucket_elements,
        "reduces_tensors": profile.reduces_tensors,
        "starts_whole": profile.starts_whole,
        "live_parameters": np.inf if profile.gathers_stay_frozen and job.adapter else profile.live_parameters,
        "ddp_buckets": profile.ddp_buckets,
        "low_buckets": profile.low_buckets,
        "stage_outputs": profile.stage_outputs,
        "flat_step": profile.flat_step * job.idle,
        "norm_bytes": profile.norm_bytes,
        "cast_bytes": profile.cast_bytes * job.idle,
        "gather_copies": profile.gather_copies,
        "idle": job.idle,
        "further_groups": profile.further_groups,
        "all_kernels_bytes": ALL_KERNELS_BYTES * job.loads_all_kernels,
        "low_gradients": profile.low_gradients * (job.adapter is None),
        "low_gradients_stay": profile.low_gradients_stay,
        "streamed_outputs": profile.streamed_outputs * job.idle,
        "dequantised_copies": profile.dequantised_copies,
        "workspace": profile.workspace,
        "first_layers": (job.end_layers or (0, 0))[0],
        "last_layers": (job.end_layers or (0, 0))[1],
        "cpu": device is not None and device.kind == "cpu",
        "context_factor": context_factor(device.name) if device else 1.0,
        "reserved": job.reserved and not profile.compiled,
        "context": job.context and (device is None or device.kind != "tpu"),
    }


def _kind(job: MemoryJob, kind: LayerKind) -> LayerKind:
    kind = replace(kind, seq_len=job.seq_len, value_bytes=job.precision.compute_bytes, dropout=job.dropout)
    return replace(kind, implementation=job.profile.implementation, fp8=job.fp8)


EIGHT_BIT_MOMENTS = 2.5
"""Bytes per parameter of two 8-bit moments with their scales, at most."""


def _step_share(job: MemoryJob) -> float:
    """Temporaries of the optimizer step have the type of its moments: half as large where those have 16 bits, none
    where they have 8, since a kernel updates each tensor in place (bitsandbytes, `optimizer_update_8bit_blockwise`).

    Not with adapters: there the little that is trained was seen to take what fp32 moments would.
    """
    if job.precision.optimizer_bytes <= EIGHT_BIT_MOMENTS:
        return 0.0
    return min(1.0, job.precision.optimizer_bytes / 8) if job.adapter is None else 1.0


def _kept_matrices(job: MemoryJob) -> Matrices:
    """Groups of matrices whose inputs are kept."""
    adapter = job.adapter
    if adapter is None:
        return ALL_MATRICES
    if adapter.base_bytes < 2 and job.profile.quantised_keeps_inputs:
        return LINEAR | adapter.groups
    # A matrix that is frozen needs no input, and its adapter none but the dropped-out copy.
    return adapter.groups - LINEAR if adapter.dropout else adapter.groups


def _adapter_size(a: Architecture, adapter: AdapterUse) -> float:
    if adapter.trained is not None:
        return adapter.trained
    everywhere = float(adapter_parameters(a, Adapter(rank=adapter.rank)))
    if adapter.targets >= LINEAR:
        return everywhere
    width, keys = a.num_heads * a.head_size, a.kv_heads * a.head_size
    inner = a.intermediate_size if a.mixture is None else a.mixture.expert_intermediate_size
    sides = {
        "q": a.hidden_size + width,
        "v": a.hidden_size + keys,
        "k": a.hidden_size + keys,
        "out": a.hidden_size + width,
        "up": (1 + a.gated_mlp) * (a.hidden_size + inner),
        "down": a.hidden_size + inner,
    }
    groups = {"qkv": ("q", "v", "k")} | {name: (name,) for name in sides}
    chosen = {side for target in adapter.targets for side in groups.get(target, ())}
    return float(adapter.rank * a.num_layers * sum(sides[side] for side in chosen))


def _adapter_activations(job: MemoryJob) -> LayerActivations:
    """Return the activations that the adapters of one layer keep: narrow values, dropped-out inputs, scaled outputs."""
    a, adapter, value = job.architecture, job.adapter, job.precision.compute_bytes
    if adapter is None:
        return LayerActivations(replicated=0.0, sharded=0.0, scores=0.0, layer_input=0.0)
    joint = job.profile.implementation in ("megatron", "litgpt")
    width, inner = float(a.num_heads * a.head_size), float(a.intermediate_size)
    gates = 1 + a.gated_mlp
    inputs = {
        "qkv": a.hidden_size * (1.0 if joint else 3.0),
        "out": width,
        "up": a.hidden_size * (1.0 if joint else float(gates)),
        "down": inner,
    }
    outputs = {
        "qkv": width + 2 * a.kv_heads * a.head_size,
        "out": a.hidden_size,
        "up": gates * inner,
        "down": a.hidden_size,
    }
    chosen = [name for name in inputs if name in adapter.groups]
    shared = {"qkv": a.hidden_size, "up": a.hidden_size}
    further = sum(inputs[name] - shared.get(name, inputs[name]) for name in chosen)
    # Under autocast each adapter in 32 bits casts its own input; of a dropped-out copy that is the only one.
    own = job.profile.autocast_adapters
    casts = job.profile.autocasts and job.precision.parameter_bytes > value and not adapter.dropout
    copied = value * (own or casts) * (further + width * ("out" in chosen and not own))
    dropped = (value + 1) * adapter.dropout * sum(inputs[name] for name in chosen)
    scaled = value * adapter.scaled_outputs * sum(outputs.values())
    # Beside a joint projection of which a part is adapted, that part is copied into its whole (litgpt, `zero_pad`).
    padded = width * ("q" in adapter.targets) + a.kv_heads * a.head_size * len(adapter.targets & {"k", "v"})
    scaled += value * (joint * padded + width * adapter.prefixed)
    narrow = value * adapter.rank * len(chosen) * 1.5
    return LayerActivations(
        replicated=dropped + narrow + copied,
        sharded=scaled,
        scores=0.0,
        layer_input=0.0,
        products_sharded=value * sum(outputs[name] + adapter.rank for name in chosen),
    )


def _backward(a: Architecture, kind: LayerKind, *, frees: bool) -> float:
    """Gradients of the widest part of a layer while its backward pass runs: inner values of MLP, or of attention.

    Those of both inputs of a gated activation, and of its output; one where kernels overwrite the inputs. With `frees`
    the output itself, which the gradient of the down projection needed, counts as gone: seen in Charter's engine.
    """
    mixer = (2 * a.num_heads + 2 * a.kv_heads) * a.head_size if kind.mixer == "attention" else 0
    if kind.mixer == "state_space" and a.state_space:
        mixer = 3 * a.state_space.inner_size
    inner = a.intermediate_size if kind.mlp == "dense" else 0
    if kind.mlp == "experts" and a.mixture:
        inner = a.mixture.expert_intermediate_size * a.mixture.experts_per_token + a.mixture.shared_width
    gradients = 1 if kind.implementation == "triton" else 2 + a.gated_mlp - frees
    return kind.value_bytes * max(mixer, gradients * inner)


def _encoder_bytes(encoder: Encoder, job: MemoryJob) -> float:
    """Kept by a trained encoder per sequence (one picture each): the list of a plain layer, 16 h and 2 f per token."""
    e, inner = encoder, (4 if encoder.gated_mlp else 2) * encoder.intermediate_size
    return job.precision.compute_bytes * e.num_layers * e.tokens_per_sample * (8 * e.hidden_size + inner)


def _mean(layers: list[tuple[LayerActivations, float]], name: str) -> float:
    return sum(float(getattr(layer, name)) * count for layer, count in layers) / sum(count for _, count in layers)


def _largest(layers: list[tuple[LayerActivations, float]]) -> LayerActivations:
    return max((layer for layer, _ in layers), key=lambda kept: kept.replicated + kept.sharded)
