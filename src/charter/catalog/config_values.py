"""What the readers of `config.json` share: checked values, and the two common kinds of decoder."""

from collections.abc import Mapping
from typing import Any

from charter.spec.architecture import Architecture

Config = Mapping[str, Any]


def size(config: Config, *names: str) -> int:
    """The first of the named keys that is set, as a positive whole number."""
    for name in names:
        if config.get(name) is not None:
            value = config[name]
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} = {value!r} is not a positive whole number")
            return value
    raise KeyError(names[0])


def rope_theta(config: Config) -> float:
    """Base of the rotary positions, where versions of transformers keep it."""
    nested: Any = config.get("rope_parameters") or {}
    nested = nested.get("full_attention", nested)
    return float(config.get("rope_theta") or nested.get("rope_theta") or 10_000.0)


def gated(config: Config, **more: Any) -> Architecture:
    """The Llama family: RMSNorm, gated MLP, grouped-query attention, rotary positions."""
    shape: dict[str, Any] = {
        "model_type": config["model_type"],
        "hidden_size": size(config, "hidden_size"),
        "num_layers": size(config, "num_hidden_layers"),
        "num_heads": size(config, "num_attention_heads"),
        "num_kv_heads": config.get("num_key_value_heads"),
        "head_dim": config.get("head_dim"),
        "vocab_size": size(config, "vocab_size"),
        "tied_embeddings": bool(config.get("tie_word_embeddings", False)),
        "attention_bias": bool(config.get("attention_bias", False)),
        "output_bias": bool(config.get("attention_bias", False)),
        "mlp_bias": bool(config.get("mlp_bias", False)),
        "max_position_embeddings": config.get("max_position_embeddings", 4096),
        "rope_theta": rope_theta(config),
        "norm_eps": config.get("rms_norm_eps", 1e-6),
    }
    if "intermediate_size" not in more:
        shape["intermediate_size"] = size(config, "intermediate_size")
    return Architecture(**(shape | more))


def windowed(config: Config) -> dict[str, Any]:
    """Sliding window: how many layers have it, by `layer_types` or for all."""
    window = config.get("sliding_window")
    if not window or config.get("use_sliding_window") is False:
        return {}
    layers = size(config, "num_hidden_layers")
    kinds = config.get("layer_types")
    if kinds:
        return {"sliding_window": window, "sliding_window_layers": kinds.count("sliding_attention")}
    if config.get("sliding_window_pattern"):
        pattern = size(config, "sliding_window_pattern")
        return {"sliding_window": window, "sliding_window_layers": layers - layers // pattern}
    first_full = config.get("max_window_layers", 0) if config["model_type"].startswith("qwen") else 0
    return {"sliding_window": window, "sliding_window_layers": max(layers - first_full, 0)}


def plain_mlp(config: Config, **more: Any) -> Architecture:
    """The GPT family: two-matrix MLP; every bias and LayerNorm with bias unless said otherwise."""
    shape: dict[str, Any] = {
        "model_type": config["model_type"],
        "gated_mlp": False,
        "vocab_size": size(config, "vocab_size"),
        "tied_embeddings": bool(config.get("tie_word_embeddings", True)),
        "attention_bias": True,
        "output_bias": True,
        "mlp_bias": True,
        "norm_parameters_per_feature": 2,
    }
    return Architecture(**(shape | more))
