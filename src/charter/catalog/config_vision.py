"""Readers of `config.json` for decoders with a vision encoder in front, by `model_type`.

How many tokens a picture takes is fixed for CLIP and SigLIP; Qwen2-VL and 2.5-VL keep a picture's own size, for which
one of 448 x 448 stands here (1,024 patches, 256 tokens).
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from charter.catalog.config_dense import DEFAULTS
from charter.catalog.config_dense import READERS as DENSE
from charter.catalog.config_values import Config, size
from charter.spec.architecture import Architecture, Encoder

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


READERS: Mapping[str, Callable[[Config], Architecture]] = {
    "qwen2_vl": qwen_vl,
    "qwen2_5_vl": qwen_vl,
    "gemma3": gemma3,
    "llava": llava,
}
"""`model_type` -> reader."""

UNSUPPORTED: Mapping[str, str] = {
    "mllama": "its decoder reads pictures by cross-attention, which is not modelled",
    "whisper": "an encoder and decoder joined by cross-attention are not modelled",
    "t5": "an encoder and decoder joined by cross-attention are not modelled",
    "zamba2": "layers that share weights are not modelled",
}
"""`model_type` -> why there is no reader."""
