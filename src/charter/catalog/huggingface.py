"""Read a Hugging Face `config.json` as an `Architecture`."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from charter.errors import DataError
from charter.spec.architecture import Architecture, LatentAttention, MixtureOfExperts

Config = Mapping[str, Any]


def architecture_from_config(path: Path | str) -> Architecture:
    """The architecture a `config.json` (or the directory that holds one) describes."""
    file = _config_file(Path(path).expanduser())
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise DataError(f"{file} is not valid JSON ({error})") from None
    except OSError as error:
        raise DataError(f"{file} cannot be read ({error.strerror})") from None
    if not isinstance(config, dict):
        raise DataError(f"{file} holds {type(config).__name__}, not a JSON object as a Hugging Face config.json does")
    return architecture_from_mapping(config, str(file))


def architecture_from_mapping(config: Config, file: str = "config.json") -> Architecture:
    """The architecture a configuration describes, by its `model_type`."""
    kind = config.get("model_type")
    if isinstance(config.get("text_config"), dict) and kind not in _READERS:
        return architecture_from_mapping(config["text_config"], f"{file}, text_config")
    reader = _READERS.get(str(kind))
    if reader is None:
        raise DataError(f"{file}: model_type {kind!r} is not known; known are {', '.join(sorted(_READERS))}")
    try:
        return reader(config)
    except KeyError as missing:
        raise DataError(f"{file}: the key {missing} is missing; a {kind} configuration needs it") from None
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise DataError(f"{file}: a value has the wrong type or size ({error})") from None


def _config_file(path: Path) -> Path:
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        what = "the directory has no config.json" if path.is_dir() else "there is no such file"
        raise DataError(f"{path}: {what}; expected a Hugging Face model directory or the path of its config.json")
    return file


def _size(config: Config, *names: str) -> int:
    for name in names:
        if config.get(name) is not None:
            value = config[name]
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} = {value!r} is not a positive whole number")
            return value
    raise KeyError(names[0])


def _rope_theta(config: Config) -> float:
    nested: Any = config.get("rope_parameters") or {}
    nested = nested.get("full_attention", nested)
    return float(config.get("rope_theta") or nested.get("rope_theta") or 10_000.0)


def _gated(config: Config, **more: Any) -> Architecture:
    """The Llama family: RMSNorm, gated MLP, grouped-query attention, rotary positions."""
    shape: dict[str, Any] = {
        "model_type": config["model_type"],
        "hidden_size": _size(config, "hidden_size"),
        "num_layers": _size(config, "num_hidden_layers"),
        "num_heads": _size(config, "num_attention_heads"),
        "num_kv_heads": config.get("num_key_value_heads"),
        "head_dim": config.get("head_dim"),
        "intermediate_size": _size(config, "intermediate_size"),
        "vocab_size": _size(config, "vocab_size"),
        "tied_embeddings": bool(config.get("tie_word_embeddings", False)),
        "attention_bias": bool(config.get("attention_bias", False)),
        "output_bias": bool(config.get("attention_bias", False)),
        "mlp_bias": bool(config.get("mlp_bias", False)),
        "max_position_embeddings": config.get("max_position_embeddings", 4096),
        "rope_theta": _rope_theta(config),
        "norm_eps": config.get("rms_norm_eps", 1e-6),
    }
    return Architecture(**(shape | more))


def _windowed(config: Config) -> dict[str, Any]:
    """Sliding window: how many layers have it, by `layer_types` or for all."""
    window = config.get("sliding_window")
    if not window or config.get("use_sliding_window") is False:
        return {}
    layers = _size(config, "num_hidden_layers")
    kinds = config.get("layer_types")
    if kinds:
        return {"sliding_window": window, "sliding_window_layers": kinds.count("sliding_attention")}
    if config.get("sliding_window_pattern"):
        pattern = _size(config, "sliding_window_pattern")
        return {"sliding_window": window, "sliding_window_layers": layers - layers // pattern}
    first_full = config.get("max_window_layers", 0) if config["model_type"].startswith("qwen") else 0
    return {"sliding_window": window, "sliding_window_layers": max(layers - first_full, 0)}


def _mistral(config: Config) -> Architecture:
    return _gated(config, **_windowed(config))


def _qwen2(config: Config) -> Architecture:
    return _gated(config, attention_bias=True, output_bias=False, **_windowed(config))


def _qwen3(config: Config) -> Architecture:
    return _gated(config, head_dim=config.get("head_dim", 128), qk_norm=True, **_windowed(config))


def _gemma(config: Config) -> Architecture:
    window = _windowed(config)
    kind = config["model_type"]
    if kind == "gemma2" and window and "layer_types" not in config:
        window["sliding_window_layers"] = (_size(config, "num_hidden_layers") + 1) // 2
    if kind == "gemma3_text" and window and not {"layer_types", "sliding_window_pattern"} & config.keys():
        layers = _size(config, "num_hidden_layers")
        window["sliding_window_layers"] = layers - layers // 6
    return _gated(
        config,
        tied_embeddings=bool(config.get("tie_word_embeddings", True)),
        norms_per_layer=4,
        qk_norm=kind == "gemma3_text",
        **window,
    )


def _mixtral(config: Config) -> Architecture:
    mixture = MixtureOfExperts(
        num_experts=_size(config, "num_local_experts"),
        experts_per_token=_size(config, "num_experts_per_tok"),
        expert_intermediate_size=_size(config, "intermediate_size"),
    )
    return _gated(config, mixture=mixture, **_windowed(config))


def _qwen3_moe(config: Config) -> Architecture:
    if config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1:
        raise ValueError("mlp_only_layers and decoder_sparse_step other than 1 are not modelled")
    mixture = MixtureOfExperts(
        num_experts=_size(config, "num_experts", "num_local_experts"),
        experts_per_token=_size(config, "num_experts_per_tok"),
        expert_intermediate_size=_size(config, "moe_intermediate_size"),
    )
    return _gated(config, head_dim=config.get("head_dim", 128), qk_norm=True, mixture=mixture, **_windowed(config))


def _deepseek(config: Config) -> Architecture:
    mixture = MixtureOfExperts(
        num_experts=_size(config, "n_routed_experts", "num_local_experts"),
        experts_per_token=_size(config, "num_experts_per_tok"),
        expert_intermediate_size=_size(config, "moe_intermediate_size"),
        num_shared_experts=config.get("n_shared_experts") or 0,
        num_dense_layers=config.get("first_k_dense_replace", 0),
    )
    latent = LatentAttention(
        kv_lora_rank=_size(config, "kv_lora_rank"),
        q_lora_rank=config.get("q_lora_rank"),
        qk_nope_head_dim=_size(config, "qk_nope_head_dim"),
        qk_rope_head_dim=_size(config, "qk_rope_head_dim"),
        v_head_dim=_size(config, "v_head_dim"),
    )
    return _gated(config, head_dim=None, mixture=mixture, latent_attention=latent)


def _plain_mlp(config: Config, **more: Any) -> Architecture:
    """The GPT family: two-matrix MLP; every bias and LayerNorm with bias unless said otherwise."""
    shape: dict[str, Any] = {
        "model_type": config["model_type"],
        "gated_mlp": False,
        "vocab_size": _size(config, "vocab_size"),
        "tied_embeddings": bool(config.get("tie_word_embeddings", True)),
        "attention_bias": True,
        "output_bias": True,
        "mlp_bias": True,
        "norm_parameters_per_feature": 2,
    }
    return Architecture(**(shape | more))


def _gpt2(config: Config) -> Architecture:
    hidden, positions = _size(config, "n_embd", "hidden_size"), _size(config, "n_positions")
    return _plain_mlp(
        config,
        hidden_size=hidden,
        num_layers=_size(config, "n_layer", "num_hidden_layers"),
        num_heads=_size(config, "n_head", "num_attention_heads"),
        intermediate_size=config.get("n_inner") or 4 * hidden,
        learned_positions=positions,
        max_position_embeddings=positions,
        norm_eps=config.get("layer_norm_epsilon", 1e-5),
    )


def _opt(config: Config) -> Architecture:
    hidden, positions = _size(config, "hidden_size"), _size(config, "max_position_embeddings")
    if config.get("word_embed_proj_dim", hidden) != hidden:
        raise ValueError("word_embed_proj_dim other than hidden_size (OPT-350M) is not modelled")
    return _plain_mlp(
        config,
        hidden_size=hidden,
        num_layers=_size(config, "num_hidden_layers"),
        num_heads=_size(config, "num_attention_heads"),
        intermediate_size=_size(config, "ffn_dim"),
        learned_positions=positions + 2,
        max_position_embeddings=positions,
    )


def _mpt(config: Config) -> Architecture:
    hidden = _size(config, "d_model")
    attention = config.get("attn_config") or {}
    return _plain_mlp(
        config,
        hidden_size=hidden,
        num_layers=_size(config, "n_layers"),
        num_heads=_size(config, "n_heads"),
        num_kv_heads=attention.get("kv_n_heads"),
        intermediate_size=hidden * config.get("expansion_ratio", 4),
        attention_bias=not config.get("no_bias", True),
        output_bias=not config.get("no_bias", True),
        mlp_bias=not config.get("no_bias", True),
        norm_parameters_per_feature=1 if config.get("no_bias", True) else 2,
        learned_positions=0 if attention.get("alibi", True) else _size(config, "max_seq_len"),
        max_position_embeddings=_size(config, "max_seq_len"),
    )


def _gpt_neox(config: Config) -> Architecture:
    return _plain_mlp(
        config,
        hidden_size=_size(config, "hidden_size"),
        num_layers=_size(config, "num_hidden_layers"),
        num_heads=_size(config, "num_attention_heads"),
        intermediate_size=_size(config, "intermediate_size"),
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        max_position_embeddings=_size(config, "max_position_embeddings"),
        rope_theta=_rope_theta(config) if config.get("rope_theta") else float(config.get("rotary_emb_base", 10_000)),
        norm_eps=config.get("layer_norm_eps", 1e-5),
    )


_READERS: Mapping[str, Callable[[Config], Architecture]] = {
    "llama": _gated,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma2": _gemma,
    "gemma3_text": _gemma,
    "mixtral": _mixtral,
    "qwen3_moe": _qwen3_moe,
    "deepseek_v3": _deepseek,
    "gpt2": _gpt2,
    "opt": _opt,
    "mpt": _mpt,
    "gpt_neox": _gpt_neox,
}
