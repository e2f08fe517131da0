"""The shape of a transformer: what a Hugging Face `config.json` says, under one set of names."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from charter.spec.quantity import added


@dataclass(frozen=True, kw_only=True)
class MixtureOfExperts:
    """Routed and shared experts of the layers that have them."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    num_experts: int
    experts_per_token: int
    expert_intermediate_size: int
    num_shared_experts: int = 0
    """Shared experts, in units of `expert_intermediate_size`."""
    num_dense_layers: int = 0
    """Leading layers that keep a dense MLP."""
    num_moe_layers: int | None = None
    """Layers with experts; all but the leading dense ones when left out (Llama 4 Maverick: every other one)."""
    shared_expert_intermediate_size: int | None = None
    """Width of the shared expert as a whole, where it is no multiple of `expert_intermediate_size`."""
    shared_expert_gate: bool = False
    """A learned scalar gate on the shared expert (Qwen 1.5 MoE, Qwen3-Next)."""
    router_bias: bool = False
    """A trained bias on the router (gpt-oss)."""
    expert_bias: bool = False
    """Biases inside every expert (gpt-oss)."""
    expert_hidden_size: int | None = None
    """Width the routed experts read and write, where a projection narrows `hidden_size` first (LatentMoE)."""
    dense_residual: bool = False
    """A dense MLP of `intermediate_size` runs beside the experts in every such layer (Arctic)."""

    @property
    def shared_width(self) -> int:
        """Inner width of all shared experts of a layer together; 0 without."""
        if self.shared_expert_intermediate_size is not None:
            return self.shared_expert_intermediate_size
        return self.num_shared_experts * self.expert_intermediate_size


@dataclass(frozen=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1)."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    kv_lora_rank: int
    q_lora_rank: int | None = None
    """Rank of the queries; none where they are projected directly (DeepSeek-V2-Lite)."""
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int


@dataclass(frozen=True, kw_only=True)
class SparseIndexer:
    """Choice of the positions that latent attention sees (DeepSeek sparse attention, DeepSeek-V3.2-Exp, section 1).

    Small heads score every earlier position, and attention meets the best `top_k` of them.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    num_heads: int
    head_dim: int
    top_k: int
    num_layers: int | None = None
    """Layers that have one, the others take the choice of the layer before; all layers with attention when left out."""


@dataclass(frozen=True, kw_only=True)
class StateSpace:
    """Layers that mix positions through a recurrent state in place of attention.

    Mamba (arXiv:2312.00752), Mamba-2 (arXiv:2405.21060) and gated delta nets (arXiv:2412.06464). Every one keeps
    `inner_size * state_size` values per layer and sequence, however long the sequence is.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    num_layers: int
    """Layers with such a mixer."""
    inner_size: int
    """Channels of the mixer: `expand * hidden_size`, heads times head width; the value width of a delta net."""
    state_size: int
    """State per channel; the key head width of a delta net."""
    num_heads: int = 1
    """Heads of Mamba-2, value heads of a delta net; without meaning in Mamba-1."""
    num_groups: int = 1
    """Groups that share the input and output maps (B, C) of Mamba-2; key heads of a delta net."""
    conv_kernel: int = 4
    kind: Literal["mamba2", "mamba1", "gated_delta_net"] = "mamba2"
    conv_bias: bool = True
    projection_bias: bool = False
    time_step_rank: int | None = None
    """Rank of the time step of Mamba-1; `hidden_size / 16` when left out."""
    inner_norms: bool = False
    """Norms on time step, B and C of Mamba-1 (Jamba)."""
    chunk_size: int = 256
    """Positions the training kernel handles as one block; between blocks only the state passes."""

    @property
    def head_size(self) -> int:
        """Channels of a head."""
        return self.inner_size // self.num_heads

    @property
    def conv_channels(self) -> int:
        """Channels of the short convolution: x alone (Mamba-1), or x, B and C (v, q and k of a delta net)."""
        shared = 0 if self.kind == "mamba1" else 2 * self.num_groups * self.state_size
        return self.inner_size + shared


