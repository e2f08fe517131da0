"""Readers of `config.json` for hybrids of attention and recurrent layers, by `model_type`."""

from collections.abc import Callable, Mapping, Sequence

from charter.catalog.config_values import Config, gated, size
from charter.spec.architecture import Architecture, MixtureOfExperts, StateSpace

_BLOCKS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
_OTHER_WORDS = {"linear_attention": "mamba", "full_attention": "attention"}


def nemotron_h(config: Config) -> Architecture:
    """Nemotron-H, Nemotron Nano 2 and Nemotron 3: a block is a mixer, an attention layer, an MLP or experts."""
    blocks = _blocks(config)
    num_moe = blocks.count("moe")
    mixture = None
    if num_moe:
        shared = config.get("n_shared_experts", 1)
        mixture = MixtureOfExperts(
            num_experts=size(config, "n_routed_experts", "num_local_experts"),
            experts_per_token=size(config, "num_experts_per_tok"),
            expert_intermediate_size=size(config, "moe_intermediate_size"),
            num_shared_experts=shared,
            shared_expert_intermediate_size=config.get("moe_shared_expert_intermediate_size") if shared else None,
            num_moe_layers=num_moe,
            expert_hidden_size=config.get("moe_latent_size"),
        )
    heads = size(config, "mamba_num_heads")
    space = StateSpace(
        num_layers=blocks.count("mamba"),
        inner_size=heads * size(config, "mamba_head_dim"),
        state_size=size(config, "ssm_state_size"),
        num_heads=heads,
        num_groups=size(config, "n_groups", "mamba_n_groups"),
        conv_kernel=size(config, "conv_kernel", "mamba_d_conv"),
        conv_bias=bool(config.get("use_conv_bias", True)),
        projection_bias=bool(config.get("use_bias", False)),
        chunk_size=config.get("chunk_size", 128),
    )
    return gated(
        {"num_hidden_layers": len(blocks), **config},
        gated_mlp=False,
        num_layers=len(blocks),
        attention_bias=False,
        output_bias=False,
        norms_per_layer=1,
        num_attention_layers=blocks.count("attention"),
        num_mlp_layers=blocks.count("mlp") + num_moe,
        state_space=space,
        mixture=mixture,
        num_mtp_layers=config.get("num_nextn_predict_layers") or 0,
        norm_eps=config.get("layer_norm_epsilon", 1e-5),
    )


def _blocks(config: Config) -> list[str]:
    pattern = config.get("layers_block_type") or config.get("layer_types") or config.get("hybrid_override_pattern")
    if not pattern:
        raise KeyError("hybrid_override_pattern")
    words = [_BLOCKS.get(block, _OTHER_WORDS.get(block, block)) for block in pattern]
    unknown = set(words) - set(_BLOCKS.values())
    if unknown:
        raise ValueError(f"blocks of kind {', '.join(sorted(unknown))} are not modelled")
    return words


def bamba(config: Config) -> Architecture:
    """Bamba: Mamba-2 in most layers, attention in a few, an MLP in all."""
    attention = len(config.get("attn_layer_indices") or ())
    space = _mamba2(config, size(config, "num_hidden_layers") - attention)
    return gated(config, num_attention_layers=attention, state_space=space)


def granite_hybrid(config: Config) -> Architecture:
    """Granite 4: Mamba-2 or attention, then experts beside a shared MLP, or that MLP alone."""
    layers = size(config, "num_hidden_layers")
    kinds = config.get("layer_types") or config.get("layers_block_type") or ["mamba"] * layers
    attention = _count(kinds, "attention", "full_attention")
    shared = size(config, "shared_intermediate_size")
    mixture = None
    if config.get("num_local_experts"):
        mixture = MixtureOfExperts(
            num_experts=size(config, "num_local_experts"),
            experts_per_token=size(config, "num_experts_per_tok"),
            expert_intermediate_size=size(config, "intermediate_size"),
            num_shared_experts=1,
            shared_expert_intermediate_size=shared,
        )
    space = _mamba2(config, layers - attention) if attention < layers else None
    return gated(config, intermediate_size=shared, num_attention_layers=attention, state_space=space, mixture=mixture)


