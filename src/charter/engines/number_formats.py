"""Matrix products in 8 bits: the engines that train with them, and the accelerators that have them."""

from charter.catalog.accelerators import Accelerator, catalog
from charter.engines import ENGINES, capabilities
from charter.spec.stage import FP8

MAKER = "NVIDIA"
"""Of the accelerators for which TransformerEngine has products in 8 bits (compute capability 8.9 and later)."""
FP8_COPIES_BYTES = 2.0
"""Per parameter of the layers: 8-bit copies of 16-bit weights, as they are and transposed."""


def instead() -> str:
    """Return what works where a stage cannot be trained in fp8."""
    able = [engine.capabilities for engine in ENGINES if engine.capabilities.fp8_kinds]
    return ", or ".join(
        [*(f"engine: {item.name} in a stage of kind {' or '.join(item.fp8_kinds)}" for item in able), "dtype: bf16"]
    )


def fp8_refusal(engine: str, kind: str) -> str | None:
    """Return the reason why a stage cannot be trained in fp8, or None.

    >>> fp8_refusal("megatron", "sft"), fp8_refusal("megatron", "ppo")
    (None, 'megatron trains stages of kind pretrain, sft in fp8, this is ppo')
    """
    able = capabilities(engine)
    if not able.fp8_kinds:
        return f"{engine} does not train in fp8: {able.without_fp8}"
    if kind in able.fp8_kinds:
        return None
    return f"{engine} trains stages of kind {', '.join(able.fp8_kinds)} in fp8, this is {kind}"


def format_refusal(dtype: str, engine: str, kind: str, accelerator: Accelerator) -> str | None:
    """Return why a stage cannot be trained so there, with accelerators on which it can; None where it can."""
    if dtype != FP8:
        return None
    reason = fp8_refusal(engine, kind)
    if reason is not None:
        return f"dtype fp8: {reason}; {instead()}"
    if multiplies_in_fp8(accelerator):
        return None
    able = ", ".join(item.name for item in catalog() if multiplies_in_fp8(item))
    lacks = f"{accelerator.name} has none by TransformerEngine"
    return f"dtype fp8: {lacks}; of the catalog these have: {able}; or dtype: bf16"


def multiplies_in_fp8(accelerator: Accelerator) -> bool:
    """Return True if TransformerEngine multiplies in 8 bits on it.

    >>> from charter.catalog.accelerators import get
    >>> [multiplies_in_fp8(get(name)) for name in ("A100", "H100", "L40S", "B200", "MI300X")]
    [False, True, True, True, False]
    """
    return accelerator.vendor == MAKER and FP8 in accelerator.dense_flops_per_second
