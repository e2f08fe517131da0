"""Readers of `config.json` for hybrids with recurrent layers and for decoders with a vision encoder."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from charter.catalog.config_readers import DEFAULTS, Config, gated, size
from charter.catalog.config_readers import DENSE_READERS as DENSE
from charter.spec.architecture import Architecture, Encoder, MixtureOfExperts, StateSpace

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
    """Qwen3-Next and Qwen3.5: gated delta nets in three of four layers, gated attention in the fourth."""
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
    mixture, dense = None, {}
    if config["model_type"] != "qwen3_5_text":
        shared = size(config, "shared_expert_intermediate_size")
        mixture = MixtureOfExperts(
            num_experts=size(config, "num_experts", "num_local_experts"),
            experts_per_token=size(config, "num_experts_per_tok"),
            expert_intermediate_size=size(config, "moe_intermediate_size"),
            num_shared_experts=1,
            shared_expert_intermediate_size=shared,
            shared_expert_gate=True,
        )
        # Qwen3.5's configuration has no width of a dense MLP, since no layer has one.
        dense = {"intermediate_size": config.get("intermediate_size") or shared}
    return gated(
        config,
        model_type="qwen3_next" if config["model_type"] == "qwen3_next" else "other",
        qk_norm=True,
        attention_gate=True,
        num_attention_layers=attention,
        state_space=space,
        mixture=mixture,
        num_mtp_layers=config.get("num_nextn_predict_layers") or config.get("mtp_num_hidden_layers") or 0,
        **dense,
    )


def _count(kinds: Sequence[str], *names: str) -> int:
    return sum(kinds.count(name) for name in names)


def _every(layers: int, period: int, offset: int) -> int:
    return len(range(offset, layers, period))


HYBRID_READERS: Mapping[str, Callable[[Config], Architecture]] = {
    "nemotron_h": nemotron_h,
    "bamba": bamba,
    "granitemoehybrid": granite_hybrid,
    "jamba": jamba,
    "qwen3_next": qwen3_next,
    "qwen3_5_text": qwen3_next,
    "qwen3_5_moe_text": qwen3_next,
}
"""`model_type` -> reader."""


QWEN_PICTURE = 448
"""Pixels on a side of the picture that stands for all."""


def qwen_vl(config: Config) -> Architecture:
    """Qwen2-VL and Qwen2.5-VL: a rotary encoder, four patches merged into one token."""
    text = _text(config, "qwen2")
    decoder = DENSE["qwen2"](text)
    vision = config["vision_config"]
    encoder = _qwen2_encoder if config["model_type"] == "qwen2_vl" else _qwen25_encoder
    return replace(decoder, model_type=config["model_type"], encoder=encoder(vision, decoder.hidden_size))


def _qwen2_encoder(vision: Config, decoder_width: int) -> Encoder:
    width = size(vision, "embed_dim")
    return Encoder(
        hidden_size=width,
        intermediate_size=int(width * vision.get("mlp_ratio", 4)),
        **_qwen_common(vision, width, decoder_width, norm=2),
    )


def _qwen25_encoder(vision: Config, decoder_width: int) -> Encoder:
    width, patch = size(vision, "hidden_size"), size(vision, "patch_size", "spatial_patch_size")
    full = vision.get("fullatt_block_indexes", (7, 15, 23, 31))
    return Encoder(
        hidden_size=width,
        intermediate_size=size(vision, "intermediate_size"),
        gated_mlp=True,
        norm_parameters_per_feature=1,
        window_tokens=(vision.get("window_size", 112) // patch) ** 2,
        windowed_layers=size(vision, "depth") - len(full),
        **_qwen_common(vision, width, decoder_width, norm=1),
    )


def _qwen_common(vision: Config, width: int, decoder_width: int, *, norm: int) -> dict[str, Any]:
    patch, merge = size(vision, "patch_size", "spatial_patch_size"), vision.get("spatial_merge_size", 2)
    patches = (QWEN_PICTURE // patch) ** 2
    merged = width * merge**2
    matrices = merged * (merged + decoder_width)
    channels = vision.get("in_channels") or vision.get("in_chans") or 3
    return {
        "num_layers": size(vision, "depth"),
        "num_heads": size(vision, "num_heads"),
        "tokens_per_sample": patches,
        "output_tokens_per_sample": patches // merge**2,
        "embedding_parameters": channels * vision.get("temporal_patch_size", 2) * patch**2 * width,
        "projector_parameters": matrices + merged + decoder_width + norm * width,
        "projector_matrix_parameters": matrices,
        "outer_norms": 0,
    }


def gemma3(config: Config) -> Architecture:
    """Gemma 3 with SigLIP: 4,096 patches pooled to 256 tokens."""
    decoder = DENSE["gemma3_text"](_text(config, "gemma3_text"))
    vision = config["vision_config"]
    width = size(vision, "hidden_size")
    patches = (size(vision, "image_size") // size(vision, "patch_size")) ** 2
    matrix = width * decoder.hidden_size
    encoder = _vit(
        vision,
        tokens=patches,
        embedding=_patch_parameters(vision, bias=True) + patches * width,
        output_tokens=config.get("mm_tokens_per_image", 256),
        projector=(matrix + width, matrix),
        outer_norms=1,
    )
    return replace(decoder, model_type="gemma3", encoder=encoder)


def llava(config: Config) -> Architecture:
    """LLaVA 1.5 with CLIP: a patch is a token, two linear layers join encoder and decoder."""
    kind = config["text_config"].get("model_type", "llama")
    if kind not in DENSE or config["vision_config"].get("model_type") != "clip_vision_model":
        raise ValueError("only a CLIP encoder in front of a dense decoder is modelled")
    decoder = DENSE[kind](_text(config, kind))
    vision = config["vision_config"]
    width, bias = size(vision, "hidden_size"), bool(config.get("multimodal_projector_bias", True))
    patches = (size(vision, "image_size") // size(vision, "patch_size")) ** 2
    matrices = decoder.hidden_size * (width + decoder.hidden_size)
    encoder = _vit(
        vision,
        tokens=patches + 1,
        embedding=_patch_parameters(vision, bias=False) + (patches + 2) * width,
        output_tokens=patches,
        projector=(matrices + 2 * bias * decoder.hidden_size, matrices),
        outer_norms=2,
    )
    return replace(decoder, model_type="llava", encoder=encoder)


def _vit(
    vision: Config, *, tokens: int, embedding: int, output_tokens: int, projector: tuple[int, int], outer_norms: int
) -> Encoder:
    return Encoder(
        hidden_size=size(vision, "hidden_size"),
        num_layers=size(vision, "num_hidden_layers"),
        num_heads=size(vision, "num_attention_heads"),
        intermediate_size=size(vision, "intermediate_size"),
        tokens_per_sample=tokens,
        output_tokens_per_sample=output_tokens,
        embedding_parameters=embedding,
        projector_parameters=projector[0],
        projector_matrix_parameters=projector[1],
        outer_norms=outer_norms,
    )


def _patch_parameters(vision: Config, *, bias: bool) -> int:
    channels: int = vision.get("num_channels", 3)
    return size(vision, "hidden_size") * (channels * size(vision, "patch_size") ** 2 + bias)


def _text(config: Config, kind: str) -> dict[str, Any]:
    """The decoder's part: `text_config`, or the flat keys of older files; what it leaves out is its class's default."""
    text = dict(config.get("text_config") or config)
    if config.get("tie_word_embeddings") is not None:
        text.setdefault("tie_word_embeddings", config["tie_word_embeddings"])
    return {**DEFAULTS.get(kind, {}), **text, "model_type": kind}


VISION_READERS: Mapping[str, Callable[[Config], Architecture]] = {
    "qwen2_vl": qwen_vl,
    "qwen2_5_vl": qwen_vl,
    "gemma3": gemma3,
    "llava": llava,
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
