"""Floating-point operations of a forward and of a training pass, and the usual short forms.

A multiply and an add are two operations. Conventions differ between sources by up to 33 %: whether recomputation,
the causal mask, the output projection or the embedding count. Here: no embedding look-up, output projection
counted, attention scores over the positions that are really attended (`causal=True`) or over the full square
(`causal=False`), recomputation only in `hardware_flops_per_token`.
"""

from dataclasses import dataclass

from charter.estimate.parameters import (
    attention_parameters,
    count_parameters,
    mlp_parameters,
    num_moe_layers,
)
from charter.spec.architecture import Architecture
from charter.spec.layout import Recompute


@dataclass(frozen=True, kw_only=True)
class ForwardFlops:
    """Operations of one token's forward pass, by part."""

    projections: float
    """Query, key, value and output projections of all layers."""
    scores: float
    """Query-key products and the weighted sum of values, all layers."""
    mlp: float
    """Dense MLPs, the experts a token passes through, and routers."""
    head: float
    """Output projection onto the vocabulary."""

    @property
    def total(self) -> float:
        """All parts."""
        return self.projections + self.scores + self.mlp + self.head


def forward_flops_per_token(
    architecture: Architecture, seq_len: float, *, causal: bool = True, head_share: float = 1.0
) -> ForwardFlops:
    """Operations per token of a forward pass over sequences of `seq_len`.

    Two per parameter of every matrix, plus `4 * layers * heads * head_dim * attended positions`; `head_share` is the
    share of positions whose logits are computed (0 for a model with a scalar head). Biases, norms and softmax are
    left out (below 1 %). Source: PaLM (arXiv:2204.02311), appendix B; Korthikanti et al. 2022, appendix A.

    >>> from charter.catalog import models
    >>> llama3_70b = models.get("Llama-3-70B").architecture
    >>> round(3 * forward_flops_per_token(llama3_70b, 8192, causal=False).total / 1e9, 1)
    481.4
    """
    a = architecture
    layers = attended_positions(a, seq_len, causal=causal)
    width = score_width(a)
    moe_layers = num_moe_layers(a)
    mlp = (a.num_layers - moe_layers) * mlp_parameters(a, a.intermediate_size)
    if a.mixture:
        passed = a.mixture.experts_per_token + a.mixture.num_shared_experts
        mlp += moe_layers * passed * mlp_parameters(a, a.mixture.expert_intermediate_size)
        mlp += moe_layers * a.hidden_size * a.mixture.num_experts
    return ForwardFlops(
        projections=2.0 * a.num_layers * attention_parameters(a),
        scores=2.0 * width * layers,
        mlp=2.0 * mlp,
        head=2.0 * head_share * a.vocab_size * a.hidden_size,
    )


def attended_positions(architecture: Architecture, seq_len: float, *, causal: bool = True) -> float:
    """Positions one query attends to on average, summed over layers; a window caps them.

    Causal: `s / 2` for a full layer (the usual convention; exact is (s + 1) / 2), `w - w^2 / (2 s)` for a window w < s.
    """
    a = architecture
    full = seq_len / 2 if causal else seq_len
    window = a.sliding_window
    if not window or window >= seq_len:
        return a.num_layers * full
    inside = window - window * window / (2 * seq_len) if causal else float(window)
    return (a.num_layers - a.sliding_window_layers) * full + a.sliding_window_layers * inside


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
    causal: bool = True,
    head_share: float = 1.0,
    frozen_base: bool = False,
) -> float:
    """Model operations per token of a training step: forward plus twice as many backward.

    With a frozen base (LoRA) matrices need no weight gradient: 2 forward + 2 for the input gradient, about 4 N;
    attention scores keep their full backward. Source: Kaplan et al. 2020, section 2.1; PaLM, appendix B.
    """
    forward = forward_flops_per_token(architecture, seq_len, causal=causal, head_share=head_share)
    if not frozen_base:
        return 3 * forward.total
    return 2 * (forward.total - forward.scores) + 3 * forward.scores


def hardware_flops_per_token(
    architecture: Architecture, seq_len: float, *, recompute: Recompute, causal: bool = True, head_share: float = 1.0
) -> float:
    """Operations really done per token, recomputation included.

    Full recomputation repeats the forward pass of the layers (not the output projection), selective recomputation
    repeats the attention scores. Source: Korthikanti et al. 2022 (arXiv:2205.05198), section 4 and appendix A.
    """
    forward = forward_flops_per_token(architecture, seq_len, causal=causal, head_share=head_share)
    extra = {
        Recompute.NONE: 0.0,
        Recompute.SELECTIVE: forward.scores,
        Recompute.FULL: forward.total - forward.head,
    }
    return 3 * forward.total + extra[recompute]


def training_compute(num_parameters: float, num_tokens: float, *, recompute: bool = False) -> float:
    """`C = 6 N D`, or `8 N D` when the forward pass is done twice.

    Source: Kaplan et al. 2020 (arXiv:2001.08361), section 2.1; Narayanan et al. 2021, equation 4. N counts the
    parameters a token passes through; attention scores are left out (a few per cent at s << 6 h, much more beyond).

    >>> f"{training_compute(70e9, 2e12):.2g}", f"{training_compute(70e9, 2e12, recompute=True):.2g}"
    ('8.4e+23', '1.1e+24')
    """
    return (8.0 if recompute else 6.0) * num_parameters * num_tokens


def active_parameters(architecture: Architecture) -> int:
    """Parameters one token passes through."""
    return count_parameters(architecture).active
