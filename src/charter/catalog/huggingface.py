"""Read a Hugging Face `config.json` as an `Architecture`: by its `model_type`, or as one of the Llama family."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from charter.catalog.config_readers import (
    DEFAULTS,
    DENSE_READERS,
    EXPERT_READERS,
    UNSUPPORTED,
    Config,
    gated,
    size,
    stored_format,
    windowed,
)
from charter.errors import DataError, loads_json
from charter.spec.architecture import Architecture, Encoder, MixtureOfExperts, StateSpace
from charter.spec.checks import check_heads

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


QWEN_PICTURE = 448
"""Pixels on a side of the picture that stands for all."""


def qwen_vl(config: Config) -> Architecture:
    """Qwen2-VL and Qwen2.5-VL: a rotary encoder, four patches merged into one token."""
    text = _text(config, "qwen2")
    decoder = DENSE_READERS["qwen2"](text)
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
    decoder = DENSE_READERS["gemma3_text"](_text(config, "gemma3_text"))
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
    if kind not in DENSE_READERS or config["vision_config"].get("model_type") != "clip_vision_model":
        raise ValueError("only a CLIP encoder in front of a dense decoder is modelled")
    decoder = DENSE_READERS[kind](_text(config, kind))
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


MAX_BYTES = 2**24
"""The largest configurations, with a scale for each layer's quantisation, have some hundred kB."""


@dataclass(frozen=True, kw_only=True)
class ConfigReading:
    """An architecture, and what had to be assumed to read it."""

    architecture: Architecture
    assumption: str = ""
    """Empty where a reader of the `model_type` read it."""
    left_out: tuple[str, ...] = ()
    """Keys of the parts beside the decoder that are not in the architecture: `vision_config`, `audio_config`."""
    stored: str = "bf16"
    """Format of its matrices in the files."""

    @property
    def sentence(self) -> str:
        """Return the sentence for a plan; empty where nothing was assumed or left out."""
        parts = [self.assumption] if self.assumption else []
        if self.left_out:
            names = ", ".join(self.left_out)
            parts.append(f"the text part alone is planned: {names} is not, neither its parameters nor its tokens")
        return "; ".join(parts)


def architecture_from_config(path: Path | str) -> Architecture:
    """The architecture a `config.json` (or the directory that holds one) describes."""
    return read_config(path).architecture


