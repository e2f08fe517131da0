"""Seconds of forward passes that generate or score text: the served model, and a roofline per part of a pass."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from charter.physics.columns import Array, array
from charter.physics.constants import ServingConstants
from charter.physics.flops import indexer_width, kv_cache_bytes_per_token, score_width, windowed_positions
from charter.physics.serving_devices import ServingDevice
from charter.physics.shapes import count_parameters, expert_parameters, recurrent_state_bytes, scan_flops_per_token
from charter.physics.terms import TermColumn, TermTable
from charter.spec.architecture import Architecture

# -------- Architecture as generation sees it: numbers that broadcast over configurations.

LINEAR_LAYERS_ATTENTION, JOINED_ATTENTION, LINEAR_LAYERS_EXPERT = 4, 2, 3
"""Matrices of a decoder layer that a quantiser wraps: query, key, value, output, or the first three in one; gate, up,
down."""


@dataclass(frozen=True, kw_only=True)
class ServingModel:
    """Weights, cache and operations of one architecture, or one column per configuration."""

    layers: Array
    hidden: Array
    passed_weights: Array
    """Weights that every token passes in the layers: all but routed experts, embedding and output projection."""
    one_expert: Array
    """Weights of one routed expert of every layer together."""
    expert_width: Array
    experts: Array
    active_experts: Array
    moe_layers: Array
    mlp_matrices: Array
    """Of one dense layer: 3 where it is gated, else 2."""
    head_weights: Array
    """Of the output projection, tied or not."""
    attention_layers: Array
    cache_values: Array
    """Values kept per token in one layer with attention, before tensor parallelism."""
    cache_splits: Array
    """How many ranks can share them: key/value heads; 1 with latent attention."""
    windowed_layers: Array
    window: Array
    index_values: Array
    """Keys of the indexers per token, all layers: the rest of the cache is read where they say."""
    index_width: Array
    """Columns that meet per query and position in the indexers, all layers."""
    score_width: Array
    """Columns that meet per query and position, over all layers' average: prefill."""
    decode_score_width: Array
    """The same in decode, where latent attention works on the compressed cache."""
    head_repeats: Array
    """Query heads per key/value head."""
    query_heads: Array
    """Heads that meet the same cached values in decode: those of a key/value head, or all with latent attention."""
    state_bytes: Array
    """Recurrent state of a sequence, all layers."""
    scan_flops: Array
    """Recurrence per token, all layers."""

    @classmethod
    def of(cls, architecture: Architecture) -> ServingModel:
        """The columns of one architecture, without dimensions.

        >>> from charter.catalog import models
        >>> llama = ServingModel.of(models.get("Llama-3.1-8B").architecture)
        >>> round(float(llama.passed_weights) / 1e9, 2), float(llama.cache_values * llama.attention_layers)
        (6.98, 65536.0)
        """
        return _served(architecture)

    def experts_reached(self, tokens: Array) -> Array:
        """Expected routed experts of a layer that get at least one of `tokens` tokens: `E (1 - (1 - k / E)^n)`.

        Assumes that routing is even and independent, so it is an upper bound on the experts reached.
        """
        share = np.where(self.experts > 0, self.active_experts / np.maximum(self.experts, 1.0), 0.0)
        return array(self.experts * -np.expm1(np.maximum(tokens, 0.0) * np.log1p(-np.minimum(share, 1 - 1e-12))))

    def attended(self, context: Array) -> Array:
        """Positions a token attends to after `context` others, summed over layers."""
        inside = np.minimum(context, self.window)
        return array((self.attention_layers - self.windowed_layers) * context + self.windowed_layers * inside)

    def attended_causal(self, length: Array) -> Array:
        """Mean over the tokens of a sequence of `length`, summed over layers: `s / 2`, or `w - w^2 / (2 s)`."""
        inside = windowed_positions(array(np.maximum(length, 1.0)), array(np.minimum(self.window, length)))
        return array((self.attention_layers - self.windowed_layers) * length / 2 + self.windowed_layers * inside)

    def cached_values(self, context: Array, tensor: Array) -> Array:
        """Values of keys and values that one rank reads for a sequence of `context` tokens."""
        attended = self.cache_values / np.minimum(tensor, self.cache_splits) * self.attended(context)
        return array(attended + self.index_values * context)


