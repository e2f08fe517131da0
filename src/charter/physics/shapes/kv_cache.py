"""Bytes of what generation keeps of a sequence: keys and values, and the states of recurrent layers."""

from charter.physics.shapes.state_space import recurrent_state_bytes
from charter.spec.architecture import Architecture


def kv_cache_bytes_per_token(architecture: Architecture, *, bytes_per_value: float = 2.0, tensor: int = 1) -> float:
    """Bytes per cached token on one tensor-parallel rank.

    `2 * attention layers * kv_heads * head_dim * bytes`; with latent attention `layers * (kv_rank + rope_dim) * bytes`,
    which tensor parallelism does not divide. Fewer key/value heads than ranks are replicated. Source: DeepSeek-V2
    (arXiv:2405.04434), table 1; Shazeer 2019; Ainslie et al. 2023.

    >>> from charter.catalog import models
    >>> kv_cache_bytes_per_token(models.get("Llama-3.1-8B").architecture)
    131072.0
    """
    latent = architecture.latent_attention
    if latent:
        return architecture.attention_layers * (latent.kv_lora_rank + latent.qk_rope_head_dim) * bytes_per_value
    heads = max(1.0, architecture.kv_heads / tensor)
    return 2.0 * architecture.attention_layers * heads * architecture.head_size * bytes_per_value


def kv_cache_bytes(
    architecture: Architecture,
    num_tokens: float,
    *,
    bytes_per_value: float = 2.0,
    tensor: int = 1,
    state_bytes_per_value: float = 4.0,
) -> float:
    """Bytes of one sequence of `num_tokens` on one rank: keys, values and recurrent states.

    Layers with a window or a chunk keep at most that many positions; recurrent layers keep their state at any length.

    >>> from charter.catalog import models
    >>> nemotron = models.get("Nemotron-H-8B").architecture
    >>> round(kv_cache_bytes(nemotron, 8192) / 2**20), round(kv_cache_bytes(nemotron, 65536) / 2**20)
    (225, 1121)
    """
    state = recurrent_state_bytes(architecture, bytes_per_value=state_bytes_per_value, tensor=tensor)
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
