"""Which engine and which server runs on which accelerator, and where matrix products in 8 bits do."""

from charter.catalog.accelerators import CPU, Accelerator, catalog
from charter.engines import capabilities, engine_names, fp8_instead, fp8_refusal
from charter.engines.common.capabilities import AMD, NVIDIA, one_of
from charter.spec.stage import FP8

SERVER_MAKERS = (NVIDIA, AMD, "Google")
"""Of accelerators on which vLLM answers, which is what pools are planned with (docs.vllm.ai, "Installation")."""
FP8_COPIES_BYTES = 2.0
"""Per parameter of the layers: 8-bit copies of 16-bit weights, as they are and transposed."""


def hardware_refusal(engine: str, kind: str, accelerator: Accelerator) -> str | None:
    """Return why an engine does not train on an accelerator, with those that do; None where it does.

    Every engine of PyTorch runs on processors too, slowly.

    >>> from charter.catalog.accelerators import get
    >>> hardware_refusal("native", "sft", get("H100")) is None
    True
    >>> hardware_refusal("native", "sft", get("Trainium2"))
    'engine native does not run on Trainium2 (AWS), nor does any other engine that Charter knows'
    """
    if accelerator.vendor in capabilities(engine).makers or accelerator.kind == CPU:
        return None
    tables = [capabilities(name) for name in engine_names()]
    others = [one.name for one in tables if accelerator.vendor in one.makers and kind in one.kinds]
    instead = f"; engine: {one_of(tuple(others))} does" if others else ", nor does any other engine that Charter knows"
    return f"engine {engine} does not run on {accelerator.name} ({accelerator.vendor}){instead}"


def server_refusal(accelerator: Accelerator) -> str | None:
    """Return why no server of models is planned on an accelerator; None where one is.

    >>> from charter.catalog.accelerators import get
    >>> server_refusal(get("TPU-v5p")) is None, server_refusal(get("Gaudi3"))
    (True, 'vLLM does not run on Gaudi3-128GB (Intel), as Charter starts it')
    """
    if accelerator.vendor in SERVER_MAKERS or accelerator.kind == CPU:
        return None
    return f"vLLM does not run on {accelerator.name} ({accelerator.vendor}), as Charter starts it"


def format_refusal(dtype: str, engine: str, kind: str, accelerator: Accelerator) -> str | None:
    """Return why a stage cannot be trained so there, with accelerators on which it can; None where it can."""
    if dtype != FP8:
        return None
    reason = fp8_refusal(engine, kind)
    if reason is not None:
        return f"dtype fp8: {reason}; {fp8_instead()}"
    if multiplies_in_fp8(accelerator):
        return None
    able = ", ".join(item.name for item in catalog() if multiplies_in_fp8(item))
    lacks = f"{accelerator.name} has none by TransformerEngine"
    return f"dtype fp8: {lacks}; of the catalog these have: {able}; or dtype: bf16"


def multiplies_in_fp8(accelerator: Accelerator) -> bool:
    """Return True if TransformerEngine multiplies in 8 bits on it (compute capability 8.9 and later).

    >>> from charter.catalog.accelerators import get
    >>> [multiplies_in_fp8(get(name)) for name in ("A100", "H100", "L40S", "B200", "MI300X")]
    [False, True, True, True, False]
    """
    return accelerator.vendor == NVIDIA and FP8 in accelerator.dense_flops_per_second