@lru_cache(maxsize=512)
def _served(a: Architecture) -> ServingModel:
    count, mixture, latent = count_parameters(a), a.mixture, a.latent_attention
    layers = max(a.attention_layers, 1)
    indexer = a.sparse_indexer
    index_values = a.indexer_layers * indexer.head_dim if indexer else 0
    cached = kv_cache_bytes_per_token(a, bytes_per_value=1.0) - index_values
    values = cached / layers if a.attention_layers else 0.0
    windowed, window = _windows(a)
    decode_width = a.num_heads * (2 * latent.kv_lora_rank + latent.qk_rope_head_dim) if latent else score_width(a)
    head = a.vocab_size * a.embedding_width
    passed = count.total - count.experts - count.embedding - count.positions - count.head
    columns = {
        "layers": a.num_layers,
        "hidden": a.hidden_size,
        "passed_weights": passed,
        "one_expert": a.moe_layers * expert_parameters(a),
        "expert_width": mixture.expert_intermediate_size if mixture else 0,
        "experts": mixture.num_experts if mixture else 0,
        "active_experts": mixture.experts_per_token if mixture else 0,
        "moe_layers": a.moe_layers,
        "mlp_matrices": 2 + a.gated_mlp,
        "head_weights": head,
        "attention_layers": a.attention_layers,
        "cache_values": values,
        "cache_splits": 1 if latent else a.kv_heads,
        "index_values": index_values,
        "index_width": a.indexer_layers * indexer_width(a),
        "windowed_layers": windowed,
        "window": window,
        "score_width": score_width(a),
        "decode_score_width": decode_width,
        "head_repeats": 1 if latent else a.num_heads / a.kv_heads,
        "query_heads": a.num_heads / (1 if latent else a.kv_heads),
        "state_bytes": recurrent_state_bytes(a) if a.state_space else 0.0,
        "scan_flops": a.state_space_layers * scan_flops_per_token(a.state_space, 1024) if a.state_space else 0.0,
    }
    return ServingModel(**{name: array(value) for name, value in columns.items()})


def _windows(a: Architecture) -> tuple[int, float]:
    """Layers that see a window, a choice or a chunk, and how many positions; a chunk is half full on average."""
    if a.sparse_indexer:
        return a.attention_layers, float(a.sparse_indexer.top_k)
    if a.sliding_window and a.sliding_window_layers:
        return a.sliding_window_layers, float(a.sliding_window)
    if a.attention_chunk and a.chunked_layers:
        return a.chunked_layers, float(a.attention_chunk)
    return 0, 1e30


# -------- Seconds of forward passes that generate or score text, for many configurations at once: a roofline per part.
#
# A pass reads every weight it reaches once, multiplies, meets the cached keys and values, moves activations, reduces
# twice per layer over the tensor-parallel group, and is issued by the host. Decode is the same pass with one token per
# sequence. Sources: Williams et al. 2009 (roofline); Chen 2022 ("Transformer inference arithmetic"); Pope et al. 2022
# (arXiv:2211.05102). Not modelled: speculative decoding, expert imbalance, preemption when the cache is full.

OVERLAP_NORM = 4.0
"""Reading and multiplying overlap: `(a^4 + b^4)^(1/4)`, 19 % above the larger one where both are equal (judgement)."""
FEW_ROWS = 0.25
"""Rows of a product with warp-level instructions, over those of a warp group's: 16 (`mma.m16n8k16`, CUDA PTX ISA)."""
GROUPED_TILE = 0.25
"""Rows that a grouped kernel of 16-bit experts pads to, over those of a plain product: 16, the fewest of a product in
Triton, which vLLM's and SGLang's fused experts take where there are fewer tokens than experts (`get_default_config`);
block-scaled 8-bit experts take 64."""
EXPERT_MOVES = 4.0
"""Times a routed token's features are read or written per expert: gathered, given back, weighted, summed (count)."""
GRAPH_KERNELS, REDUCED_PRODUCTS = 12, 4
"""Kernels of a layer in a captured graph, and products of them that, where weights are expanded, end in adding the
partial sums of a column from one multiprocessor to the next (Marlin's stripes, arXiv:2408.11743), which takes about as
long as a kernel's gap (judgement): query, key and value together, output, gate and up together, down."""
CONCATENATED = 3.0
"""Times that an eager engine moves the cache before its heads are repeated: read and written to append a token, read to
be repeated (transformers: `DynamicCache.update`, `repeat_kv`)."""
SEND_SECONDS = 20e-6
ROOFLINE = "roofline: Williams et al. 2009; Chen 2022"


@dataclass(frozen=True, kw_only=True)
class Issue:
    """Way in which work is issued: columns of `Engine`."""

    eager: Array
    overlapped: Array
    repeats_heads: Array
    joins_projections: Array
    cache_passes: Array
    layer_slowness: Array
    step_slowness: Array
    token_slowness: Array
    tile_share: Array
    mixed: Array


