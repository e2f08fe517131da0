"""Matrix products of an architecture as columns, and the operations and bytes of a micro-batch of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache

import numpy as np

from charter.physics.columns import Array, array
from charter.physics.devices import DeviceColumns, shape_share
from charter.physics.flops import chunked_positions, indexer_width, score_width, windowed_positions
from charter.physics.shapes import (
    adapter_parameters,
    count_parameters,
    dense_mlp_layers,
    encoder_flops_per_sample,
    indexer_matrices,
    scan_flops_per_token,
    state_space_input_width,
)
from charter.physics.stacks import StepJob
from charter.spec.architecture import Architecture
from charter.spec.layout import Adapter

# -------- Architectures as columns: the matrix products of a forward pass, the values that cross memory, the scores.

SPLIT_COLUMNS, SPLIT_INNER, WHOLE = 0.0, 1.0, 2.0
"""How tensor parallelism divides a product (Shoeybi et al. 2019, section 3)."""
ATTENTION_PRODUCTS = 5
PRODUCTS = (
    *(f"attention {index}" for index in range(ATTENTION_PRODUCTS)),
    "dense up",
    "dense down",
    "shared up",
    "shared down",
    "state in",
    "state out",
    "expert up",
    "expert down",
    "head",
)
"""Kinds of matrix product, in the order of the first axis of `inner`, `columns`, `split` and `count`."""
PASSES_OF_A_BLOCK, PASSES_OF_THE_ENDS, PASSES_OF_A_COPY = 5.0, 4.0, 5.0
"""Times a value of width `hidden` is read or written: by a block (norm reads and writes, residual reads two and
writes), by embedding and last norm, and by permuting one copy of a token to its expert and back. A counting argument,
not measured."""
LONG = 1e9
"""Positions that no sequence has: a window or chunk that never cuts."""
DENSE_DOWN = 6
EXPERT_PRODUCTS = (11, 12)
HEAD_PRODUCT = 13


@dataclass(frozen=True, kw_only=True)
class ProductColumns:
    """Model as the time of a step sees it; fields broadcast against the layouts.

    Products have a first axis over `PRODUCTS`; all other fields have the axis of the cases only, or none.
    """

    inner: Array
    columns: Array
    split: Array
    count: Array
    """How often the product occurs in the model (once per layer that has it)."""
    hidden: Array
    layers: Array
    heads: Array
    head_size: Array
    score_width: Array
    kv_width: Array
    attention_layers: Array
    full_layers: Array
    window: Array
    window_layers: Array
    chunk: Array
    chunk_layers: Array
    moe_layers: Array
    experts: Array
    experts_per_token: Array
    vocabulary: Array
    scan_flops: Array
    """Of all recurrent layers, per token, forward."""
    indexer_layers: Array
    indexer_width: Array
    """Columns that meet per query and position in one indexer."""
    indexer_flops: Array
    """Projections of all indexers, per token, forward."""
    hidden_passes: Array
    """Values of width `hidden` that fused memory-bound kernels read or write per token, forward, all layers."""
    inner_values: Array
    """The same for what tensor parallelism divides: rotary, activation functions, recurrent mixers."""
    routed_values: Array
    """The same for permuting tokens to experts and back, and for the experts' activation function."""
    parameters: Array
    expert_parameters: Array
    end_parameters: Array
    """Embedding and output projection."""
    trained_share: Array
    """Parameters that one unit of LoRA rank trains."""
    adapted_matrices: Array
    adapted_values: Array
    """Sum of inputs and outputs over all adapted matrices (of the experts one token passes)."""
    reduced_blocks: Array
    """Mixers and MLPs: each ends in an all-reduce under tensor parallelism."""
    encoder_flops: Array
    """Of one sample's forward pass through the encoder in front."""

    @classmethod
    def of(cls, architecture: Architecture, *, mtp: bool = False) -> ProductColumns:
        """One architecture; columns without dimensions but for the products' axis."""
        return _columns(architecture, mtp)

    @classmethod
    def stack(cls, models: Sequence[ProductColumns]) -> ProductColumns:
        """One entry per case on the last axis."""
        return cls(
            **{item.name: np.stack([getattr(one, item.name) for one in models], axis=-1) for item in fields(cls)}
        )

    def attended(self, seq: Array) -> Array:
        """Positions that one query attends to on average, summed over layers (see `flops.attended_positions`)."""
        windowed = windowed_positions(seq, array(np.minimum(self.window, seq)))
        chunked = chunked_positions(seq, self.chunk)
        return array(self.full_layers * seq / 2 + self.window_layers * windowed + self.chunk_layers * chunked)


