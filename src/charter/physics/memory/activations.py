"""Bytes that the forward pass keeps for the backward pass, per layer.

Every tensor is listed by name (`kept_bytes.py`), so that the total can be checked against Korthikanti et al. 2022
(arXiv:2205.05198): for a GPT layer with dropout it is `s b h (34 + 5 a s / h)` bytes (their equation 1). For gated
MLPs, grouped-query and latent attention, experts, recurrent mixers, and training without dropout the constant differs;
it is re-derived from the same list. Norms and dropout masks are replicated by tensor parallelism and divided by
sequence parallelism; everything between a column and a row projection is divided by both.
"""

from dataclasses import dataclass

import numpy as np

from charter.physics.arrays import Array, array
from charter.physics.memory.kept_bytes import (
    ALL_MATRICES,
    Divided,
    Implementation,
    KeptTensor,
    LayerKind,
    Matrices,
    layer_tensors,
)
from charter.spec.architecture import Architecture
from charter.spec.layout import Layout, Recompute

__all__ = ["SOURCE", "Implementation", "LayerActivations", "in_flight", "layer_activations"]

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
        """Return the bytes that one rank keeps per token under a layout, before full recomputation."""
        keep_scores = not fused_attention and layout.recompute is Recompute.NONE
        replicated = self.replicated / (layout.tensor if layout.sequence_parallel else 1)
        return replicated + (self.sharded + keep_scores * self.scores) / layout.tensor


def layer_activations(
    architecture: Architecture,
    *,
    seq_len: float,
    dropout: bool = False,
    bytes_per_value: float = 2.0,
    moe_layer: bool = False,
    implementation: Implementation = "lean",
    trained: Matrices = ALL_MATRICES,
    state_space_layer: bool = False,
) -> LayerActivations:
    """Bytes per token kept by one layer; `seq_len` sets only the width of the attention probabilities.

    `trained` names the groups of matrices (`qkv`, `out`, `up`, `down`, `norms`) whose inputs a gradient needs; with
    adapters, those that carry one.

    >>> gpt = Architecture(hidden_size=6144, num_layers=48, num_heads=64, intermediate_size=24576,
    ...                    vocab_size=51200, gated_mlp=False)
    >>> kept = layer_activations(gpt, seq_len=2048, dropout=True)
    >>> (kept.replicated + kept.sharded) / 6144, kept.scores / 6144 == 5 * 64 * 2048 / 6144
    (34.0, True)
    """
    kind = LayerKind(
        seq_len=seq_len,
        value_bytes=bytes_per_value,
        dropout=dropout,
        mixer="state_space" if state_space_layer else "attention",
        mlp="experts" if moe_layer and architecture.mixture else "dense",
        implementation=implementation,
    )
    return kept_by_layer(architecture, kind, trained)


def kept_by_layer(architecture: Architecture, kind: LayerKind, trained: Matrices = ALL_MATRICES) -> LayerActivations:
    """The same of a layer of any kind."""
    tensors = [item for item in layer_tensors(architecture, kind) if not item.needed_by or item.needed_by in trained]
    return LayerActivations(
        replicated=_sum(tensors, "sequence"),
        sharded=_sum(tensors, "tensor"),
        scores=_sum(tensors, "scores"),
        layer_input=kind.value_bytes * architecture.hidden_size,
    )


def _sum(tensors: list[KeptTensor], divided: Divided) -> float:
    return sum((item.bytes_per_token for item in tensors if item.divided == divided), start=0.0)


def in_flight(pipeline: Array, interleave: Array, accumulation: Array, stage: Array) -> Array:
    """Micro-batches whose activations a pipeline stage holds at its peak, in units of its own layers.

    One forward, one backward (1F1B): stage i of p holds `p - i`, at most as many as there are. Interleaving with v
    chunks raises the first stage's to `p (1 + (p - 1) / (p v))`. Source: Narayanan et al. 2021, section 2.2;
    Korthikanti et al. 2022, section 4.2.3. Never more than the micro-batches of a step.

    >>> [float(in_flight(array(8), array(chunks), array(64), array(0))) for chunks in (1, 3)]
    [8.0, 10.333333333333334]
    """
    deeper = np.where(interleave > 1, (pipeline - 1) / (pipeline * interleave), 0.0)
    return array(np.minimum((pipeline - stage) * (1 + deeper), accumulation))
