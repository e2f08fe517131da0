"""Number formats that not every engine computes in: fp8, who trains in it, and why the others do not."""

from collections.abc import Mapping
from types import MappingProxyType

FP8 = "fp8"
FP8_KINDS: Mapping[str, tuple[str, ...]] = MappingProxyType({"megatron": ("pretrain", "sft")})
"""Engine -> kinds of stage that it trains with matrix products in 8 bits."""
_ACCELERATE = "linear layers of torchao or TransformerEngine under Accelerate are not mapped; none of it was checked"
WITHOUT_FP8: Mapping[str, str] = MappingProxyType(
    {
        "native": "it multiplies in 32 bits, or in 16 by autocast",
        "trl": _ACCELERATE,
        "accelerate": _ACCELERATE,
        "deepspeed": "it is told of 16-bit weights beside an fp32 copy; products in 8 bits are not mapped",
        "fsdp": "it gathers weights in 16 bits and multiplies them so",
        "verl": "its FSDP gathers parameters in bfloat16",
        "openrlhf": "--ds.param_dtype is bf16 or fp16",
        "nemo_rl": "fp8_cfg belongs to its Megatron backend; the DTensor backend, which is rendered, has none",
    }
)
"""Engine -> why a stage of it cannot ask for fp8."""
INSTEAD = "engine: megatron in a stage of kind pretrain or sft, or dtype: bf16"


def fp8_refusal(engine: str, kind: str) -> str | None:
    """Return the reason why a stage cannot be trained in fp8, or None.

    >>> fp8_refusal("megatron", "sft"), fp8_refusal("megatron", "ppo")
    (None, 'megatron trains stages of kind pretrain, sft in fp8, this is ppo')
    """
    kinds = FP8_KINDS.get(engine)
    if kinds is None:
        return f"{engine} does not train in fp8: {WITHOUT_FP8[engine]}"
    return None if kind in kinds else f"{engine} trains stages of kind {', '.join(kinds)} in fp8, this is {kind}"