@lru_cache(maxsize=512)
def _columns(a: Architecture, mtp: bool) -> ProductColumns:
    layers = _Layers.of(a, a.num_mtp_layers if mtp else 0)
    count = count_parameters(a, mtp=mtp)
    scalars = {
        "hidden": a.hidden_size,
        "layers": a.num_layers + layers.extra,
        "vocabulary": a.vocab_size,
        "hidden_passes": PASSES_OF_A_BLOCK * layers.blocks * a.hidden_size + PASSES_OF_THE_ENDS * a.hidden_size,
        "inner_values": _inner_values(a, layers),
        "scan_flops": a.state_space_layers * scan_flops_per_token(a.state_space, LONG) if a.state_space else 0.0,
        "indexer_layers": a.indexer_layers,
        "indexer_width": indexer_width(a),
        "indexer_flops": 2.0 * a.indexer_layers * indexer_matrices(a),
        "parameters": count.total,
        "expert_parameters": count.experts,
        "end_parameters": count.embedding + count.head,
        "reduced_blocks": layers.blocks,
        "encoder_flops": encoder_flops_per_sample(a.encoder) if a.encoder else 0.0,
        **_attention_columns(a, layers),
        **_mixture_columns(a, layers),
        **_adapter_columns(a, layers),
    }
    products = _products(a, layers)
    shapes = {name: array([product[index] for product in products]) for index, name in enumerate(_SHAPE)}
    return ProductColumns(**shapes, **{name: array(value) for name, value in scalars.items()})


@dataclass(frozen=True, kw_only=True)
class _Layers:
    """Numbers of layers that have each part, those for multi-token prediction included."""

    attention: int
    dense: int
    moe: int
    extra: int
    blocks: int
    """Mixers, MLPs and mixtures; a dense MLP beside experts is no block of its own."""

    @classmethod
    def of(cls, a: Architecture, extra: int) -> _Layers:
        """Count the layers of an architecture."""
        moe, dense = a.moe_layers + (extra if a.mixture else 0), dense_mlp_layers(a) + (0 if a.mixture else extra)
        beside = bool(a.mixture and a.mixture.dense_residual)
        blocks = a.attention_layers + extra + a.state_space_layers + dense + (0 if beside else moe)
        return cls(attention=a.attention_layers + extra, dense=dense, moe=moe, extra=extra, blocks=blocks)


def _inner_values(a: Architecture, layers: _Layers) -> float:
    """Rotary and projections' outputs, activation functions (read once or twice, written), recurrent mixers."""
    passed = _activation_passes(a)
    values = 3.0 * layers.attention * (a.num_heads + 2 * a.kv_heads) * a.head_size
    values += passed * layers.dense * a.intermediate_size
    if a.mixture:
        values += passed * layers.moe * a.mixture.shared_width
    if a.state_space:
        values += a.state_space_layers * (6.0 * a.state_space.inner_size + 3.0 * a.state_space.conv_channels)
    return values


def _activation_passes(a: Architecture) -> int:
    """Gate and up read and their product written; or one read and one written."""
    return 3 if a.gated_mlp else 2


def _attention_columns(a: Architecture, layers: _Layers) -> dict[str, float]:
    windowed, window = (a.sliding_window_layers if a.sliding_window else 0), a.sliding_window
    if a.sparse_indexer:
        windowed, window = layers.attention, a.sparse_indexer.top_k
    chunked = a.chunked_layers if a.attention_chunk else 0
    return {
        "heads": a.num_heads,
        "head_size": a.latent_attention.v_head_dim if a.latent_attention else a.head_size,
        "score_width": score_width(a),
        "kv_width": _key_value_width(a),
        "attention_layers": layers.attention,
        "full_layers": layers.attention - windowed - chunked,
        "window": window or LONG,
        "window_layers": windowed,
        "chunk": a.attention_chunk or LONG,
        "chunk_layers": chunked,
    }


