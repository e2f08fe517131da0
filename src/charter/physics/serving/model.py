"""Architecture as generation sees it: numbers that broadcast over configurations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache

import numpy as np

from charter.physics.arrays import Array, array
from charter.physics.shapes.flops import score_width
from charter.physics.shapes.kv_cache import kv_cache_bytes_per_token
from charter.physics.shapes.parameters import count_parameters, expert_parameters
from charter.physics.shapes.state_space import recurrent_state_bytes, scan_flops_per_token
from charter.spec.architecture import Architecture

LINEAR_LAYERS_ATTENTION, LINEAR_LAYERS_MLP = 4, 3
"""Matrices of a decoder layer that a quantiser wraps: query, key, value, output; gate, up, down."""


@dataclass(frozen=True, kw_only=True)
class ServedModel:
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
    head_weights: Array
    """Of the output projection, tied or not."""
    attention_layers: Array
    cache_values: Array
    """Values kept per token in one layer with attention, before tensor parallelism."""
    cache_splits: Array
    """How many ranks can share them: key/value heads; 1 with latent attention."""
    windowed_layers: Array
    window: Array
    score_width: Array
    """Columns that meet per query and position, over all layers' average: prefill."""
    decode_score_width: Array
    """The same in decode, where latent attention works on the compressed cache."""
    head_repeats: Array
    """Query heads per key/value head."""
    state_bytes: Array
    """Recurrent state of a sequence, all layers."""
    scan_flops: Array
    """Recurrence per token, all layers."""

    @classmethod
    def of(cls, architecture: Architecture) -> ServedModel:
        """The columns of one architecture, without dimensions.

        >>> from charter.catalog import models
        >>> llama = ServedModel.of(models.get("Llama-3.1-8B").architecture)
        >>> round(float(llama.passed_weights) / 1e9, 2), float(llama.cache_values * llama.attention_layers)
        (6.98, 65536.0)
        """
        return _served(architecture)

    @classmethod
    def stacked(cls, models: Sequence[ServedModel]) -> ServedModel:
        """One column per configuration."""
        return cls(**{item.name: np.stack([getattr(model, item.name) for model in models]) for item in fields(cls)})

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
        window = np.minimum(self.window, length)
        inside = window - window**2 / (2 * np.maximum(length, 1.0))
        return array((self.attention_layers - self.windowed_layers) * length / 2 + self.windowed_layers * inside)

    def cached_values(self, context: Array, tensor: Array) -> Array:
        """Values of keys and values one rank holds for a sequence of `context` tokens."""
        return array(self.cache_values / np.minimum(tensor, self.cache_splits) * self.attended(context))


@lru_cache(maxsize=512)
def _served(a: Architecture) -> ServedModel:
    count, mixture, latent = count_parameters(a), a.mixture, a.latent_attention
    layers = max(a.attention_layers, 1)
    values = kv_cache_bytes_per_token(a, bytes_per_value=1.0) / layers if a.attention_layers else 0.0
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
        "head_weights": head,
        "attention_layers": a.attention_layers,
        "cache_values": values,
        "cache_splits": 1 if latent else a.kv_heads,
        "windowed_layers": windowed,
        "window": window,
        "score_width": score_width(a),
        "decode_score_width": decode_width,
        "head_repeats": 1 if latent else a.num_heads / a.kv_heads,
        "state_bytes": recurrent_state_bytes(a) if a.state_space else 0.0,
        "scan_flops": a.state_space_layers * scan_flops_per_token(a.state_space, 1024) if a.state_space else 0.0,
    }
    return ServedModel(**{name: array(value) for name, value in columns.items()})


def _windows(a: Architecture) -> tuple[int, float]:
    """Layers that see a window or a chunk, and how many positions; a chunk is half full on average."""
    if a.sliding_window and a.sliding_window_layers:
        return a.sliding_window_layers, float(a.sliding_window)
    if a.attention_chunk and a.chunked_layers:
        return a.chunked_layers, float(a.attention_chunk)
    return 0, 1e30
