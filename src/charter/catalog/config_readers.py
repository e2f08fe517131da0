"""Readers of `config.json` by `model_type`: dense transformers and mixtures of experts."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from charter.spec.architecture import Architecture, LatentAttention, MixtureOfExperts, SparseIndexer

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


def stored_format(config: Config) -> str:
    """Return the format of a checkpoint's matrices by its `quantization_config`, by the names of `physics.precision`.

    Methods that are not listed are taken for 16 bits, which errs on the safe side.

    >>> stored_format({"quantization_config": {"quant_method": "awq", "bits": 4}}), stored_format({})
    ('int4', 'bf16')
    """
    settings: Any = config.get("quantization_config")
    if not isinstance(settings, dict):
        return "bf16"
    method = str(settings.get("quant_method", "")).replace("_", "-")
    if method == "bitsandbytes":
        return "nf4" if settings.get("load_in_4bit") else "bnb-int8"
    if method in ("fp8", "fbgemm-fp8", "mxfp4"):
        return "mxfp4" if method == "mxfp4" else "fp8"
    if method == "modelopt":
        return {"FP8": "fp8", "NVFP4": "fp4"}.get(str(settings.get("quant_algo")), "bf16")
    weights: Any = settings if method in ("awq", "gptq") else None
    if method == "compressed-tensors" and isinstance(groups := settings.get("config_groups"), dict):
        first: Any = next(iter(groups.values()), None)
        weights = first.get("weights") if isinstance(first, dict) else None
    if not isinstance(weights, dict):
        return "bf16"
    bits: Any = weights.get("num_bits", weights.get("bits"))
    by_bits = {8: "fp8", 4: "fp4"} if weights.get("type") == "float" else {8: "int8", 4: "int4"}
    return by_bits.get(bits, "bf16") if isinstance(bits, int) else "bf16"


def rope_theta(config: Config) -> float:
    """Base of the rotary positions, where versions of transformers keep it."""
    nested: Any = config.get("rope_parameters") or {}
    nested = nested.get("full_attention") or nested
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


def mistral(config: Config) -> Architecture:
    """Llama with a sliding window (Mistral, Phi-3)."""
    return gated(config, **windowed(config))


def qwen2(config: Config) -> Architecture:
    """Llama with biases on queries, keys and values."""
    return gated(config, attention_bias=True, output_bias=False, **windowed(config))


def qwen3(config: Config) -> Architecture:
    """Llama with norms on queries and keys."""
    return gated(config, head_dim=config.get("head_dim", 128), qk_norm=True, **windowed(config))


def qwen(config: Config) -> Architecture:
    """The first Qwen, whose `intermediate_size` counts gate and up together."""
    return gated(
        config,
        intermediate_size=size(config, "intermediate_size") // 2,
        attention_bias=True,
        output_bias=False,
        head_dim=config.get("kv_channels"),
    )


def gemma(config: Config) -> Architecture:
    """Gemma: tied, wide heads; from the second on four norms a layer and a window, in the third norms on q and k."""
    window = windowed(config)
    kind = config["model_type"]
    if kind == "gemma2" and window and "layer_types" not in config:
        window["sliding_window_layers"] = (size(config, "num_hidden_layers") + 1) // 2
    if kind == "gemma3_text" and window and not {"layer_types", "sliding_window_pattern"} & config.keys():
        layers = size(config, "num_hidden_layers")
        window["sliding_window_layers"] = layers - layers // 6
    return gated(
        config,
        tied_embeddings=bool(config.get("tie_word_embeddings", True)),
        norms_per_layer=2 if kind == "gemma" else 4,
        qk_norm=kind == "gemma3_text",
        **window,
    )


def stablelm(config: Config) -> Architecture:
    """Llama with LayerNorm, and one of them a layer where residuals run side by side."""
    if config.get("qk_layernorm"):
        raise ValueError("qk_layernorm is not modelled")
    return gated(
        config,
        attention_bias=bool(config.get("use_qkv_bias", False)),
        output_bias=False,
        norm_parameters_per_feature=2,
        norms_per_layer=1 if config.get("use_parallel_residual") else 2,
        norm_eps=config.get("layer_norm_eps", 1e-5),
    )


def nemotron(config: Config) -> Architecture:
    """Nemotron 3 and 4: squared ReLU without gate, LayerNorm with bias."""
    return gated(config, gated_mlp=False, norm_parameters_per_feature=2, norm_eps=config.get("norm_eps", 1e-5))


def arcee(config: Config) -> Architecture:
    """AFM: Llama with a squared ReLU in place of the gate."""
    return gated(config, model_type="other", gated_mlp=False)


def olmo(config: Config) -> Architecture:
    """The first OLMo: Llama whose norms have no parameters."""
    return gated(config, model_type="other", norms_per_layer=0, final_norm=False)


def cohere(config: Config) -> Architecture:
    """Command R and Command R7B: attention beside the MLP behind one LayerNorm without bias, tied."""
    if config.get("use_qk_norm"):
        raise ValueError("use_qk_norm is not modelled")
    return gated(
        config,
        model_type="other",
        tied_embeddings=bool(config.get("tie_word_embeddings", True)),
        norms_per_layer=1,
        norm_eps=config.get("layer_norm_eps", 1e-5),
        **windowed(config),
    )


def gpt2(config: Config) -> Architecture:
    """GPT-2."""
    hidden, positions = size(config, "n_embd", "hidden_size"), size(config, "n_positions")
    return plain_mlp(
        config,
        hidden_size=hidden,
        num_layers=size(config, "n_layer", "num_hidden_layers"),
        num_heads=size(config, "n_head", "num_attention_heads"),
        intermediate_size=config.get("n_inner") or 4 * hidden,
        learned_positions=positions,
        max_position_embeddings=positions,
        norm_eps=config.get("layer_norm_epsilon", 1e-5),
    )


def gptj(config: Config) -> Architecture:
    """GPT-J: attention beside the MLP, rotary positions, a bias on the head."""
    hidden = size(config, "n_embd", "hidden_size")
    return plain_mlp(
        config,
        hidden_size=hidden,
        num_layers=size(config, "n_layer", "num_hidden_layers"),
        num_heads=size(config, "n_head", "num_attention_heads"),
        intermediate_size=config.get("n_inner") or 4 * hidden,
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        attention_bias=False,
        output_bias=False,
        head_bias=True,
        norms_per_layer=1,
        max_position_embeddings=size(config, "n_positions"),
    )


def opt(config: Config) -> Architecture:
    """OPT; the 350M model has a narrow embedding and norms after the sublayers, so none before the head."""
    hidden, positions = size(config, "hidden_size"), size(config, "max_position_embeddings")
    narrow = config.get("word_embed_proj_dim", hidden)
    return plain_mlp(
        config,
        hidden_size=hidden,
        num_layers=size(config, "num_hidden_layers"),
        num_heads=size(config, "num_attention_heads"),
        intermediate_size=size(config, "ffn_dim"),
        learned_positions=positions + 2,
        max_position_embeddings=positions,
        embedding_size=narrow if narrow != hidden else None,
        final_norm=bool(config.get("do_layer_norm_before", True)),
    )


def mpt(config: Config) -> Architecture:
    """MPT."""
    hidden = size(config, "d_model")
    attention = config.get("attn_config") or {}
    biases = not config.get("no_bias", True)
    return plain_mlp(
        config,
        hidden_size=hidden,
        num_layers=size(config, "n_layers"),
        num_heads=size(config, "n_heads"),
        num_kv_heads=attention.get("kv_n_heads"),
        intermediate_size=hidden * config.get("expansion_ratio", 4),
        attention_bias=biases,
        output_bias=biases,
        mlp_bias=biases,
        norm_parameters_per_feature=2 if biases else 1,
        learned_positions=0 if attention.get("alibi", True) else size(config, "max_seq_len"),
        max_position_embeddings=size(config, "max_seq_len"),
    )


def gpt_neox(config: Config) -> Architecture:
    """GPT-NeoX, Pythia, StableLM alpha, RedPajama-INCITE."""
    biases = bool(config.get("attention_bias", True))
    return plain_mlp(
        config,
        hidden_size=size(config, "hidden_size"),
        num_layers=size(config, "num_hidden_layers"),
        num_heads=size(config, "num_attention_heads"),
        intermediate_size=size(config, "intermediate_size"),
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        attention_bias=biases,
        output_bias=biases,
        max_position_embeddings=size(config, "max_position_embeddings"),
        rope_theta=rope_theta(config) if config.get("rope_theta") else float(config.get("rotary_emb_base", 10_000)),
        norm_eps=config.get("layer_norm_eps", 1e-5),
    )


def falcon(config: Config) -> Architecture:
    """Falcon: one key/value head (7B) or groups (40B, 180B), attention beside the MLP, no biases but those of norms."""
    hidden, heads = size(config, "hidden_size"), size(config, "num_attention_heads", "n_head")
    grouped = bool(config.get("new_decoder_architecture", False))
    many = grouped or not config.get("multi_query", True)
    norms = config.get("num_ln_in_parallel_attn") or (2 if grouped else 1)
    bias = bool(config.get("bias", False))
    return plain_mlp(
        config,
        hidden_size=hidden,
        num_layers=size(config, "num_hidden_layers", "n_layer"),
        num_heads=heads,
        num_kv_heads=(config.get("num_kv_heads") or config.get("n_head_kv") or heads) if many else 1,
        intermediate_size=config.get("ffn_hidden_size") or 4 * hidden,
        attention_bias=bias,
        output_bias=bias,
        mlp_bias=bias,
        norms_per_layer=norms if config.get("parallel_attn", True) else 2,
        max_position_embeddings=config.get("max_position_embeddings", 2048),
    )


def bloom(config: Config) -> Architecture:
    """BLOOM: ALiBi, and a norm on the embedding."""
    hidden = size(config, "hidden_size", "n_embed")
    return plain_mlp(
        config,
        hidden_size=hidden,
        num_layers=size(config, "n_layer", "num_hidden_layers"),
        num_heads=size(config, "n_head", "num_attention_heads"),
        intermediate_size=4 * hidden,
        embedding_norm=True,
        max_position_embeddings=config.get("seq_length", 2048),
    )


def phi(config: Config) -> Architecture:
    """Phi-1, 1.5 and 2: attention beside the MLP, biases everywhere, the head included."""
    if config.get("qk_layernorm"):
        raise ValueError("qk_layernorm is not modelled")
    return plain_mlp(
        config,
        hidden_size=size(config, "hidden_size"),
        num_layers=size(config, "num_hidden_layers"),
        num_heads=size(config, "num_attention_heads"),
        num_kv_heads=config.get("num_key_value_heads"),
        intermediate_size=size(config, "intermediate_size"),
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        norms_per_layer=1,
        head_bias=True,
        max_position_embeddings=size(config, "max_position_embeddings"),
        norm_eps=config.get("layer_norm_eps", 1e-5),
    )


def starcoder2(config: Config) -> Architecture:
    """StarCoder 2: grouped queries, a window, biases everywhere but on the head."""
    biases = bool(config.get("use_bias", True))
    return plain_mlp(
        config,
        model_type="other",
        hidden_size=size(config, "hidden_size"),
        num_layers=size(config, "num_hidden_layers"),
        num_heads=size(config, "num_attention_heads"),
        num_kv_heads=config.get("num_key_value_heads"),
        intermediate_size=size(config, "intermediate_size"),
        attention_bias=biases,
        output_bias=biases,
        mlp_bias=biases,
        max_position_embeddings=size(config, "max_position_embeddings"),
        rope_theta=rope_theta(config),
        norm_eps=config.get("norm_epsilon", 1e-5),
        **windowed(config),
    )


def latent_attention(config: Config, **more: Any) -> Architecture:
    """A decoder with multi-head latent attention; a dense one (Youtu, MiniCPM 3) as it is."""
    if config.get("attention_bias"):
        raise ValueError("attention_bias = true with latent attention is not modelled")
    latent = LatentAttention(
        kv_lora_rank=size(config, "kv_lora_rank"),
        q_lora_rank=config.get("q_lora_rank"),
        qk_nope_head_dim=size(config, "qk_nope_head_dim"),
        qk_rope_head_dim=size(config, "qk_rope_head_dim"),
        v_head_dim=size(config, "v_head_dim"),
    )
    return gated(config, **({"model_type": "other", "head_dim": None, "latent_attention": latent} | more))


DENSE_READERS: Mapping[str, Callable[[Config], Architecture]] = {
    "llama": gated,
    "granite": gated,
    "mistral": mistral,
    "phi3": mistral,
    "qwen": qwen,
    "qwen2": qwen2,
    "qwen3": qwen3,
    "gemma": gemma,
    "gemma2": gemma,
    "gemma3_text": gemma,
    "stablelm": stablelm,
    "nemotron": nemotron,
    "gpt2": gpt2,
    "gptj": gptj,
    "opt": opt,
    "mpt": mpt,
    "gpt_neox": gpt_neox,
    "falcon": falcon,
    "bloom": bloom,
    "phi": phi,
    "arcee": arcee,
    "olmo": olmo,
    "cohere": cohere,
    "cohere2": cohere,
    "starcoder2": starcoder2,
    "minicpm3": latent_attention,
    "youtu": latent_attention,
}
"""`model_type` -> reader."""

DEFAULTS: Mapping[str, dict[str, Any]] = {
    "llama": {
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "intermediate_size": 11008,
        "vocab_size": 32000,
    },
    "gemma3_text": {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 262_208,
        "max_position_embeddings": 131_072,
        "sliding_window": 4096,
    },
}
"""What the decoder of a vision-language configuration leaves out because its class has it as a default."""


def mixtral(config: Config) -> Architecture:
    """Mixtral: every layer routes."""
    mixture = MixtureOfExperts(
        num_experts=size(config, "num_local_experts"),
        experts_per_token=size(config, "num_experts_per_tok"),
        expert_intermediate_size=size(config, "intermediate_size"),
    )
    return gated(config, mixture=mixture, **windowed(config))


def qwen3_moe(config: Config) -> Architecture:
    """Qwen 3 with experts; Qwen 1.5 and 2 with a gated shared expert beside them."""
    if config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1:
        raise ValueError("mlp_only_layers and decoder_sparse_step other than 1 are not modelled")
    mixture = MixtureOfExperts(
        num_experts=size(config, "num_experts", "num_local_experts"),
        experts_per_token=size(config, "num_experts_per_tok"),
        expert_intermediate_size=size(config, "moe_intermediate_size"),
    )
    if config["model_type"] == "qwen2_moe":
        shared = size(config, "shared_expert_intermediate_size")
        mixture = replace(
            mixture, num_shared_experts=1, shared_expert_intermediate_size=shared, shared_expert_gate=True
        )
        bias = bool(config.get("qkv_bias", True))
        return gated(config, mixture=mixture, attention_bias=bias, output_bias=False, **windowed(config))
    return gated(config, qk_norm=True, mixture=mixture, **windowed(config))


def deepseek(config: Config) -> Architecture:
    """DeepSeek-V2 to V3.2, Kimi K2, GLM-4.7-Flash, GLM-5: latent attention, shared experts, leading dense layers."""
    kinds = config.get("mlp_layer_types")
    mixture = MixtureOfExperts(
        num_experts=size(config, "n_routed_experts", "num_local_experts"),
        experts_per_token=size(config, "num_experts_per_tok"),
        expert_intermediate_size=size(config, "moe_intermediate_size"),
        num_shared_experts=config.get("n_shared_experts") or 0,
        num_dense_layers=kinds.count("dense") if kinds else config.get("first_k_dense_replace", 0),
    )
    kind = "deepseek_v3" if config["model_type"] == "kimi_k2" else config["model_type"]
    run_here = ("deepseek_v2", "deepseek_v3")
    return latent_attention(
        config,
        model_type=kind if kind in run_here else "other",
        mixture=mixture,
        sparse_indexer=_sparse_indexer(config) if config.get("index_topk") else None,
        num_mtp_layers=config.get("num_nextn_predict_layers") or 0,
    )


def _sparse_indexer(config: Config) -> SparseIndexer:
    """DeepSeek sparse attention; in GLM-5 some layers may take the choice of the layer before."""
    kinds = config.get("indexer_types") or config.get("index_topk_pattern")
    layers, every = size(config, "num_hidden_layers"), max(config.get("index_topk_freq") or 1, 1)
    first = config.get("index_skip_topk_offset", 2)
    count = sum(max(layer - first + 1, 0) % every == 0 for layer in range(layers))
    if kinds:
        count = sum(kind in ("full", "F") for kind in kinds)
    return SparseIndexer(
        num_heads=size(config, "index_n_heads"),
        head_dim=size(config, "index_head_dim"),
        top_k=size(config, "index_topk"),
        num_layers=None if count == layers else count,
    )


def gpt_oss(config: Config) -> Architecture:
    """gpt-oss: biases on all projections, router and experts; sinks; every other layer sees a window."""
    layers = size(config, "num_hidden_layers")
    mixture = MixtureOfExperts(
        num_experts=size(config, "num_local_experts", "num_experts"),
        experts_per_token=size(config, "num_experts_per_tok", "experts_per_token"),
        expert_intermediate_size=size(config, "intermediate_size"),
        router_bias=True,
        expert_bias=True,
    )
    window = windowed(config)
    if window and not config.get("layer_types"):
        window["sliding_window_layers"] = (layers + 1) // 2
    return gated(
        config, attention_bias=True, output_bias=True, attention_sinks=True, mixture=mixture, num_mtp_layers=0, **window
    )


def llama4(config: Config) -> Architecture:
    """Llama 4: one shared expert, dense layers between (Maverick), three of four layers see a chunk."""
    layers = size(config, "num_hidden_layers")
    step = config.get("interleave_moe_layer_step", 1)
    routed = config.get("moe_layers")
    chunk = config.get("attention_chunk_size")
    kinds = config.get("layer_types")
    every = config.get("no_rope_layer_interval", 4)
    chunked = kinds.count("chunked_attention") if kinds else layers - layers // every
    mixture = MixtureOfExperts(
        num_experts=size(config, "num_local_experts"),
        experts_per_token=size(config, "num_experts_per_tok"),
        expert_intermediate_size=size(config, "intermediate_size"),
        num_shared_experts=1,
        num_moe_layers=layers // step if routed is None else len(routed),
    )
    return gated(
        config,
        intermediate_size=size(config, "intermediate_size_mlp"),
        mixture=mixture,
        attention_chunk=chunk,
        chunked_layers=chunked if chunk else 0,
    )


def dbrx(config: Config) -> Architecture:
    """DBRX: LayerNorm without bias, gated experts in every layer."""
    inner, attention = config["ffn_config"], config["attn_config"]
    width = size(inner, "ffn_hidden_size")
    names = {
        "hidden_size": size(config, "d_model"),
        "num_hidden_layers": size(config, "n_layers"),
        "num_attention_heads": size(config, "n_heads"),
        "num_key_value_heads": size(attention, "kv_n_heads"),
        "max_position_embeddings": size(config, "max_seq_len"),
    }
    mixture = MixtureOfExperts(
        num_experts=size(inner, "moe_num_experts"),
        experts_per_token=size(inner, "moe_top_k"),
        expert_intermediate_size=width,
    )
    return gated({**config, **names}, intermediate_size=width, mixture=mixture)


EXPERT_READERS: Mapping[str, Callable[[Config], Architecture]] = {
    "mixtral": mixtral,
    "qwen2_moe": qwen3_moe,
    "qwen3_moe": qwen3_moe,
    "deepseek_v2": deepseek,
    "deepseek_v3": deepseek,
    "deepseek_v32": deepseek,
    "glm4_moe_lite": deepseek,
    "glm_moe_dsa": deepseek,
    "kimi_k2": deepseek,
    "gpt_oss": gpt_oss,
    "llama4_text": llama4,
    "dbrx": dbrx,
}
"""`model_type` -> reader."""

_WIDTHS = "layers whose heads, keys or embeddings are of unlike widths are not modelled"

UNSUPPORTED: Mapping[str, str] = {
    "mllama": "its decoder reads pictures by cross-attention, which is not modelled",
    "whisper": "an encoder and decoder joined by cross-attention are not modelled",
    "t5": "an encoder and decoder joined by cross-attention are not modelled",
    "zamba2": "layers that share weights are not modelled",
    "deepseek_v4": "attention to compressed blocks of positions is not modelled",
    "gemma4": _WIDTHS,
    "gemma4_text": _WIDTHS,
    "hunyuan_v1_moe": "a shared MLP whose width no key says is not modelled",
    "beam": "attention with a biased gate is not modelled",
    "diffllama": "attention by the difference of two softmaxes is not modelled",
}
"""`model_type` -> why there is no reader."""
