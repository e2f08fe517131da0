"""Operations of a pass through an architecture, and the bytes that generation keeps of a sequence."""

from dataclasses import dataclass
from typing import TypeVar

from charter.physics.columns import Array
from charter.physics.shapes import (
    attention_parameters,
    count_parameters,
    dense_mlp_layers,
    embedding_projection,
    expert_parameters,
    indexer_matrices,
    mlp_parameters,
    recurrent_state_bytes,
    router_parameters,
    scan_flops_per_token,
    shared_expert_parameters,
    state_space_matrices,
)
from charter.spec.architecture import Architecture

# -------- Floating-point operations of a forward and of a training pass, and the usual short forms.
#
# A multiply and an add are two operations. Conventions differ between sources by up to 33 %: whether recomputation,
# the causal mask, the output projection or the embedding count. Here: no embedding look-up, output projection
# counted, attention scores over the positions that are really attended, recomputation only in `train.meter`.


@dataclass(frozen=True, kw_only=True)
class ForwardFlops:
    """Operations of one token's forward pass, by part."""

    projections: float
    """Query, key, value and output projections of all layers; in and out projections of recurrent mixers."""
    scores: float
    """Query-key products and the weighted sum of values, all layers."""
    mlp: float
    """Dense MLPs, the experts a token passes through, and routers."""
    head: float
    """Output projection onto the vocabulary."""
    recurrence: float = 0.0
    """Short convolutions and scans of recurrent mixers."""
    indexing: float = 0.0
    """Choice of the positions that sparse attention sees: no gradient passes through it."""

    @property
    def mixing(self) -> float:
        """Return the operations across positions that have no weight matrix: attention scores and recurrences."""
        return self.scores + self.recurrence

    @property
    def total(self) -> float:
        """All parts."""
        return self.projections + self.scores + self.mlp + self.head + self.recurrence + self.indexing


def forward_flops_per_token(architecture: Architecture, seq_len: float, *, head_share: float = 1.0) -> ForwardFlops:
    """Operations per token of a forward pass over sequences of `seq_len`.

    Two per parameter of every matrix, plus `4 * layers * heads * head_dim * attended positions` and the scans of
    recurrent layers; `head_share` is the share of positions whose logits are computed (0 for a model with a scalar
    head). Biases, norms and softmax are left out (below 1 %), the encoder (`encoder.encoder_flops_per_sample`) and
    the layers for multi-token prediction too.
    Source: PaLM (arXiv:2204.02311), appendix B; Korthikanti et al. 2022, appendix A.

    >>> from charter.catalog import models
    >>> llama3_70b = models.get("Llama-3-70B").architecture
    >>> round(3 * forward_flops_per_token(llama3_70b, 8192).total / 1e9, 1)
    449.2
    """
    a = architecture
    projections = float(a.attention_layers * attention_parameters(a))
    recurrence = 0.0
    if a.state_space:
        projections += a.state_space_layers * state_space_matrices(a, a.state_space)
        recurrence = a.state_space_layers * scan_flops_per_token(a.state_space, seq_len)
    head = a.vocab_size * a.embedding_width + 2 * embedding_projection(a)
    return ForwardFlops(
        projections=2.0 * projections,
        scores=2.0 * score_width(a) * attended_positions(a, seq_len),
        mlp=2.0 * mlp_matrices_passed(a),
        head=2.0 * head_share * head,
        recurrence=recurrence,
        indexing=2.0 * a.indexer_layers * (indexer_matrices(a) + indexer_width(a) * seq_len / 2),
    )


def indexer_width(architecture: Architecture) -> int:
    """Columns that meet per query and position in one indexer, and the weight of each head; 0 without.

    Source: DeepSeek-V3.2-Exp, equation 1.
    """
    indexer = architecture.sparse_indexer
    return indexer.num_heads * (indexer.head_dim + 1) if indexer else 0


def mlp_matrices_passed(architecture: Architecture) -> int:
    """Parameters of dense MLPs, routers and experts that one token passes through, all layers."""
    a = architecture
    passed = dense_mlp_layers(a) * mlp_parameters(a, a.intermediate_size)
    if a.mixture:
        routed = a.mixture.experts_per_token * expert_parameters(a)
        layer = routed + shared_expert_parameters(a) + router_parameters(a)
        passed += a.moe_layers * layer
    return passed


def attended_positions(architecture: Architecture, seq_len: float) -> float:
    """Positions one query attends to on average, summed over layers; a window or a chunk caps them.

    `s / 2` for a full layer (the usual convention; exact is (s + 1) / 2), `w - w^2 / (2 s)` for a window
    or a choice of w < s, `(n c^2 + r^2) / (2 s)` for n whole chunks of c and a rest r.
    """
    a = architecture
    full_layers = a.attention_layers
    full = seq_len / 2
    total = 0.0
    if a.sparse_indexer and a.sparse_indexer.top_k < seq_len:
        full = windowed_positions(seq_len, a.sparse_indexer.top_k)
    if a.sliding_window and a.sliding_window < seq_len:
        total += a.sliding_window_layers * windowed_positions(seq_len, a.sliding_window)
        full_layers -= a.sliding_window_layers
    if a.attention_chunk and a.attention_chunk < seq_len:
        total += a.chunked_layers * chunked_positions(seq_len, a.attention_chunk)
        full_layers -= a.chunked_layers
    return total + full_layers * full


