"""Accelerators that engines and servers run on, and the words in which the others are refused."""

from charter.catalog.accelerators import CPU, Accelerator
from charter.engines import capabilities, engine_names
from charter.engines.common.capabilities import AMD, GOOGLE, NVIDIA, one_of

SERVER_MAKERS = (NVIDIA, AMD, GOOGLE)
"""Of accelerators on which vLLM answers, which is what pools are planned with (docs.vllm.ai, "Installation")."""


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
    others = engines_on(kind, accelerator)
    instead = f"; engine: {one_of(others)} does" if others else ", nor does any other engine that Charter knows"
    return f"engine {engine} does not run on {accelerator.name} ({accelerator.vendor}){instead}"


def engines_on(kind: str, accelerator: Accelerator) -> tuple[str, ...]:
    """Return the engines that train a kind of stage on an accelerator.

    >>> from charter.catalog.accelerators import get
    >>> engines_on("sft", get("TPU-v5p")), engines_on("sft", get("Trainium2"))
    (('maxtext',), ())
    """
    tables = [capabilities(name) for name in engine_names()]
    return tuple(one.name for one in tables if accelerator.vendor in one.makers and kind in one.kinds)


def server_refusal(accelerator: Accelerator) -> str | None:
    """Return why no server of models is planned on an accelerator; None where one is.

    >>> from charter.catalog.accelerators import get
    >>> server_refusal(get("TPU-v5p")) is None, server_refusal(get("Gaudi3"))
    (True, 'vLLM does not run on Gaudi3-128GB (Intel), as Charter starts it')
    >>> server_refusal(get("T4"))
    'vLLM is started in bf16, which T4 does not have'
    """
    if not accelerator.has_bf16:
        return f"vLLM is started in bf16, which {accelerator.name} does not have"
    if accelerator.vendor in SERVER_MAKERS or accelerator.kind == CPU:
        return None
    return f"vLLM does not run on {accelerator.name} ({accelerator.vendor}), as Charter starts it"