def _mamba2(config: Config, layers: int) -> StateSpace:
    return StateSpace(
        num_layers=layers,
        inner_size=config.get("mamba_expand", 2) * size(config, "hidden_size"),
        state_size=size(config, "mamba_d_state"),
        num_heads=size(config, "mamba_n_heads"),
        num_groups=config.get("mamba_n_groups", 1),
        conv_kernel=config.get("mamba_d_conv", 4),
        conv_bias=bool(config.get("mamba_conv_bias", True)),
        projection_bias=bool(config.get("mamba_proj_bias", False)),
        chunk_size=config.get("mamba_chunk_size", 256),
    )


def jamba(config: Config) -> Architecture:
    """Jamba: Mamba-1 with inner norms, attention every eighth layer, experts every other."""
    layers, experts = size(config, "num_hidden_layers"), config.get("num_experts", 16)
    attention = _every(layers, config.get("attn_layer_period", 8), config.get("attn_layer_offset", 4))
    routed = _every(layers, config.get("expert_layer_period", 2), config.get("expert_layer_offset", 1))
    rank = config.get("mamba_dt_rank", "auto")
    space = StateSpace(
        kind="mamba1",
        num_layers=layers - attention,
        inner_size=config.get("mamba_expand", 2) * size(config, "hidden_size"),
        state_size=config.get("mamba_d_state", 16),
        conv_kernel=config.get("mamba_d_conv", 4),
        conv_bias=bool(config.get("mamba_conv_bias", True)),
        projection_bias=bool(config.get("mamba_proj_bias", False)),
        time_step_rank=None if rank == "auto" else rank,
        inner_norms=True,
    )
    mixture = MixtureOfExperts(
        num_experts=experts,
        experts_per_token=config.get("num_experts_per_tok", 2),
        expert_intermediate_size=size(config, "intermediate_size"),
        num_moe_layers=routed,
    )
    return gated(config, num_attention_layers=attention, state_space=space, mixture=mixture if experts > 1 else None)


def qwen3_next(config: Config) -> Architecture:
    """Qwen3-Next: gated delta nets in three of four layers, gated attention in the fourth, experts in all."""
    if config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1:
        raise ValueError("mlp_only_layers and decoder_sparse_step other than 1 are not modelled")
    layers = size(config, "num_hidden_layers")
    kinds = config.get("layer_types")
    attention = _count(kinds, "full_attention") if kinds else layers // config.get("full_attention_interval", 4)
    heads = size(config, "linear_num_value_heads")
    space = StateSpace(
        kind="gated_delta_net",
        num_layers=layers - attention,
        inner_size=heads * size(config, "linear_value_head_dim"),
        state_size=size(config, "linear_key_head_dim"),
        num_heads=heads,
        num_groups=size(config, "linear_num_key_heads"),
        conv_kernel=size(config, "linear_conv_kernel_dim"),
        conv_bias=False,
        chunk_size=64,
    )
    mixture = MixtureOfExperts(
        num_experts=size(config, "num_experts", "num_local_experts"),
        experts_per_token=size(config, "num_experts_per_tok"),
        expert_intermediate_size=size(config, "moe_intermediate_size"),
        num_shared_experts=1,
        shared_expert_intermediate_size=size(config, "shared_expert_intermediate_size"),
        shared_expert_gate=True,
    )
    return gated(
        config,
        qk_norm=True,
        attention_gate=True,
        num_attention_layers=attention,
        state_space=space,
        mixture=mixture,
        num_mtp_layers=config.get("num_nextn_predict_layers") or 0,
    )


def _count(kinds: Sequence[str], *names: str) -> int:
    return sum(kinds.count(name) for name in names)


def _every(layers: int, period: int, offset: int) -> int:
    return len(range(offset, layers, period))


READERS: Mapping[str, Callable[[Config], Architecture]] = {
    "nemotron_h": nemotron_h,
    "bamba": bamba,
    "granitemoehybrid": granite_hybrid,
    "jamba": jamba,
    "qwen3_next": qwen3_next,
}
"""`model_type` -> reader."""
