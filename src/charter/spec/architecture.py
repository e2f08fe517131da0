"""The shape of a transformer: what a Hugging Face `config.json` says, under one set of names."""

from dataclasses import dataclass
from typing import ClassVar, Literal


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


@dataclass(frozen=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1)."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    kv_lora_rank: int
    q_lora_rank: int | None
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """Layers, widths, heads and vocabulary of a decoder-only transformer."""

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
    learned_positions: int = 0
    """Rows of a learned position table (GPT-2, OPT); 0 for rotary or ALiBi."""
    max_position_embeddings: int = 4096
    sliding_window: int | None = None
    sliding_window_layers: int = 0
    """How many layers see only the window."""
    mixture: MixtureOfExperts | None = None
    latent_attention: LatentAttention | None = None
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
        "other",
    ] = "llama"
    """Hugging Face `model_type`: which class runs it; the planner only reads the sizes."""

    @property
    def kv_heads(self) -> int:
        """Key/value heads."""
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads

    @property
    def head_size(self) -> int:
        """Width of a head."""
        return self.hidden_size // self.num_heads if self.head_dim is None else self.head_dim
