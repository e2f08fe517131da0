"""Formats of stored weights for generation, and their cost: bytes, arithmetic, dequantisation."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class WeightFormat:
    """A storage format of the linear layers; embedding and output projection stay at 16 bits."""

    name: str
    bytes_per_weight: float
    compute: str
    """Dtype of the matrix products, by the names of the catalog's peaks."""
    weight_only: bool = False
    """Weights are expanded to 16 bits inside the kernel."""
    python_share: float = 0.0
    """Of the host time that a quantised linear layer adds in eager mode: 1 where kernels are wrapped in Python."""
    head_bytes: float = 2.0
    cache_bytes: float = 2.0
    """Bytes of a cached key or value that usually go with it."""


BF16 = WeightFormat(name="bf16", bytes_per_weight=2.0, compute="bf16")
FORMATS: tuple[tuple[str, WeightFormat], ...] = (
    (
        r"nf4|bnb.*4|qlora|4[- ]?bit.*(bnb|bitsandbytes)",
        WeightFormat(name="nf4", bytes_per_weight=0.53, compute="bf16", weight_only=True, python_share=1.0),
    ),
    (
        r"mxfp4|w4a16.*fp4",
        WeightFormat(name="mxfp4", bytes_per_weight=0.53, compute="fp8"),
    ),
    (r"fp4|nvfp4", WeightFormat(name="fp4", bytes_per_weight=0.5625, compute="fp4", cache_bytes=1.0)),
    (
        r"q4_?|awq|gptq(?!.*8)|int4|w[34]a16|w4a8|int-4|[2-4][- ]?bit|u4|\bi4\b|q5_?|q3_?|q2_?|\b[2-5](\.\d+)? ?bpw|"
        r"squeezellm|aqlm|quip|hqq",
        WeightFormat(name="int4", bytes_per_weight=0.52, compute="bf16", weight_only=True, python_share=0.05),
    ),
    (
        r"gptq.*8|q8_?0?|q6_?|w8a16|bnb.*8|llm\.int8|[6-8](\.\d+)? ?bpw|fp6",
        WeightFormat(name="gptq-int8", bytes_per_weight=1.02, compute="bf16", weight_only=True, python_share=1.0),
    ),
    (r"fp8|f8|e4m3|w8a8.*fp|float8", WeightFormat(name="fp8", bytes_per_weight=1.0, compute="fp8", python_share=1.4)),
    (r"w8a8|smooth", WeightFormat(name="int8", bytes_per_weight=1.0, compute="int8", python_share=1.0)),
    (
        r"^int8|^8[- ]?bit|[^+] ?int8(?! *kv)",
        WeightFormat(name="int8", bytes_per_weight=1.02, compute="bf16", weight_only=True, python_share=0.15),
    ),
    (
        r"fp32|float32|^32",
        WeightFormat(name="fp32", bytes_per_weight=4.0, compute="fp32", head_bytes=4.0, cache_bytes=4.0),
    ),
    (r"(?<!b)f(p|loat)?16|half", WeightFormat(name="fp16", bytes_per_weight=2.0, compute="fp16")),
)


def weight_format(printed: str) -> WeightFormat:
    """The format behind a dtype as printed; blank or unknown is bf16.

    >>> weight_format("bnb.nf4-dq").name, weight_format("GPTQ-Int8").name, weight_format("bf16 + int8 KV").name
    ('nf4', 'gptq-int8', 'bf16')
    >>> weight_format("AWQ-INT4").bytes_per_weight, weight_format("FP8").compute, weight_format("").name
    (0.52, 'fp8', 'bf16')
    """
    lowered = printed.casefold().strip()
    lowered = re.sub(r"(int8|fp8|8[- ]?bit|int4|4[- ]?bit)[ -]*(kv|cache)\w*", "", lowered)
    lowered = re.sub(r"(kv|cache)[ -=:]*(int8|fp8|8[- ]?bit)", "", lowered)
    for pattern, stored in FORMATS:
        if re.search(pattern, lowered):
            return stored
    return BF16


def cache_bytes_per_value(printed: str, weights: WeightFormat, *, follows_weights: bool) -> float:
    """Bytes of a cached value: as printed, else 1 where an engine's 8-bit checkpoints bring 8-bit caches, else 2.

    >>> cache_bytes_per_value("bf16 + int8 KV", BF16, follows_weights=False)
    1.0
    """
    lowered = printed.casefold()
    if re.search(r"(int8|fp8|8[- ]?bit)[ -]*(kv|cache)|(kv|cache)[^,;]{0,12}(int8|fp8|8[- ]?bit)", lowered):
        return 1.0
    if follows_weights and weights.compute in ("fp8", "fp4"):
        return 1.0
    return max(2.0, weights.cache_bytes) if weights.name == "fp32" else 2.0