Positions = TypeVar("Positions", float, Array)


def windowed_positions(seq_len: Positions, window: Positions) -> Positions:
    """Mean positions seen where a query sees at most `window`, not more than the sequence has."""
    return window - window * window / (2 * seq_len)


def chunked_positions(seq_len: Positions, chunk: Positions) -> Positions:
    """Mean positions seen, causal, where none sees across the border of its chunk."""
    full, rest = divmod(seq_len, chunk)
    return (full * chunk * chunk + rest * rest) / (2 * seq_len)


def score_width(architecture: Architecture) -> int:
    """Columns that meet per query and position: those of the score product and those of the value sum."""
    latent = architecture.latent_attention
    if latent:
        head = latent.qk_nope_head_dim + latent.qk_rope_head_dim + latent.v_head_dim
        return architecture.num_heads * head
    return 2 * architecture.num_heads * architecture.head_size


def training_flops_per_token(
    architecture: Architecture,
    seq_len: float,
    *,
    head_share: float = 1.0,
    frozen_base: bool = False,
) -> float:
    """Model operations per token of a training step: forward plus twice as many backward.

    With a frozen base (LoRA) matrices need no weight gradient: 2 forward + 2 for the input gradient, about 4 N;
    attention scores and recurrences keep their full backward. An indexer has no backward pass: its choice of positions
    is no function that a gradient passes, and the loss that DeepSeek trains it with is left out.
    Source: Kaplan et al. 2020, section 2.1; PaLM, appendix B.
    """
    forward = forward_flops_per_token(architecture, seq_len, head_share=head_share)
    trained = forward.total - forward.indexing
    if not frozen_base:
        return 3 * trained + forward.indexing
    return 2 * (trained - forward.mixing) + 3 * forward.mixing + forward.indexing


def active_parameters(architecture: Architecture) -> int:
    """Parameters one token passes through."""
    return count_parameters(architecture).active


# -------- Bytes of what generation keeps of a sequence: keys and values, and the states of recurrent layers.


def kv_cache_bytes_per_token(architecture: Architecture, *, bytes_per_value: float = 2.0, tensor: int = 1) -> float:
    """Bytes per cached token on one tensor-parallel rank.

    `2 * attention layers * kv_heads * head_dim * bytes`; with latent attention `layers * (kv_rank + rope_dim) * bytes`,
    which tensor parallelism does not divide, and the keys of its indexers, `head_dim` values in each layer that has
    one. Fewer key/value heads than ranks are replicated. Source: DeepSeek-V2
    (arXiv:2405.04434), table 1; Shazeer 2019; Ainslie et al. 2023.

    >>> from charter.catalog import models
    >>> kv_cache_bytes_per_token(models.get("Llama-3.1-8B").architecture)
    131072.0
    """
    latent, indexer = architecture.latent_attention, architecture.sparse_indexer
    if latent:
        values = architecture.attention_layers * (latent.kv_lora_rank + latent.qk_rope_head_dim)
        return (values + (architecture.indexer_layers * indexer.head_dim if indexer else 0)) * bytes_per_value
    heads = max(1.0, architecture.kv_heads / tensor)
    return 2.0 * architecture.attention_layers * heads * architecture.head_size * bytes_per_value


def kv_cache_bytes(
    architecture: Architecture,
    num_tokens: float,
    *,
    bytes_per_value: float = 2.0,
    tensor: int = 1,
) -> float:
    """Bytes of one sequence of `num_tokens` on one rank: keys, values and recurrent states.

    Layers with a window or a chunk keep at most that many positions; recurrent layers keep their state at any length.

    >>> from charter.catalog import models
    >>> nemotron = models.get("Nemotron-H-8B").architecture
    >>> round(kv_cache_bytes(nemotron, 8192) / 2**20), round(kv_cache_bytes(nemotron, 65536) / 2**20)
    (225, 1121)
    """
    state = recurrent_state_bytes(architecture, tensor=tensor)
    layers = architecture.attention_layers
    if not layers:
        return state
    per_layer = kv_cache_bytes_per_token(architecture, bytes_per_value=bytes_per_value, tensor=tensor) / layers
    return state + per_layer * kept_positions(architecture, num_tokens)


def kept_positions(architecture: Architecture, num_tokens: float) -> float:
    """Positions whose keys and values are kept, summed over the layers with attention."""
    a = architecture
    window = min(num_tokens, a.sliding_window) if a.sliding_window else num_tokens
    chunk = min(num_tokens, a.attention_chunk) if a.attention_chunk else num_tokens
    full_layers = a.attention_layers - a.sliding_window_layers - a.chunked_layers
    return full_layers * num_tokens + a.sliding_window_layers * window + a.chunked_layers * chunk
