"""Readers of `config.json` for transformers with a mixture of experts, by `model_type`."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from charter.catalog.config_values import Config, gated, size, windowed
from charter.spec.architecture import Architecture, LatentAttention, MixtureOfExperts


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
    return gated(config, head_dim=config.get("head_dim", 128), qk_norm=True, mixture=mixture, **windowed(config))


def deepseek(config: Config) -> Architecture:
    """DeepSeek-V2, V3, R1 and Kimi K2: latent attention, shared experts, leading dense layers."""
    mixture = MixtureOfExperts(
        num_experts=size(config, "n_routed_experts", "num_local_experts"),
        experts_per_token=size(config, "num_experts_per_tok"),
        expert_intermediate_size=size(config, "moe_intermediate_size"),
        num_shared_experts=config.get("n_shared_experts") or 0,
        num_dense_layers=config.get("first_k_dense_replace", 0),
    )
    latent = LatentAttention(
        kv_lora_rank=size(config, "kv_lora_rank"),
        q_lora_rank=config.get("q_lora_rank"),
        qk_nope_head_dim=size(config, "qk_nope_head_dim"),
        qk_rope_head_dim=size(config, "qk_rope_head_dim"),
        v_head_dim=size(config, "v_head_dim"),
    )
    kind = "deepseek_v3" if config["model_type"] == "kimi_k2" else config["model_type"]
    return gated(
        config,
        model_type=kind,
        head_dim=None,
        mixture=mixture,
        latent_attention=latent,
        num_mtp_layers=config.get("num_nextn_predict_layers") or 0,
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


READERS: Mapping[str, Callable[[Config], Architecture]] = {
    "mixtral": mixtral,
    "qwen2_moe": qwen3_moe,
    "qwen3_moe": qwen3_moe,
    "deepseek_v2": deepseek,
    "deepseek_v3": deepseek,
    "kimi_k2": deepseek,
    "gpt_oss": gpt_oss,
    "llama4_text": llama4,
    "dbrx": dbrx,
}
"""`model_type` -> reader."""