@dataclass(frozen=True, kw_only=True)
class Encoder:
    """A vision or audio encoder in front of the decoder, with the projector that joins them.

    Its tokens take places of the decoder's sequence; an encoder that is read by cross-attention (Llama 3.2 Vision,
    Whisper as a whole) is not of this kind.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    hidden_size: int
    num_layers: int
    num_heads: int
    intermediate_size: int
    tokens_per_sample: int
    """Patches (or frames) of one picture (or clip) that pass through the encoder."""
    output_tokens_per_sample: int
    """Tokens of it that the decoder reads, after pooling."""
    embedding_parameters: int = 0
    """Patch or convolution embedding, position table, class token."""
    projector_parameters: int = 0
    """Everything between encoder and decoder."""
    projector_matrix_parameters: int | None = None
    """Of those, the matrices that every output token passes; all of them when left out."""
    gated_mlp: bool = False
    attention_bias: bool = True
    key_bias: bool = True
    """Bias on keys too (not in Whisper)."""
    output_bias: bool = True
    mlp_bias: bool = True
    norm_parameters_per_feature: int = 2
    norms_per_layer: int = 2
    outer_norms: int = 1
    """Norms of width `hidden_size` before and after the layers."""
    window_tokens: int | None = None
    """Tokens that see each other in windowed layers (Qwen2.5-VL); all of a sample when left out."""
    windowed_layers: int = 0

    @property
    def head_size(self) -> int:
        """Width of a head."""
        return self.hidden_size // self.num_heads


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """Layers, widths, heads and vocabulary of a decoder: a transformer, or a hybrid with recurrent layers."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    hidden_size: int
    num_layers: int
    num_heads: int
    intermediate_size: int
    vocab_size: int
    num_kv_heads: int | None = None
    """Key/value heads (GQA, MQA); as many as query heads when left out."""
    head_dim: int | None = None
    """Width of a head; `hidden_size / num_heads` when left out."""
    gated_mlp: bool = True
    """Gate, up and down projections (SwiGLU, GeGLU) against up and down only."""
    tied_embeddings: bool = False
    attention_bias: bool = False
    """Bias on query, key and value projections."""
    output_bias: bool = False
    """Bias on the attention output projection."""
    mlp_bias: bool = False
    norm_parameters_per_feature: int = 1
    """1 for RMSNorm or LayerNorm without bias, 2 for LayerNorm with bias."""
    norms_per_layer: int = 2
    qk_norm: bool = False
    """A norm of width `head_dim` on queries and one on keys (Qwen 3, Gemma 3)."""
    qk_norm_across_heads: bool = added(False)
    """Those norms are as wide as all heads together (OLMo 2, MiniMax-M2)."""
    learned_positions: int = 0
    """Rows of a learned position table (GPT-2, OPT); 0 for rotary or ALiBi."""
    max_position_embeddings: int = 4096
    sliding_window: int | None = None
    sliding_window_layers: int = 0
    """How many layers see only the window."""
    attention_chunk: int | None = None
    """Positions of a chunk where attention never crosses chunks (Llama 4: 8192)."""
    chunked_layers: int = 0
    """How many layers see only their chunk."""
    num_attention_layers: int | None = None
    """Layers with attention, where `num_layers` counts other blocks too; all but the recurrent ones when left out."""
    num_mlp_layers: int | None = None
    """Layers with an MLP or experts; all when left out (Nemotron-H: a block is a mixer or an MLP, never both)."""
    state_space: StateSpace | None = None
    encoder: Encoder | None = None
    embedding_size: int | None = None
    """Width of the embedding where projections to and from `hidden_size` follow (OPT-350M: 512)."""
    embedding_norm: bool = False
    """A norm on the embedding (BLOOM)."""
    final_norm: bool = True
    head_bias: bool = False
    """Bias on the output projection (GPT-J, Phi-2)."""
    attention_sinks: bool = False
    """A learned logit per head that takes attention and gives nothing (gpt-oss)."""
    attention_gate: bool = False
    """Queries bring a gate of their own width for the attention output (Qwen3-Next)."""
    num_mtp_layers: int = 0
    """Extra layers that predict further tokens in training (DeepSeek-V3: 1); no count has them unless asked."""
    mixture: MixtureOfExperts | None = None
    latent_attention: LatentAttention | None = None
    sparse_indexer: SparseIndexer | None = added()
    """Needs latent attention of a `q_lora_rank`, which the queries of the indexer start from."""
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5
    model_type: Literal[
        "llama",
        "mistral",
        "qwen2",
        "qwen3",
        "gemma2",
        "gemma3_text",
        "gpt2",
        "opt",
        "mpt",
        "mixtral",
        "qwen3_moe",
        "deepseek_v3",
        "gpt_neox",
        "gptj",
        "gemma",
        "falcon",
        "bloom",
        "phi",
        "phi3",
        "nemotron",
        "stablelm",
        "qwen",
        "qwen2_moe",
        "deepseek_v2",
        "gpt_oss",
        "llama4_text",
        "dbrx",
        "nemotron_h",
        "bamba",
        "granite",
        "granitemoehybrid",
        "jamba",
        "zamba2",
        "qwen3_next",
        "llava",
        "qwen2_vl",
        "qwen2_5_vl",
        "gemma3",
        "other",
    ] = "llama"
    """Hugging Face `model_type`: which class runs it; the planner only reads the sizes."""

    @property
    def kv_heads(self) -> int:
        """Key/value heads."""
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads

    def divides_heads(self, ranks: int, *, copies: bool = False) -> bool:
        """Return True if so many ranks get whole heads each; with `copies` several may have the same keys and values.

        >>> shape = Architecture(
        ...     hidden_size=2048, num_layers=36, num_heads=16, num_kv_heads=2, intermediate_size=11008, vocab_size=1)
        >>> shape.divides_heads(2), shape.divides_heads(8), shape.divides_heads(8, copies=True)
        (True, False, True)
        """
        keys = self.kv_heads % ranks == 0 or (copies and ranks % self.kv_heads == 0)
        return self.num_heads % ranks == 0 and keys

    @property
    def head_size(self) -> int:
        """Width of a head."""
        return self.hidden_size // self.num_heads if self.head_dim is None else self.head_dim

    @property
    def attention_layers(self) -> int:
        """Layers with attention."""
        if self.num_attention_layers is not None:
            return self.num_attention_layers
        return self.num_layers - self.state_space_layers

    @property
    def mlp_layers(self) -> int:
        """Layers with an MLP, dense or of experts."""
        return self.num_layers if self.num_mlp_layers is None else self.num_mlp_layers

    @property
    def moe_layers(self) -> int:
        """Layers whose MLP is a mixture of experts."""
        if self.mixture is None:
            return 0
        if self.mixture.num_moe_layers is not None:
            return self.mixture.num_moe_layers
        return self.mlp_layers - self.mixture.num_dense_layers

    @property
    def state_space_layers(self) -> int:
        """Layers with a recurrent mixer."""
        return self.state_space.num_layers if self.state_space else 0

    @property
    def indexer_layers(self) -> int:
        """Layers that score positions to choose those that attention sees."""
        if self.sparse_indexer is None:
            return 0
        given = self.sparse_indexer.num_layers
        return self.attention_layers if given is None else given

    @property
    def embedding_width(self) -> int:
        """Width of the embedding table."""
        return self.hidden_size if self.embedding_size is None else self.embedding_size