@dataclass(frozen=True, kw_only=True)
class Pass:
    """One forward pass: `sequences` sequences that each bring `tokens` new tokens after `before` cached ones."""

    sequences: Array
    tokens: Array
    before: Array
    logits: Array
    """Positions whose logits are computed, per sequence."""
    decode: bool
    """One token per sequence from a captured graph; else a prefill or a scoring pass."""
    joined: Array = field(default_factory=lambda: array(0.0))
    """Prompts, per sequence, that an engine reads in the same pass as it decodes."""
    joined_tokens: Array = field(default_factory=lambda: array(0.0))
    """Tokens of such a prompt."""


def pass_terms(
    model: ServingModel, group: ServingDevice, issue: Issue, work: Pass, constants: ServingConstants
) -> TermTable:
    """Seconds until all `sequences` have gone through all pipeline stages once, term by term.

    With p stages and at least p sequences the stages work on different micro-batches, so a round of all sequences
    takes p times the stage time of a p-th of them. In eager mode stages take turns (transformers' `device_map`).
    """
    streams = np.where(issue.eager > 0, 1.0, np.maximum(np.minimum(group.pipeline, work.sequences), 1.0))
    rows = work.sequences * (work.tokens + work.joined * work.joined_tokens) / streams
    rounds = group.pipeline * (1 + constants.stage_stall * (group.pipeline - 1))
    weights = _weights(model, group, issue, rows, work.sequences * work.logits / streams, constants)
    keys = _keys(model, group, issue, work, work.sequences / streams, constants)
    prompts = Pass(
        sequences=work.sequences, tokens=work.joined_tokens, before=array(0.0), logits=array(0.0), decode=False
    )
    keys = keys + _keys(model, group, issue, prompts, work.sequences * work.joined / streams, constants)
    routed = model.moe_layers * model.active_experts * (EXPERT_MOVES * model.hidden + 3.0 * model.expert_width)
    moves = model.layers * model.hidden * constants.activation_values + routed
    moved = 2.0 * rows * moves / group.pipeline * (0.5 + 0.5 / group.tensor)
    values = moved / (group.memory_bytes_per_second * constants.stream_share)
    reduce = _reduce(model, group, rows, constants) / group.pipeline
    send = np.where(group.pipeline > 1, SEND_SECONDS + rows * model.hidden * 4.0 / group.send_bytes_per_second, 0.0)
    busy = weights + keys + values + reduce + send
    gaps, host = _host(model, group, issue, work, streams, constants)
    hides = np.where(issue.eager > 0, group.synchronises <= 0, (issue.overlapped > 0) & (group.pipeline <= 1))
    waits = gaps + np.where(hides, _overlapped(host, busy + gaps) - busy - gaps, host)
    part = "decode" if work.decode else "prefill"
    rows_of_terms = (
        ("weights", part, weights, "max(weight bytes / bandwidth, 2 weights rows / matrix rate)", ROOFLINE),
        ("keys and values", part, keys, "max(cache bytes / bandwidth, score operations / attention rate)", ROOFLINE),
        (
            "activations",
            part,
            values,
            "24 values x features x layers x rows x 2 B / bandwidth, and 4 per routed expert",
            "count of moves",
        ),
        ("tensor parallel", "communication", reduce, "2 all-reduces per layer", "Shoeybi et al. 2019"),
        ("pipeline", "communication", send, "one send per stage", "Narayanan et al. 2021"),
        ("issue", "launch", waits, "layers x host time of a layer + step + sequences x host time", "judgement"),
    )
    columns = tuple(
        TermColumn(
            name=f"{part}, {name}",
            part=group_name,
            values=array(value * rounds * constants.unmodelled),
            unit="seconds",
            formula=formula,
            source=source,
        )
        for name, group_name, value, formula, source in rows_of_terms
    )
    return TermTable(columns=columns)


def _weights(
    model: ServingModel, group: ServingDevice, issue: Issue, rows: Array, logits: Array, constants: ServingConstants
) -> Array:
    """Matrix products of one stage: dense part, reached experts, output projection."""
    ranks = group.tensor * group.pipeline
    stream = group.memory_bytes_per_second * constants.stream_share
    rate = group.matmul_flops * constants.matmul_share * np.where(group.narrow > 0, constants.narrow_share, 1.0)
    rate = rate * group.expanded_share
    most = constants.tile_rows * issue.tile_share
    tile = most * np.where(group.few_rows > 0, FEW_ROWS, 1.0)
    dense = _overlapped(
        model.passed_weights * group.bytes_per_weight / stream, 2 * model.passed_weights * np.maximum(rows, tile) / rate
    )
    reached = model.experts_reached(rows)
    grouped = most * np.where((group.sixteen > 0) | (group.weight_only > 0), GROUPED_TILE, 1.0)
    padded = np.maximum(rows * model.active_experts, reached * grouped)
    experts = _overlapped(
        model.one_expert * reached * group.bytes_per_weight / stream,
        2 * model.one_expert * padded / (rate * constants.expert_share),
    )
    half = group.half_flops * constants.matmul_share
    head = np.where(
        logits > 0,
        _overlapped(
            model.head_weights * group.head_bytes / stream, 2 * model.head_weights * np.maximum(logits, tile) / half
        ),
        0.0,
    )
    return array((dense + experts + head) / ranks)