def _mixture_columns(a: Architecture, layers: _Layers) -> dict[str, float]:
    """Permuting writes and reads a token's copies twice; their activation function is that of each expert."""
    mixture = a.mixture
    active, width = (mixture.experts_per_token, mixture.expert_intermediate_size) if mixture else (0, 0)
    each = PASSES_OF_A_COPY * a.hidden_size + (_activation_passes(a) + 1) * width
    return {
        "moe_layers": layers.moe,
        "experts": mixture.num_experts if mixture else 1,
        "experts_per_token": active,
        "routed_values": layers.moe * active * each,
    }


def _adapter_columns(a: Architecture, layers: _Layers) -> dict[str, float]:
    """LoRA on every matrix; of the experts, a token passes only those it is routed to."""
    mixture, matrices = a.mixture, 2 + a.gated_mlp
    adapted = layers.attention * (5 if a.latent_attention else 4) + layers.dense * matrices
    adapted += layers.moe * matrices * (1 + bool(mixture and mixture.shared_width)) + 2 * a.state_space_layers
    trained = float(adapter_parameters(a, Adapter(rank=1)))
    passed = trained
    if mixture:
        sides = matrices * ((mixture.expert_hidden_size or a.hidden_size) + mixture.expert_intermediate_size)
        passed -= a.moe_layers * sides * (mixture.num_experts - mixture.experts_per_token)
    return {"trained_share": trained, "adapted_matrices": adapted, "adapted_values": passed}


_SHAPE = ("inner", "columns", "split", "count")
_NO_PRODUCT = (64.0, 64.0, WHOLE, 0.0)


def _products(a: Architecture, layers: _Layers) -> list[tuple[float, ...]]:
    """Inner side, columns, split and count of every kind of product."""
    h, up, dense, moe = a.hidden_size, 1 + a.gated_mlp, layers.dense, layers.moe
    products: list[tuple[float, ...]] = _attention_products(a, layers.attention)
    products += [(h, up * a.intermediate_size, SPLIT_COLUMNS, dense), (a.intermediate_size, h, SPLIT_INNER, dense)]
    mixture, space = a.mixture, a.state_space
    shared = mixture.shared_width if mixture else 0
    products += [(h, up * shared, SPLIT_COLUMNS, moe), (shared, h, SPLIT_INNER, moe)] if shared else [_NO_PRODUCT] * 2
    if space:
        products += [(h, state_space_input_width(space), SPLIT_COLUMNS, a.state_space_layers)]
        products += [(space.inner_size, h, SPLIT_INNER, a.state_space_layers)]
    else:
        products += [_NO_PRODUCT] * 2
    if mixture:
        outer, width = mixture.expert_hidden_size or h, mixture.expert_intermediate_size
        products += [(outer, up * width, WHOLE, moe), (width, outer, WHOLE, moe)]
    else:
        products += [_NO_PRODUCT] * 2
    return [*products, (a.embedding_width, a.vocab_size, SPLIT_COLUMNS, 1 + layers.extra)]


def _attention_products(a: Architecture, layers: int) -> list[tuple[float, ...]]:
    latent, h = a.latent_attention, a.hidden_size
    if latent is None:
        query, key = a.num_heads * a.head_size, a.kv_heads * a.head_size
        width = query * (1 + a.attention_gate) + 2 * key
        own = ((h, width, SPLIT_COLUMNS, layers), (query, h, SPLIT_INNER, layers))
        return [*own, *[_NO_PRODUCT] * (ATTENTION_PRODUCTS - 2)]
    width = a.num_heads * (latent.qk_nope_head_dim + latent.qk_rope_head_dim)
    up = a.num_heads * (latent.qk_nope_head_dim + latent.v_head_dim)
    rank = latent.q_lora_rank
    query_products: list[tuple[float, ...]] = [(h, width, SPLIT_COLUMNS, layers), _NO_PRODUCT]
    if rank:
        query_products = [(h, rank, WHOLE, layers), (rank, width, SPLIT_COLUMNS, layers)]
    return [
        *query_products,
        (h, latent.kv_lora_rank + latent.qk_rope_head_dim, WHOLE, layers),
        (latent.kv_lora_rank, up, SPLIT_COLUMNS, layers),
        (a.num_heads * latent.v_head_dim, h, SPLIT_INNER, layers),
    ]


