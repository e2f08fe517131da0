"""Bytes that the forward pass keeps for the backward pass, per layer.

Every tensor is listed by name, so that the total can be checked against Korthikanti et al. 2022
(arXiv:2205.05198): for a GPT layer with dropout it is `s b h (34 + 5 a s / h)` bytes (their equation 1). For gated
MLPs, grouped-query and latent attention, experts, and training without dropout the constant differs; it is
re-derived from the same list. Norms and dropout masks are replicated by tensor parallelism and divided by sequence
parallelism; everything between a column and a row projection is divided by both.
"""

from dataclasses import dataclass
from typing import Literal

from charter.spec.architecture import Architecture
from charter.spec.layout import Layout, Recompute

Implementation = Literal["lean", "huggingface"]
"""Which code runs the layer: `lean` keeps the least a backward pass needs (Megatron-like fused kernels);
`huggingface` is what the classes of transformers 5 keep, counted with saved-tensor hooks on CPU
(tests/integration/test_estimate_matches_model.py): an RMSNorm keeps its input in fp32 and the normalised value,
4 bytes per value more; eager attention keeps an fp32 softmax, 4 bytes per score more; GPT-2's tanh GELU keeps three
more arrays."""
SOURCE = "Korthikanti et al. 2022, section 4, re-derived for this layer"


@dataclass(frozen=True, kw_only=True)
class LayerActivations:
    """Bytes per token (of one layer) that are kept, by how parallelism divides them."""

    replicated: float
    """Divided by sequence parallelism only: norm inputs, projection inputs, dropout masks of the residual."""
    sharded: float
    """Divided by the tensor-parallel degree."""
    scores: float
    """Attention probabilities (and their dropout); divided by tensor parallelism, gone with fused attention or
    selective recomputation."""
    layer_input: float
    """All that full recomputation keeps."""

    def bytes_per_token(self, layout: Layout, *, fused_attention: bool) -> float:
        """What one rank keeps per token under a layout, before full recomputation."""
        keep_scores = not fused_attention and layout.recompute is Recompute.NONE
        replicated = self.replicated / (layout.tensor if layout.sequence_parallel else 1)
        return replicated + (self.sharded + keep_scores * self.scores) / layout.tensor

    def checkpoint_bytes_per_token(self, layout: Layout) -> float:
        """What one rank keeps per token under full recomputation."""
        return self.layer_input / (layout.tensor if layout.sequence_parallel else 1)


def layer_activations(
    architecture: Architecture,
    *,
    seq_len: float,
    dropout: bool = False,
    bytes_per_value: float = 2.0,
    moe_layer: bool = False,
    implementation: Implementation = "lean",
) -> LayerActivations:
    """Bytes per token kept by one layer; `seq_len` sets only the width of the attention probabilities.

    >>> gpt = Architecture(hidden_size=6144, num_layers=48, num_heads=64, intermediate_size=24576,
    ...                    vocab_size=51200, gated_mlp=False)
    >>> kept = layer_activations(gpt, seq_len=2048, dropout=True)
    >>> (kept.replicated + kept.sharded) / 6144, kept.scores / 6144 == 5 * 64 * 2048 / 6144
    (34.0, True)
    """
    a, value = architecture, bytes_per_value
    mask = 1.0 if dropout else 0.0
    replicated = value * a.hidden_size * (a.norms_per_layer + 2) + 2 * mask * a.hidden_size
    sharded = value * _attention_values(a)
    mlp_replicated, mlp_sharded = _mlp_values(a, moe_layer=moe_layer)
    more = _Extra.of(a, value) if implementation == "huggingface" else _Extra()
    return LayerActivations(
        replicated=replicated + value * mlp_replicated + more.replicated,
        sharded=sharded + value * mlp_sharded + more.sharded,
        scores=a.num_heads * seq_len * (value + mask * (value + 1) + more.per_score) + more.repeated,
        layer_input=value * a.hidden_size,
    )


@dataclass(frozen=True, kw_only=True)
class _Extra:
    """Bytes per token (and per attention score) that an implementation keeps beyond the least."""

    replicated: float = 0.0
    sharded: float = 0.0
    per_score: float = 0.0
    repeated: float = 0.0
    """Keys and values repeated to all query heads, where attention is not fused."""

    @classmethod
    def of(cls, architecture: Architecture, value: float) -> "_Extra":
        """What transformers keeps."""
        a = architecture
        rms_norm = a.norm_parameters_per_feature == 1 and a.model_type != "mpt"
        heads = (a.num_heads + a.kv_heads) * a.head_size if a.qk_norm else 0
        return cls(
            replicated=4.0 * a.norms_per_layer * a.hidden_size if rms_norm else 0.0,
            sharded=4.0 * heads + (3 * value * a.intermediate_size if a.model_type == "gpt2" else 0.0),
            per_score=4.0 if value < 4 else 0.0,
            repeated=2 * value * (a.num_heads - a.kv_heads) * a.head_size,
        )


def _attention_values(architecture: Architecture) -> float:
    """Values per token: query, key, value, and the attention output (input of the output projection)."""
    a, latent = architecture, architecture.latent_attention
    if latent is None:
        query, keys = a.num_heads * a.head_size, 2 * a.kv_heads * a.head_size
        normed = (a.num_heads + a.kv_heads) * a.head_size if a.qk_norm else 0
        return 2 * query + keys + normed
    query = a.num_heads * (latent.qk_nope_head_dim + latent.qk_rope_head_dim)
    values = a.num_heads * latent.v_head_dim
    compressed = 2 * ((latent.q_lora_rank or 0) + latent.kv_lora_rank) + latent.qk_rope_head_dim
    return 2 * query + 2 * values + compressed


def _mlp_values(architecture: Architecture, *, moe_layer: bool) -> tuple[float, float]:
    """Values per token that norms-and-inputs add beyond the dense case, and the inner values of the MLP.

    Two-matrix MLP: input and output of the activation function, 2 f. Gated MLP: gate, up, activated gate and
    product, 4 f. A mixture keeps, per expert a token goes to, a copy of the input and of the output as well.
    """
    a, mixture = architecture, architecture.mixture
    inner = 4 if a.gated_mlp else 2
    if not moe_layer or mixture is None:
        return 0.0, float(inner * a.intermediate_size)
    width = mixture.expert_intermediate_size
    copies = 2.0 * mixture.experts_per_token * a.hidden_size + 2 * mixture.num_experts
    return copies, float(inner * width * (mixture.experts_per_token + mixture.num_shared_experts))


def in_flight_microbatches(layout: Layout, *, stage: int) -> float:
    """Micro-batches whose activations a pipeline stage holds at its peak, in units of its own layers.

    One forward, one backward (1F1B): stage i of p holds `p - i`, at most as many as there are. Interleaving with v
    chunks raises the first stage's to `p (1 + (p - 1) / (p v))`. Source: Narayanan et al. 2021, section 2.2;
    Korthikanti et al. 2022, section 4.2.3. Never more than the micro-batches of a step.

    >>> in_flight_microbatches(Layout(pipeline=8, accumulation=64), stage=0)
    8.0
    >>> in_flight_microbatches(Layout(pipeline=8, accumulation=64, interleave=3), stage=0)
    10.333333333333334
    """
    p, v = layout.pipeline, layout.interleave
    held = float(p - stage)
    if v > 1 and p > 1:
        held = (p - stage) * (1 + (p - 1) / (p * v))
    return min(held, float(layout.accumulation))