def read_config(path: Path | str) -> ConfigReading:
    """Read a `config.json`, or that of a directory; an unknown `model_type` as one of the Llama family, and says so."""
    file = _config_file(Path(path).expanduser())
    try:
        if file.stat().st_size > MAX_BYTES:
            raise DataError(f"{file} is larger than {MAX_BYTES >> 20} MiB; a model's configuration is not")
        config = loads_json(file.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise DataError(f"{file} is not valid JSON ({error})") from None
    except OSError as error:
        raise DataError(f"{file} cannot be read ({error.strerror})") from None
    if not isinstance(config, dict):
        raise DataError(f"{file} holds {type(config).__name__}, not a JSON object as a Hugging Face config.json does")
    return replace(reading_of_mapping(config, str(file)), stored=stored_format(config))


def architecture_from_mapping(config: Config) -> Architecture | None:
    """The architecture a configuration describes; none where it could only be assumed."""
    reading = reading_of_mapping(config)
    return None if reading.assumption else reading.architecture


def reading_of_mapping(config: Config, file: str = "config.json") -> ConfigReading:
    """Read a configuration by the reader of its `model_type`, or else as one of the Llama family.

    Raises `DataError` where a key is missing, a value is impossible, or a key says that the arithmetic is another.
    """
    kind = str(config.get("model_type"))
    if kind in UNSUPPORTED:
        raise DataError(f"{file}: model_type {kind!r} cannot be planned: {UNSUPPORTED[kind]}")
    if isinstance(config.get("text_config"), dict) and (kind not in _READERS or "vision_config" not in config):
        return _decoder_alone(config, file)
    if "model_type" not in config:
        raise DataError(f"{file}: the key 'model_type' is missing")
    reader = _READERS.get(kind)
    try:
        shape = reader(config) if reader else like_llama(config)
        wrong = next(check_heads(shape, kind), None)
    except KeyError as missing:
        needs = f"a {kind} configuration needs it"
        if reader is None:
            needs = f"model_type {kind!r} is not known, and to be read as one of the Llama family it needs it"
        raise DataError(f"{file}: the key {missing} is missing; {needs}") from None
    except NotLikeLlama as difference:
        if reader is not None:
            raise DataError(f"{file}: model_type {kind!r} is not modelled with this key: {difference}") from None
        readable = ", ".join(sorted(_READERS))
        message = f"model_type {kind!r} is not known, and it is not of the Llama family: {difference}"
        raise DataError(f"{file}: {message}; known are {readable}") from None
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise DataError(f"{file}: a value has the wrong type or size ({error})") from None
    if wrong is not None:
        raise DataError(f"{file}: {wrong.path}: {wrong.message}")
    if reader is not None:
        return ConfigReading(architecture=shape)
    return ConfigReading(architecture=shape, assumption=_assumption(config, shape), left_out=_parts_beside(config))


class NotLikeLlama(Exception):
    """A key that says that a model computes something else than the Llama family."""


_OTHER_ARITHMETIC = re.compile(
    r"ssm|mamba|recurrent|rwkv|lru_|xlstm|slstm|conv_|_conv|d_conv|linear_(num|key|value|attn|conv)|gla_|kda|delta|hybrid"
    r"|kv_lora|q_lora|qk_rope_head|index_(topk|head|n_)|cross_attention|encoder_|is_encoder_decoder|block_configs|altup"
    r"|laurel|per_layer|kv_shared|zero_expert|engram|num_hash|share_|shared_layer|embedding_size|embed_proj|factor_size"
    r"|attention_types|attn_layer|num_blocks|num_loops|parallel_(attn|residual)|multi_query|alibi|timestep|codebook"
    r"|_cycles|per_stack|keep_window|kv_channels"
)
"""Names of keys of recurrent, convolutional, latent and cross attention, layers that are shared or of unlike widths."""

_SILU = ("silu", "swish", "swiglu", "swigluoai")
_KNOWN_LAYERS = ("full_attention", "sliding_attention")


_ACROSS = {"qk_norm": True, "qk_norm_across_heads": True}
_TRAITS: Mapping[str, dict[str, Any]] = {
    "olmo2": _ACROSS,
    "olmo3": _ACROSS,
    "olmoe": _ACROSS,
    "flex_olmo": _ACROSS,
    "minimax_m2": _ACROSS,
    "exaone4": {"qk_norm": True},
    "exaone_moe": {"qk_norm": True},
    "dots1": {"qk_norm": True},
    "hunyuan_v1_dense": {"qk_norm": True},
    "hy_v3": {"qk_norm": True},
    "mellum": {"qk_norm": True},
    "glm": {"output_bias": False},
    "glm4": {"output_bias": False, "norms_per_layer": 4},
    "glm4_moe": {"output_bias": False},
    "phimoe": {"norm_parameters_per_feature": 2},
    "granite_swa": {"attention_sinks": True},
    "granitemoe_swa": {"attention_sinks": True},
    "flint": {"qk_norm": True, "attention_sinks": True},
    "kolibri1": {"qk_norm": True, "norms_per_layer": 4},
    "afmoe": {"qk_norm": True, "norms_per_layer": 4, "attention_gate": True},
    "ernie4_5_moe": {},
    "hyperclovax": {},
}
"""Types of the Llama family, and what they have that no key of theirs says."""

_CORRECTED_ROUTERS = ("afmoe", "ernie4_5_moe")
"""Types that store the correction of their router's choice among the parameters."""


def like_llama(config: Config) -> Architecture:
    """Read a decoder by the names that the Llama family and its mixtures of experts use.

    RMSNorm before attention and MLP, grouped-query attention, rotary positions and a MLP with a gate; experts by any of
    the names that Mixtral, Qwen and DeepSeek gave them. A key that says that the layers compute something else raises
    `NotLikeLlama`, so does an activation that does not tell whether there is a gate.

    >>> shape = like_llama({"model_type": "new", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    ...                     "intermediate_size": 160, "vocab_size": 512, "rms_norm_eps": 1e-6, "hidden_act": "silu"})
    >>> shape.model_type, shape.kv_heads, shape.gated_mlp
    ('other', 4, True)
    """
    for difference in _differences(config):
        raise NotLikeLlama(difference)
    if config.get("rms_norm_eps") is None and config.get("norm_eps") is None:
        raise KeyError("rms_norm_eps")
    mixture = _experts(config)
    bias = bool(config.get("attention_bias", config.get("use_qkv_bias", config.get("use_bias", False))))
    norms = ("use_qk_norm", "qk_norm", "qk_layernorm", "use_qk_layernorm")
    shape: dict[str, Any] = {
        "model_type": "other",
        "attention_bias": bias,
        "output_bias": bool(config.get("attention_out_bias", bias)),
        "norms_per_layer": 4 if config.get("use_post_norm") else 2,
        "qk_norm": any(config.get(name) for name in norms),
        "head_bias": bool(config.get("lm_head_bias")),
        "num_mtp_layers": config.get("num_nextn_predict_layers") or 0,
        "norm_eps": config.get("rms_norm_eps") or config["norm_eps"],
    }
    if mixture is not None:
        dense = config.get("intermediate_size") or mixture.expert_intermediate_size
        shape |= {"mixture": mixture, "intermediate_size": dense}
    return gated(config, **(shape | windowed(config) | _TRAITS.get(str(config.get("model_type")), {})))


def _differences(config: Config) -> Iterator[str]:
    """Reasons to take a model for none of the Llama family."""
    for key, value in config.items():
        if _OTHER_ARITHMETIC.search(key) and value not in (None, False, 0, [], {}):
            yield f"{key} = {str(value)[:40]} says that its layers compute something else"
    act = config.get("hidden_act", config.get("hidden_activation", config.get("activation_function")))
    if act is None:
        raise KeyError("hidden_act")
    if act not in _SILU:
        yield f"hidden_act = {act!r} does not tell whether the MLP has a gate"
    kinds = config.get("layer_types") or ()
    strange = sorted({str(kind) for kind in kinds} - set(_KNOWN_LAYERS))
    if strange:
        yield f"layer_types has {', '.join(strange)}"
    if config.get("decoder_sparse_step", 1) != 1:
        yield f"decoder_sparse_step = {config['decoder_sparse_step']}: experts in a pattern that is not modelled"
    if config.get("v_head_dim") not in (None, config.get("head_dim")):
        yield f"v_head_dim = {config['v_head_dim']}: its values are of another width than its keys"
    strange = sorted({str(kind) for kind in config.get("mlp_layer_types") or ()} - {"dense", "sparse"})
    if strange:
        yield f"mlp_layer_types has {', '.join(strange)}"


def _experts(config: Config) -> MixtureOfExperts | None:
    """The experts, by whichever name; none in a dense model."""
    names = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_routed_experts")
    given = [name for name in names if config.get(name)]
    if not given or config.get("is_moe") is False:
        return None
    shared_width = config.get("shared_expert_intermediate_size")
    shared = _first(config, "n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
    kinds, dense = config.get("mlp_layer_types"), config.get("mlp_only_layers")
    routed = kinds.count("sparse") if kinds else None
    if dense and not kinds:
        routed = size(config, "num_hidden_layers") - len(dense)
    return MixtureOfExperts(
        num_experts=size(config, *given),
        experts_per_token=size(
            config, "num_experts_per_tok", "moe_k", "moe_topk", "moe_top_k", "num_experts_per_token"
        ),
        expert_intermediate_size=size(config, "moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size"),
        num_shared_experts=shared or (1 if shared_width else 0),
        shared_expert_intermediate_size=shared_width,
        num_dense_layers=_first(config, "first_k_dense_replace", "num_dense_layers", "moe_layer_start_index"),
        num_moe_layers=routed,
        router_bias=config.get("model_type") in _CORRECTED_ROUTERS,
    )


def _first(config: Config, *names: str) -> int:
    """The first of the named keys that is set; 0 without."""
    return next((size(config, name) for name in names if config.get(name)), 0)


def _decoder_alone(config: Config, file: str) -> ConfigReading:
    """The text part of a configuration whose other parts no reader knows."""
    text = dict(config["text_config"])
    if config.get("tie_word_embeddings") is not None:
        text.setdefault("tie_word_embeddings", config["tie_word_embeddings"])
    reading = reading_of_mapping(text, f"{file}, text_config")
    return replace(reading, left_out=(*reading.left_out, *_parts_beside(config)))


def _parts_beside(config: Config) -> tuple[str, ...]:
    """Keys of encoders beside the decoder."""
    return tuple(name for name in ("vision_config", "audio_config") if config.get(name))


def _assumption(config: Config, shape: Architecture) -> str:
    """Return the assumption in words: how the model was read, and in how many layers it has experts."""
    text = f"model_type {config['model_type']!r} is not known: read as one of the Llama family"
    text += " (RMSNorm, grouped-query attention, rotary positions, MLP with a gate)"
    if shape.mixture is not None:
        text += f", with experts in {shape.moe_layers} of {shape.num_layers} layers"
    if config.get("tie_word_embeddings") is None:
        text += "; without tie_word_embeddings, so with a head of its own"
    return text


def _config_file(path: Path) -> Path:
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        what = "the directory has no config.json" if path.is_dir() else "there is no such file"
        raise DataError(f"{path}: {what}; expected a Hugging Face model directory or the path of its config.json")
    return file


_READERS: Mapping[str, Callable[[Config], Architecture]] = {
    **DENSE_READERS,
    **EXPERT_READERS,
    "nemotron_h": nemotron_h,
    "bamba": bamba,
    "granitemoehybrid": granite_hybrid,
    "jamba": jamba,
    "qwen3_next": qwen3_next,
    "qwen3_5_text": qwen3_next,
    "qwen3_5_moe_text": qwen3_next,
    "qwen2_vl": qwen_vl,
    "qwen2_5_vl": qwen_vl,
    "gemma3": gemma3,
    "llava": llava,
    **dict.fromkeys(_TRAITS, like_llama),
}