def _overlapped(first: Array, second: Array) -> Array:
    return array((first**OVERLAP_NORM + second**OVERLAP_NORM) ** (1 / OVERLAP_NORM))


def _keys(
    model: ServingModel,
    group: ServingDevice,
    issue: Issue,
    work: Pass,
    sequences: Array,
    constants: ServingConstants,
) -> Array:
    """Attention of one stage: the cache is read once per sequence, and every new token meets it."""
    own = model.attended_causal(work.tokens) if not work.decode else array(0.0)
    met = (model.attended(work.before) + own) * work.tokens * sequences
    width = model.decode_score_width if work.decode else model.score_width
    visible = (work.before + (array(0.0) if work.decode else work.tokens / 2)) * work.tokens * sequences
    if work.decode:
        empty = np.maximum(1.0, group.attention_rows * issue.tile_share / model.query_heads)
        met = met * np.where(issue.repeats_heads > 0, 1.0, empty)
    flops = 2.0 * width * met + 2.0 * group.cache_ranks * model.index_width * visible
    flops = flops + model.scan_flops * work.tokens * sequences
    apart = group.tensor / group.cache_ranks
    cached = model.cached_values(work.before + work.tokens, group.cache_ranks) / apart * group.cache_bytes
    repeats = constants.cache_passes * model.head_repeats + CONCATENATED
    passes = np.where(issue.repeats_heads > 0, repeats, issue.cache_passes) if work.decode else 1.0
    moved = sequences * (cached * passes + 2 * model.state_bytes / group.tensor)
    reading = moved / (group.memory_bytes_per_second * constants.cache_share)
    computing = flops / group.tensor / (group.attention_flops * constants.attention_share)
    return array(_overlapped(reading, computing) / group.pipeline)


def _reduce(model: ServingModel, group: ServingDevice, rows: Array, constants: ServingConstants) -> Array:
    """Two all-reduces per layer; where attention is data-parallel, tokens go to their experts and come back."""
    ranks = group.tensor
    copies = np.where(group.cache_ranks < ranks, np.minimum(np.maximum(model.active_experts, 1.0), ranks), 2 * ranks)
    traffic = copies * (ranks - 1) / ranks**2 * rows * model.hidden * 2.0 / group.link_bytes_per_second
    one = constants.reduce_seconds * group.link_latency * (1 + 0.1 * np.log2(ranks)) + traffic
    return array(np.where(ranks > 1, 2 * model.layers * one, 0.0))


def _host(
    model: ServingModel,
    group: ServingDevice,
    issue: Issue,
    work: Pass,
    streams: Array,
    constants: ServingConstants,
) -> tuple[Array, Array]:
    """Gaps between kernels of a captured graph, and host time, of one micro-batch on one stage.

    What the host does once per sequence is not split over stages.
    """
    layers = model.layers / group.pipeline
    projections = np.where(issue.joins_projections > 0, JOINED_ATTENTION, LINEAR_LAYERS_ATTENTION)
    linears = model.attention_layers * projections + (model.layers - model.moe_layers) * model.mlp_matrices
    linears = linears + model.moe_layers * model.experts * LINEAR_LAYERS_EXPERT
    eager = layers * constants.eager_layer_seconds * issue.layer_slowness
    eager = eager + model.moe_layers * model.experts / group.pipeline * constants.eager_expert_seconds
    eager = eager + linears / group.pipeline * group.python_share * constants.quantised_linear_seconds
    eager = eager * group.host_slowness
    kernels = 1.0 + np.where(group.weight_only > 0, REDUCED_PRODUCTS / GRAPH_KERNELS, 0.0)
    graph = layers * constants.graph_layer_seconds * issue.layer_slowness * kernels
    step = constants.step_seconds * issue.step_slowness * group.host_slowness
    tokens = work.sequences / streams * constants.token_seconds * issue.token_slowness * group.host_slowness
    per_token = tokens if work.decode else array(0.0)
    is_eager = issue.eager > 0
    return array(np.where(is_eager, 0.0, graph)), array(np.where(is_eager, eager, step + per_token))
