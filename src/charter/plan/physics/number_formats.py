"""Support for training a stage in its number format: by its engine, and on an accelerator."""

from charter.catalog.accelerators import Accelerator, catalog
from charter.spec.number_formats import FP8, INSTEAD, fp8_refusal

MAKER = "NVIDIA"
"""Of the accelerators for which TransformerEngine has products in 8 bits (compute capability 8.9 and later)."""
FP8_COPIES_BYTES = 2.0
"""Per parameter of the layers: 8-bit copies of 16-bit weights, as they are and transposed."""


def format_refusal(dtype: str, engine: str, kind: str, accelerator: Accelerator) -> str | None:
    """Return why a stage cannot be trained so there, with accelerators on which it can; None where it can."""
    if dtype != FP8:
        return None
    reason = fp8_refusal(engine, kind)
    if reason is not None:
        return f"dtype fp8: {reason}; {INSTEAD}"
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
