"""Parameters of a transformer, counted matrix by matrix."""

from dataclasses import dataclass

from charter.spec.architecture import Architecture, LatentAttention
from charter.spec.layout import Adapter


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
        )

    @property
    def active(self) -> int:
        """Parameters that take part for one token (all but the experts it is not routed to)."""
        return self.total - self.experts + self.active_experts

    @property
    def layers(self) -> int:
        """Parameters of the transformer layers and the final norm: all but embedding, positions and head."""
        return self.total - self.embedding - self.positions - self.head

    @property
    def non_embedding(self) -> int:
        """Kaplan's N: without the vocabulary and position embeddings (arXiv:2001.08361, section 2.1)."""
        return self.total - self.embedding - self.positions


def count_parameters(architecture: Architecture) -> ParameterCount:
    """Parameters of a decoder, exact for the architectures of the catalog.

    Per layer: query, key, value and output projections; gate, up and down (or up and down) projections, of one
    dense MLP or of every expert plus a router; norms. Source: the reference implementations (transformers);
    tested against published totals and against the classes on the meta device.

    >>> llama2_7b = Architecture(
    ...     hidden_size=4096, num_layers=32, num_heads=32, intermediate_size=11008, vocab_size=32000)
    >>> count_parameters(llama2_7b).total
    6738415616
    """
    a = architecture
    moe_layers = num_moe_layers(a)
    expert = mlp_parameters(a, a.mixture.expert_intermediate_size) if a.mixture else 0
    table = a.vocab_size * a.hidden_size
    return ParameterCount(
        embedding=table,
        positions=a.learned_positions * a.hidden_size,
        attention=a.num_layers * attention_parameters(a),
        dense_mlp=(a.num_layers - moe_layers) * mlp_parameters(a, a.intermediate_size),
        router=moe_layers * a.hidden_size * a.mixture.num_experts if a.mixture else 0,
        experts=moe_layers * a.mixture.num_experts * expert if a.mixture else 0,
        shared_experts=moe_layers * a.mixture.num_shared_experts * expert if a.mixture else 0,
        norms=a.num_layers * layer_norm_parameters(a) + a.hidden_size * a.norm_parameters_per_feature,
        head=0 if a.tied_embeddings else table,
        active_experts=moe_layers * a.mixture.experts_per_token * expert if a.mixture else 0,
    )


def num_moe_layers(architecture: Architecture) -> int:
    """Layers whose MLP is a mixture of experts."""
    mixture = architecture.mixture
    return architecture.num_layers - mixture.num_dense_layers if mixture else 0


def attention_parameters(architecture: Architecture) -> int:
    """Projections and biases of one attention layer (norms inside latent attention included)."""
    a = architecture
    if a.latent_attention:
        return latent_attention_parameters(a, a.latent_attention)
    query, key = a.num_heads * a.head_size, a.kv_heads * a.head_size
    matrices = a.hidden_size * (query + 2 * key) + query * a.hidden_size
    return matrices + (query + 2 * key) * a.attention_bias + a.hidden_size * a.output_bias


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


def mlp_parameters(architecture: Architecture, width: int) -> int:
    """One MLP (or one expert) of a given inner width."""
    a = architecture
    inner = 2 if a.gated_mlp else 1
    return (inner + 1) * a.hidden_size * width + a.mlp_bias * (inner * width + a.hidden_size)


def layer_norm_parameters(architecture: Architecture) -> int:
    """Norms of one layer, those on queries and keys included."""
    a = architecture
    return a.norm_parameters_per_feature * a.norms_per_layer * a.hidden_size + 2 * a.head_size * a.qk_norm


def adapter_parameters(architecture: Architecture, adapter: Adapter) -> int:
    """Trained parameters of LoRA on every linear layer of the blocks: `rank * (inputs + outputs)` per matrix.

    Source: Hu et al. 2021 (arXiv:2106.09685), section 4.1. Routed experts get adapters too; the router does not.

    >>> llama2_7b = Architecture(
    ...     hidden_size=4096, num_layers=32, num_heads=32, intermediate_size=11008, vocab_size=32000)
    >>> adapter_parameters(llama2_7b, Adapter(rank=8))
    19988480
    """
    a = architecture
    mlp_sides = (3 if a.gated_mlp else 2) * a.hidden_size
    matrices = 3 if a.gated_mlp else 2
    dense_layers = a.num_layers - num_moe_layers(a)
    sides = a.num_layers * _attention_sides(a) + dense_layers * (mlp_sides + matrices * a.intermediate_size)
    if a.mixture:
        experts = a.mixture.num_experts + a.mixture.num_shared_experts
        sides += num_moe_layers(a) * experts * (mlp_sides + matrices * a.mixture.expert_intermediate_size)
    return adapter.rank * sides


def _attention_sides(architecture: Architecture) -> int:
    """Inputs plus outputs of every projection of one attention layer."""
    a, latent = architecture, architecture.latent_attention
    if latent is None:
        query, key = a.num_heads * a.head_size, a.kv_heads * a.head_size
        return 2 * (a.hidden_size + query) + 2 * (a.hidden_size + key)
    query = a.num_heads * (latent.qk_nope_head_dim + latent.qk_rope_head_dim)
    rank = latent.q_lora_rank
    query_sides = a.hidden_size + query + (2 * rank if rank else 0)
    down = a.hidden_size + latent.kv_lora_rank + latent.qk_rope_head_dim
    up = latent.kv_lora_rank + a.num_heads * (latent.qk_nope_head_dim + latent.v_head_dim)
    return query_sides + down + up + a.num_heads * latent.v_head_dim + a.hidden_size
