"""Named constants of the memory model, and how far to trust it."""

from dataclasses import dataclass

from charter.physics.arrays import Array
from charter.physics.constants import constant
from charter.units import GIB, MIB


@dataclass(frozen=True, kw_only=True)
class TrainingMemoryConstants:
    """Constants of memory that no list of tensors gives; shares are of what the list gives."""

    activations: Array = constant(1.0, sigma=0.06, unit="share", source="1 = the list of kept tensors is complete")
    logits: Array = constant(1.0, sigma=0.15, unit="share", source="1 = the bytes per logit of the loss in use")
    states: Array = constant(1.0, sigma=0.0, unit="share", source="bytes per parameter as documented; not fitted")
    step: Array = constant(1.0, sigma=0.3, unit="share", source="1 = temporaries of the optimizer step as listed")
    slack: Array = constant(
        0.08,
        sigma=0.5,
        unit="share",
        source="reserved over allocated, of what comes and goes; judgement, docs/concepts/memory.md: up to 20 %",
    )
    workspace_bytes: Array = constant(
        192 * MIB,
        sigma=0.4,
        unit="bytes",
        source="cuBLAS (32 MiB) and TransformerEngine (4 x 32 MiB) workspaces, rotary tables, counters",
    )
    context_bytes: Array = constant(
        0.55 * GIB, sigma=0.4, unit="bytes", source="CUDA context with libraries, 0.4-0.8 GiB by generation; nvidia-smi"
    )
    communicator_bytes: Array = constant(
        160 * MIB, sigma=0.6, unit="bytes", source="channels of one NCCL communicator; judgement, 0.1-0.5 GiB are seen"
    )


@dataclass(frozen=True, kw_only=True)
class InferenceMemoryConstants:
    """Constants of memory that weights, keys and values do not explain."""

    weights: Array = constant(1.0, sigma=0.02, unit="share", source="1 = stored bytes of every matrix")
    cache: Array = constant(1.0, sigma=0.05, unit="share", source="1 = two vectors per token, layer and head")
    cache_growth: Array = constant(
        2.1,
        sigma=0.1,
        unit="share",
        source="reserved over needed for a cache that grows by concatenation: no freed block fits the next",
    )
    prefill: Array = constant(
        0.3,
        sigma=1.0,
        unit="share",
        source="of one layer's activations of the prompt; 1 where nothing is chunked",
    )
    workspace_bytes: Array = constant(48 * MIB, sigma=0.5, unit="bytes", source="cuBLAS workspace and small tensors")
    context_bytes: Array = constant(
        0.5 * GIB, sigma=0.3, unit="bytes", source="CUDA context with libraries, 0.4-0.8 GiB by generation; nvidia-smi"
    )
    dequantised: Array = constant(
        2.0, sigma=0.4, unit="copies", source="16-bit copies of the largest matrix while a quantised one is multiplied"
    )


CONTEXT_BY_GENERATION = {
    "V100": 0.45,
    "T4": 0.35,
    "A100": 0.75,
    "A10": 0.6,
    "L4": 0.6,
    "H100": 1.0,
    "H200": 1.0,
    "H20": 1.0,
    "GH200": 1.0,
    "B200": 1.3,
    "B300": 1.3,
    "GB": 1.3,
    "MI": 1.4,
}
"""Context of a device relative to `context_bytes`, by how its name starts: more kernels are loaded for newer
generations. Judgement: 0.4 GiB (A100) to 0.7 GiB (B200) with lazy loading, as `nvidia-smi` shows it."""

SIGMA_BY_STACK = {
    "megatron": 0.03,
    "megatron-deepspeed": 0.09,
    "composer": 0.09,
    "litgpt": 0.08,
    "deepspeed": 0.14,
    "huggingface": 0.13,
    "fsdp": 0.10,
    "native": 0.08,
    "transformers": 0.06,
    "serving": 0.08,
}
UNSEEN_SIGMA = 0.15


def memory_sigma(stack: str) -> float:
    """Standard deviation of the logarithm of measured over predicted memory.

    Judgement from the errors on sources left out of the fit, until a conformal width replaces it.

    >>> memory_sigma("megatron") < memory_sigma("nobody measured it")
    True
    """
    return SIGMA_BY_STACK.get(stack, UNSEEN_SIGMA)


def context_factor(name: str) -> float:
    """Return the size of a device's context relative to `context_bytes`.

    >>> context_factor("H100-SXM-80GB"), context_factor("nobody knows")
    (1.0, 1.0)
    """
    starts = sorted((start for start in CONTEXT_BY_GENERATION if name.startswith(start)), key=len)
    return CONTEXT_BY_GENERATION[starts[-1]] if starts else 1.0
