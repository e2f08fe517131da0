"""Read a Hugging Face `config.json` as an `Architecture`: by its `model_type`, or as one of the Llama family."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from charter.catalog.config_readers import DENSE_READERS as DENSE
from charter.catalog.config_readers import EXPERT_READERS as EXPERTS
from charter.catalog.config_readers import Config, gated, size, windowed
from charter.catalog.config_variants import HYBRID_READERS as HYBRID
from charter.catalog.config_variants import UNSUPPORTED
from charter.catalog.config_variants import VISION_READERS as VISION
from charter.errors import DataError, loads_json
from charter.spec.architecture import Architecture, MixtureOfExperts
from charter.spec.checks import check_heads

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
    return reading_of_mapping(config, str(file))


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
    **DENSE,
    **EXPERTS,
    **HYBRID,
    **VISION,
    **dict.fromkeys(_TRAITS, like_llama),
}
