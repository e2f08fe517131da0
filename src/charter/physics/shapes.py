"""Parameters of an architecture, matrix by matrix: attention, MLP, experts, recurrent mixers, encoders."""

from dataclasses import dataclass

from charter.spec.architecture import Architecture, Encoder, LatentAttention, MixtureOfExperts, StateSpace
from charter.spec.layout import Adapter

# -------- An encoder in front of the decoder (vision, audio): its parameters and the operations of one sample.


def encoder_parameters(encoder: Encoder) -> int:
    """Parameters of the encoder with its embedding and its projector.

    Source: the classes of transformers (`CLIPVisionModel`, `SiglipVisionModel`, `Qwen2VisionTransformer`).
    """
    e = encoder
    norms = e.num_layers * e.norms_per_layer + e.outer_norms
    layers = e.num_layers * encoder_layer_parameters(e)
    return (
        layers + norms * e.hidden_size * e.norm_parameters_per_feature + e.embedding_parameters + e.projector_parameters
    )


def encoder_layer_parameters(encoder: Encoder) -> int:
    """Matrices and biases of one layer, without norms."""
    e = encoder
    biases = e.hidden_size * ((2 + e.key_bias) * e.attention_bias + e.output_bias)
    return encoder_layer_matrices(e) + biases + e.mlp_bias * ((1 + e.gated_mlp) * e.intermediate_size + e.hidden_size)


def encoder_layer_matrices(encoder: Encoder) -> int:
    """Parameters of the matrix products of one layer: four of attention, two or three of the MLP."""
    e = encoder
    return 4 * e.hidden_size**2 + (2 + e.gated_mlp) * e.hidden_size * e.intermediate_size


def encoder_flops_per_sample(encoder: Encoder) -> float:
    """Operations of one sample's forward pass through encoder and projector.

    `tokens * layers * (2 * matrices + 4 * hidden * positions seen)` (attention is not causal), and two per projector
    parameter and output token. The patch embedding (below 1 %) is left out. Training of all parameters costs three
    times as much; a frozen encoder this much once.

    >>> from charter.catalog import models
    >>> clip = models.get("llava-hf/llava-1.5-7b-hf").architecture.encoder
    >>> round(encoder_flops_per_sample(clip) / 1e9)
    405
    """
    e = encoder
    seen = (e.num_layers - e.windowed_layers) * float(e.tokens_per_sample)
    seen += e.windowed_layers * min(e.tokens_per_sample, e.window_tokens or e.tokens_per_sample)
    per_token = 2.0 * e.num_layers * encoder_layer_matrices(e) + 4.0 * e.hidden_size * seen
    projected = e.projector_parameters if e.projector_matrix_parameters is None else e.projector_matrix_parameters
    return e.tokens_per_sample * per_token + 2.0 * e.output_tokens_per_sample * projected


# -------- Recurrent mixers (Mamba, Mamba-2, gated delta nets): their parameters, their operations, and the state they
# keep.


def state_space_parameters(architecture: Architecture, space: StateSpace) -> int:
    """Parameters of one mixer, its inner norms included; the norm in front of it belongs to the layer.

    Source: Mamba-2 (arXiv:2405.21060), section 7, and the classes of transformers: `BambaMixer`, `JambaMambaMixer`,
    `Qwen3NextGatedDeltaNet`.
    """
    matrices = state_space_matrices(architecture, space)
    projections = state_space_input_width(space) + architecture.hidden_size
    biases = space.conv_bias * space.conv_channels + space.projection_bias * projections
    convolution = space.conv_channels * space.conv_kernel
    return matrices + biases + convolution + _small_parameters(architecture, space)


def state_space_matrices(architecture: Architecture, space: StateSpace) -> int:
    """Parameters of the mixer's matrix products: in, out, and the time step's two of Mamba-1."""
    inner, hidden = space.inner_size, architecture.hidden_size
    outer = hidden * state_space_input_width(space) + inner * hidden
    if space.kind != "mamba1":
        return outer
    rank = _time_step_rank(architecture, space)
    return outer + inner * (rank + 2 * space.state_size) + rank * inner


def state_space_input_width(space: StateSpace) -> int:
    """Columns of the input projection: x and gate, with B, C and time step (q, k and two gates of a delta net)."""
    per_head = {"mamba1": 0, "mamba2": 1, "gated_delta_net": 2}[space.kind]
    return space.inner_size + space.conv_channels + per_head * space.num_heads