def _key_value_width(a: Architecture) -> float:
    latent = a.latent_attention
    if latent:
        return float(latent.kv_lora_rank + latent.qk_rope_head_dim)
    return 2.0 * a.kv_heads * a.head_size


# -------- Matrix products of a micro-batch: operations weighted by what their shape reaches, bytes, bytes of casts.

EXPERT_KINDS, HEAD_KINDS = EXPERT_PRODUCTS, (HEAD_PRODUCT,)
DENSE_KINDS = tuple(kind for kind in range(len(PRODUCTS)) if kind not in (*EXPERT_KINDS, *HEAD_KINDS))
CAST_BYTES, BLOCK_CAST_BYTES = 3.0, 2.0
"""Per value that is quantised: 16 bits read, 8 written; with a scale per block a second copy along the other side."""

FROZEN_CASTS_SAVED = 1 / 3
"""Of the casts, where no weight gradient reads them: one operand of three."""


def product_work(
    m: ProductColumns, device: DeviceColumns, job: StepJob, kinds: tuple[int, ...], tokens: Array
) -> tuple[Array, Array, Array]:
    """Weighted operations and bytes of kinds of product, each for its three passes; bytes of a third of the casts.

    A product of n rows, K inner and N columns is followed by its input gradient (n x K out of N) and its weight
    gradient (K x N out of n), which a frozen base does not need. Weights are cast once per step, activations and
    gradients at every product.
    """
    at, flops, moved, casts = job.layouts, [], [], array(0.0)
    frozen = job.frozen * (1.0 - job.trains_ends) if kinds == HEAD_KINDS else job.frozen
    passes = (array(1.0), array(1.0), 1.0 - frozen)
    low_rate = np.where(job.bits <= 4, device.rate_4, device.rate_8)
    short = array(device.short_inner * np.where(job.bits < 16, low_rate / device.rate_16, 1.0))
    rows_all = np.maximum(tokens, 1.0)
    for kind in kinds:
        count = m.count[kind]
        if not np.any(count):
            continue
        inner = m.inner[kind] / np.where(m.split[kind] == SPLIT_INNER, at.tensor, 1.0)
        columns = m.columns[kind] / np.where(m.split[kind] == SPLIT_COLUMNS, at.tensor, 1.0)
        rows, groups, units = rows_all, array(1.0), device.multiprocessors
        if kind in EXPERT_KINDS:
            groups = np.maximum(1.0, m.experts / at.expert)
            rows = np.maximum(tokens * m.experts_per_token / at.tensor / groups, 1.0)
            units = np.maximum(1.0, units / groups)
        times = count * groups * (tokens > 0)
        shapes = ((rows, columns, inner), (rows, inner, columns), (inner, columns, rows))
        for share, (tall, wide, deep) in zip(passes, shapes, strict=True):
            reach = shape_share(tall, wide, deep, units, short)
            flops.append(2.0 * tall * wide * deep * times * share / np.maximum(reach, 1e-3))
            moved.append(job.value_bytes * (tall * wide + tall * deep + wide * deep) * times * share)
        casts = casts + times * (rows * (inner + 2 * columns) / 3 + columns * inner / at.accumulation)
    if not flops:
        flops, moved = [np.zeros_like(tokens)] * 3, [np.zeros_like(tokens)] * 3
    bytes_each = np.where(job.bits < 16, CAST_BYTES + BLOCK_CAST_BYTES * job.block_scaled, 0.0)
    needed = 1 - job.frozen * FROZEN_CASTS_SAVED
    return _stacked(flops), _stacked(moved), array(bytes_each * needed * casts)


def _stacked(table: list[Array]) -> Array:
    shape = np.broadcast_shapes(*(each.shape for each in table))
    return array(np.stack([np.broadcast_to(each, shape) for each in table]))
