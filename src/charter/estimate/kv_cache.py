"""Bytes of the keys and values that generation keeps."""

from charter.spec.architecture import Architecture


def kv_cache_bytes_per_token(architecture: Architecture, *, bytes_per_value: float = 2.0, tensor: int = 1) -> float:
    """Bytes per cached token on one tensor-parallel rank.

    `2 * layers * kv_heads * head_dim * bytes`; with latent attention `layers * (kv_rank + rope_dim) * bytes`, which
    tensor parallelism does not divide. Fewer key/value heads than ranks are replicated. Source: DeepSeek-V2
    (arXiv:2405.04434), table 1; Shazeer 2019; Ainslie et al. 2023.

    >>> from charter.catalog import models
    >>> kv_cache_bytes_per_token(models.get("Llama-3.1-8B").architecture)
    131072.0
    """
    latent = architecture.latent_attention
    if latent:
        return architecture.num_layers * (latent.kv_lora_rank + latent.qk_rope_head_dim) * bytes_per_value
    heads = max(1.0, architecture.kv_heads / tensor)
    return 2.0 * architecture.num_layers * heads * architecture.head_size * bytes_per_value


def kv_cache_bytes(
    architecture: Architecture, num_tokens: float, *, bytes_per_value: float = 2.0, tensor: int = 1
) -> float:
    """Bytes of one sequence of `num_tokens` on one rank; layers with a window keep at most the window."""
    per_layer = kv_cache_bytes_per_token(architecture, bytes_per_value=bytes_per_value, tensor=tensor)
    per_layer /= architecture.num_layers
    window, windowed = architecture.sliding_window, architecture.sliding_window_layers
    kept = min(num_tokens, window) if window else num_tokens
    return per_layer * ((architecture.num_layers - windowed) * num_tokens + windowed * kept)