def _time_step_rank(architecture: Architecture, space: StateSpace) -> int:
    return space.time_step_rank or -(-architecture.hidden_size // 16)


def _small_parameters(architecture: Architecture, space: StateSpace) -> int:
    """A, D, the time step's bias, and inner norms."""
    if space.kind == "mamba2":
        return 3 * space.num_heads + space.inner_size
    if space.kind == "gated_delta_net":
        return 2 * space.num_heads + space.head_size
    rank = _time_step_rank(architecture, space)
    norms = space.inner_norms * (rank + 2 * space.state_size)
    return space.inner_size * (space.state_size + 2) + norms


def scan_flops_per_token(space: StateSpace, seq_len: float) -> float:
    """Operations of one mixer's convolution and recurrence for one token, forward.

    Mamba-2 in chunks of Q positions (state N, inner width D, G groups): `2 Q N G` for C B', `2 Q D` for its product
    with x, `2 N D` into the state and `2 N D` out of it (arXiv:2405.21060, section 6, block decomposition; kernels
    compute whole squares). A delta net (arXiv:2412.06464) takes per head `6 Q dk + 4 Q dv + 6 dk dv`: an
    approximation, the triangular solve left out. Mamba-1 `9 N D` (its scan is no matrix product).

    >>> space = StateSpace(num_layers=1, inner_size=8192, state_size=128, num_heads=128, num_groups=8)
    >>> round(scan_flops_per_token(space, 8192) / 1e6, 2)
    8.99
    """
    inner, state = space.inner_size, space.state_size
    convolution = 2.0 * space.conv_channels * space.conv_kernel
    if space.kind == "mamba1":
        return convolution + 9.0 * inner * state
    chunk = min(seq_len, space.chunk_size)
    if space.kind == "mamba2":
        return convolution + 2 * chunk * state * space.num_groups + 2 * chunk * inner + 4.0 * inner * state
    keys = space.num_heads * state
    return convolution + 6 * chunk * keys + 4 * chunk * inner + 6.0 * inner * state


def recurrent_state_bytes(architecture: Architecture, *, tensor: int = 1) -> float:
    """Bytes of the recurrent states of one sequence on one tensor-parallel rank, whatever its length.

    `layers * (inner * state * 4 + conv_channels * (kernel - 1) * 2) / tensor`: the state is kept in fp32, the
    convolution's inputs in 16 bits. Source: arXiv:2405.21060, section 2; the caches of transformers.

    >>> from charter.catalog import models
    >>> round(recurrent_state_bytes(models.get("Nemotron-H-8B").architecture) / 2**20, 1)
    97.4
    """
    space = architecture.state_space
    if space is None:
        return 0.0
    state = space.inner_size * space.state_size * 4.0
    convolution = space.conv_channels * (space.conv_kernel - 1) * 2.0
    return space.num_layers * (state + convolution) / tensor


# -------- Parameters of a decoder (transformer or hybrid), counted matrix by matrix.


@dataclass(frozen=True, kw_only=True)
class ParameterCount:
    """Parameters by where they are; `head` is 0 when the output projection is the embedding."""

    embedding: int
    positions: int
    attention: int
    dense_mlp: int
    router: int
    experts: int
    """Routed experts, all of them."""
    shared_experts: int
    norms: int
    head: int
    active_experts: int
    """Routed experts that one token passes through."""
    state_space: int = 0
    """Recurrent mixers (Mamba, delta net)."""
    encoder: int = 0
    """The encoder in front and its projector."""
    mtp_projections: int = 0
    """Of the layers for multi-token prediction, what joins hidden state and embedding."""

    @property
    def total(self) -> int:
        """All parameters."""
        return (
            self.embedding
            + self.positions
            + self.attention
            + self.dense_mlp
            + self.router
            + self.experts
            + self.shared_experts
            + self.norms
            + self.head
            + self.state_space
            + self.encoder
            + self.mtp_projections
        )

    @property
    def active(self) -> int:
        """Parameters that take part for one token (all but the experts it is not routed to)."""
        return self.total - self.experts + self.active_experts

    @property
    def layers(self) -> int:
        """Parameters of the decoder's layers and the final norm: all but embedding, positions, head and encoder."""
        return self.total - self.embedding - self.positions - self.head - self.encoder


def count_parameters(architecture: Architecture, *, mtp: bool = False) -> ParameterCount:
    """Parameters of a decoder and of its encoder, exact for the architectures of the catalog.

    Per attention layer: query, key, value and output projections; per MLP: gate, up and down (or up and down)
    projections, of one dense MLP or of every expert plus a router; per recurrent layer its mixer; norms. The layers
    for multi-token prediction count with `mtp` only. Source: the reference implementations (transformers); tested
    against published totals and against the classes on the meta device.

    >>> llama2_7b = Architecture(
    ...     hidden_size=4096, num_layers=32, num_heads=32, intermediate_size=11008, vocab_size=32000)
    >>> count_parameters(llama2_7b).total
    6738415616
    """
    a = architecture
    extra = a.num_mtp_layers if mtp else 0
    moe_layers = a.moe_layers + (extra if a.mixture else 0)
    dense_layers = dense_mlp_layers(a) + (0 if a.mixture else extra)
    routed = moe_layers * expert_parameters(a)
    return ParameterCount(
        embedding=a.vocab_size * a.embedding_width + embedding_projection(a),
        positions=a.learned_positions * a.hidden_size,
        attention=(a.attention_layers + extra) * attention_parameters(a) + indexer_parameters(a, mtp_layers=extra),
        dense_mlp=dense_layers * mlp_parameters(a, a.intermediate_size),
        router=moe_layers * router_parameters(a),
        experts=routed * a.mixture.num_experts if a.mixture else 0,
        shared_experts=moe_layers * shared_expert_parameters(a),
        norms=norm_parameters(a, mtp_layers=extra),
        head=head_parameters(a),
        active_experts=routed * a.mixture.experts_per_token if a.mixture else 0,
        state_space=a.state_space_layers * state_space_parameters(a, a.state_space) if a.state_space else 0,
        encoder=encoder_parameters(a.encoder) if a.encoder else 0,
        mtp_projections=extra * 2 * a.hidden_size**2,
    )


def num_moe_layers(architecture: Architecture) -> int:
    """Layers whose MLP is a mixture of experts."""
    return architecture.moe_layers


def dense_mlp_layers(architecture: Architecture) -> int:
    """Layers with a dense MLP, those that have one beside their experts (Arctic) included."""
    a = architecture
    return a.mlp_layers if a.mixture and a.mixture.dense_residual else a.mlp_layers - a.moe_layers


def embedding_projection(architecture: Architecture) -> int:
    """The matrix from a narrow embedding to `hidden_size` (OPT-350M), 0 without; another one leads back."""
    a = architecture
    return a.embedding_width * a.hidden_size if a.embedding_width != a.hidden_size else 0


def head_parameters(architecture: Architecture) -> int:
    """Output projection: nothing of its own where it is the embedding, but for its bias and narrow projection."""
    a = architecture
    table = 0 if a.tied_embeddings else a.vocab_size * a.embedding_width
    return table + embedding_projection(a) + a.head_bias * a.vocab_size


def attention_parameters(architecture: Architecture) -> int:
    """Projections, biases and sinks of one attention layer (norms inside latent attention included)."""
    a = architecture
    if a.latent_attention:
        return latent_attention_parameters(a, a.latent_attention)
    out, key = a.num_heads * a.head_size, a.kv_heads * a.head_size
    query = out * (1 + a.attention_gate)
    matrices = a.hidden_size * (query + 2 * key) + out * a.hidden_size
    biases = (query + 2 * key) * a.attention_bias + a.hidden_size * a.output_bias
    return matrices + biases + a.num_heads * a.attention_sinks


def latent_attention_parameters(architecture: Architecture, latent: LatentAttention) -> int:
    """Projections of one multi-head latent attention layer, with its two inner norms.

    Source: DeepSeek-V2 (arXiv:2405.04434), section 2.1 and appendix C; config and code of DeepSeek-V3.
    """
    hidden, heads = architecture.hidden_size, architecture.num_heads
    query_width = heads * (latent.qk_nope_head_dim + latent.qk_rope_head_dim)
    query = hidden * query_width
    if latent.q_lora_rank:
        query = latent.q_lora_rank * (hidden + 1 + query_width)
    down = hidden * (latent.kv_lora_rank + latent.qk_rope_head_dim) + latent.kv_lora_rank
    up = latent.kv_lora_rank * heads * (latent.qk_nope_head_dim + latent.v_head_dim)
    return query + down + up + heads * latent.v_head_dim * hidden


def indexer_parameters(architecture: Architecture, *, mtp_layers: int = 0) -> int:
    """Projections of queries, keys and head weights, and the norm on keys with its bias, of all indexers.

    Source: DeepSeek-V3.2-Exp, section 1 (the lightning indexer); the class `DeepseekV32Indexer` of transformers.
    """
    indexer, layers = architecture.sparse_indexer, architecture.indexer_layers + mtp_layers
    return layers * (indexer_matrices(architecture) + 2 * indexer.head_dim) if indexer else 0


def indexer_matrices(architecture: Architecture) -> int:
    """Matrices of one indexer; 0 without."""
    indexer, latent = architecture.sparse_indexer, architecture.latent_attention
    if indexer is None or latent is None:
        return 0
    queries = (latent.q_lora_rank or 0) * indexer.num_heads * indexer.head_dim
    return queries + architecture.hidden_size * (indexer.head_dim + indexer.num_heads)


def mlp_parameters(architecture: Architecture, width: int) -> int:
    """One MLP of a given inner width."""
    a = architecture
    inner = 1 + a.gated_mlp
    return (inner + 1) * a.hidden_size * width + a.mlp_bias * (inner * width + a.hidden_size)


def expert_parameters(architecture: Architecture) -> int:
    """One routed expert; 0 without a mixture."""
    a, mixture = architecture, architecture.mixture
    if mixture is None:
        return 0
    inner, width = 1 + a.gated_mlp, mixture.expert_intermediate_size
    outer = mixture.expert_hidden_size or a.hidden_size
    return (inner + 1) * outer * width + (a.mlp_bias or mixture.expert_bias) * (inner * width + outer)


def router_parameters(architecture: Architecture) -> int:
    """Router of one layer, and the two projections around experts that are narrower than the model."""
    a, mixture = architecture, architecture.mixture
    if mixture is None:
        return 0
    narrow = 2 * a.hidden_size * mixture.expert_hidden_size if mixture.expert_hidden_size else 0
    return mixture.num_experts * (a.hidden_size + mixture.router_bias) + narrow


def shared_expert_parameters(architecture: Architecture) -> int:
    """Shared experts of one layer with their gate."""
    a, mixture = architecture, architecture.mixture
    if mixture is None or not mixture.shared_width:
        return 0
    return mlp_parameters(a, mixture.shared_width) + a.hidden_size * mixture.shared_expert_gate


def layer_norm_parameters(architecture: Architecture) -> int:
    """Norms of one layer with attention, those on queries and keys included."""
    a = architecture
    return a.norm_parameters_per_feature * a.norms_per_layer * a.hidden_size + _qk_norm_parameters(a)


def _qk_norm_parameters(architecture: Architecture) -> int:
    """Norms on queries and keys of one layer: of a head's width, or of all heads together."""
    a = architecture
    return a.qk_norm * a.head_size * (a.num_heads + a.kv_heads if a.qk_norm_across_heads else 2)


def norm_parameters(architecture: Architecture, *, mtp_layers: int = 0) -> int:
    """All norms of the decoder: of the layers, on queries and keys, on the embedding, before the head.

    A layer for multi-token prediction has three more: on the hidden state, on the embedding, before the head
    (DeepSeek-V3, arXiv:2412.19437, section 2.2).
    """
    a = architecture
    attention = _qk_norm_parameters(a) * (a.attention_layers + mtp_layers)
    count = a.num_layers * a.norms_per_layer + a.final_norm + a.embedding_norm + mtp_layers * (a.norms_per_layer + 3)
    return attention + count * a.hidden_size * a.norm_parameters_per_feature


def adapter_parameters(architecture: Architecture, adapter: Adapter) -> int:
    """Trained parameters of LoRA on every linear layer of the blocks: `rank * (inputs + outputs)` per matrix.

    Source: Hu et al. 2021 (arXiv:2106.09685), section 4.1. Routed experts get adapters too, and so
    do the projections of a recurrent mixer; the router and the encoder do not.

    >>> llama2_7b = Architecture(
    ...     hidden_size=4096, num_layers=32, num_heads=32, intermediate_size=11008, vocab_size=32000)
    >>> adapter_parameters(llama2_7b, Adapter(rank=8))
    19988480
    """
    a = architecture
    matrices = 3 if a.gated_mlp else 2
    sides = a.attention_layers * _attention_sides(a)
    sides += dense_mlp_layers(a) * matrices * (a.hidden_size + a.intermediate_size)
    if a.mixture:
        width = a.mixture.expert_hidden_size or a.hidden_size
        experts = a.mixture.num_experts * (width + a.mixture.expert_intermediate_size)
        shared = _shared_experts(a.mixture) * a.hidden_size + a.mixture.shared_width
        sides += a.moe_layers * matrices * (experts + shared)
    if a.state_space:
        outer = state_space_input_width(a.state_space) + a.state_space.inner_size + 2 * a.hidden_size
        sides += a.state_space_layers * outer
    return adapter.rank * sides


def _shared_experts(mixture: MixtureOfExperts) -> int:
    """Separate matrices the shared experts are: one where only their joint width is known."""
    return mixture.num_shared_experts if mixture.shared_expert_intermediate_size is None else 1


def _attention_sides(architecture: Architecture) -> int:
    """Inputs plus outputs of every projection of one attention layer."""
    a, latent = architecture, architecture.latent_attention
    if latent is None:
        query, key = a.num_heads * a.head_size, a.kv_heads * a.head_size
        return 2 * (a.hidden_size + query) + query * a.attention_gate + 2 * (a.hidden_size + key)
    query = a.num_heads * (latent.qk_nope_head_dim + latent.qk_rope_head_dim)
    rank = latent.q_lora_rank
    query_sides = a.hidden_size + query + (2 * rank if rank else 0)
    down = a.hidden_size + latent.kv_lora_rank + latent.qk_rope_head_dim
    up = latent.kv_lora_rank + a.num_heads * (latent.qk_nope_head_dim + latent.v_head_dim)
    return query_sides + down + up + a.num_heads * latent.v_head_dim + a.hidden_size
