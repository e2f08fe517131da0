"""Named constants of the models of memory, training and generation: value, spread, unit and source."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

import numpy as np

from charter.physics.columns import Array, array
from charter.units import GIB, MIB

# -------- Named constants of a model of a machine or of a software stack: value, spread, unit and source.
#
# A set of constants is a frozen dataclass whose fields are made with `constant(...)`. A field is a positive number, or
# an array with one value per configuration, so that a fit can move all of them at once. The spread is the standard
# deviation of the logarithm between stacks: how far a stack nobody has measured may be from the value.

Made = TypeVar("Made")


@dataclass(frozen=True, kw_only=True)
class Described:
    """Description of one constant: its value, uncertainty, unit, source and bound."""

    name: str
    value: float
    sigma: float
    unit: str
    source: str
    most: float
    """The value never goes above (a share: 1)."""


def constant(value: float, *, sigma: float, unit: str, source: str, most: float = float("inf")) -> Any:
    """A field of a set of constants; `sigma` 0 keeps it out of every fit.

    >>> @dataclass(frozen=True, kw_only=True)
    ... class Example:
    ...     matmul_share: Array = constant(0.8, sigma=0.1, unit="share", source="an example")
    >>> describe(Example)[0].name, float(Example().matmul_share)
    ('matmul_share', 0.8)
    """
    metadata = {"sigma": sigma, "unit": unit, "source": source, "value": value, "most": most}
    return field(default_factory=lambda: array(value), metadata=metadata)


def describe(kind: type) -> tuple[Described, ...]:
    """The constants of a set, in order."""
    return tuple(Described(name=item.name, **item.metadata) for item in fields(kind) if "sigma" in item.metadata)


def moved(constants: Made, log_factors: Mapping[str, Array | float]) -> Made:
    """The constants times `exp(log_factor)`, each at most its limit; what is not named stays."""
    limits = {item.name: item.most for item in describe(type(constants))}
    values = {
        name: np.minimum(getattr(constants, name) * np.exp(factor), limits[name])
        for name, factor in log_factors.items()
    }
    return replace(constants, **values)  # type: ignore[type-var]


# -------- Named constants of the memory model, and how far to trust it.


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

ALL_KERNELS_BYTES = 1.3e9
"""Context of a process that loads every kernel at once, as all did before CUDA 11.7 loads them when they are used
(`CUDA_MODULE_LOADING`, lazy under PyTorch since 1.13): transformers' documentation, "Model training anatomy"."""

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


# -------- The constants of a training step that measurements move: shares of ceilings, latencies, host time, what
# overlaps.

JUDGEMENT = "judgement with the calibration rows in sight; moved by the fit (validation/quantities/training_time.py)"


@dataclass(frozen=True, kw_only=True)
class TrainingConstants:
    """Constants of one software stack on any accelerator; a profile of the stack multiplies some of them."""

    matmul_share: Array = constant(
        0.92,
        sigma=0.06,
        unit="share",
        source=f"of the best measured shape that large products keep; {JUDGEMENT}",
        most=1.0,
    )
    hopper_sustained: Array = constant(
        0.88,
        sigma=0.06,
        unit="share",
        source=f"clock that Hopper keeps at its power limit against a short search; {JUDGEMENT}",
        most=1.0,
    )
    blackwell_sustained: Array = constant(
        0.88, sigma=0.08, unit="share", source=f"the same for Blackwell; {JUDGEMENT}", most=1.0
    )
    eight_bit_share: Array = constant(
        0.97,
        sigma=0.08,
        unit="share",
        source=f"of the 8-bit ceiling against the same of the 16-bit one; {JUDGEMENT}",
        most=1.1,
    )
    quantise_traffic: Array = constant(
        1.0, sigma=0.4, unit="multiple", source=f"of one cast of every operand in memory traffic; {JUDGEMENT}"
    )
    grouped_share: Array = constant(
        0.75,
        sigma=0.2,
        unit="share",
        source=f"grouped expert products against one product of the rows; {JUDGEMENT}",
        most=1.0,
    )
    attention_share: Array = constant(
        1.0, sigma=0.15, unit="multiple", source="of the published FlashAttention rates (physics/devices.py)"
    )
    unfused_attention: Array = constant(
        0.40,
        sigma=0.3,
        unit="share",
        source=f"of the matmul rate, batched products with a short inner side; {JUDGEMENT}",
    )
    traffic: Array = constant(
        0.85,
        sigma=0.2,
        unit="multiple",
        source="of the counted bytes of memory-bound operations (physics/matrix_products.py)",
    )
    host_op_seconds: Array = constant(
        10e-6, sigma=0.5, unit="s", source=f"host time to issue one operation from Python; {JUDGEMENT}"
    )
    step_seconds: Array = constant(
        0.012, sigma=0.8, unit="s", source=f"per optimizer step: data, clipping, scaler, logging; {JUDGEMENT}"
    )
    scaleup_share: Array = constant(
        0.75,
        sigma=0.15,
        unit="share",
        source=f"of the link inside a node (nccl-tests bus bandwidth); {JUDGEMENT}",
        most=1.0,
    )
    scaleout_share: Array = constant(
        0.9,
        sigma=0.1,
        unit="share",
        source="of the line rate of the network cards between two machines: TCP in frames of 1500 bytes carries 0.95, "
        "RoCE of 4096 bytes 0.98, and rings wait between chunks; 0.85 to 0.95 is usual, judgement",
        most=1.0,
    )
    congestion: Array = constant(
        0.12,
        sigma=0.5,
        unit="share",
        source="of a byte's time, per doubling of machines beyond those of one switch: flows meet on links between "
        "switches; judgement, hundreds of machines are said to keep 0.5 to 0.7 of the line",
    )
    latency_seconds: Array = constant(
        25e-6, sigma=0.4, unit="s", source=f"of one collective inside a node; {JUDGEMENT}"
    )
    tensor_exposed: Array = constant(
        0.95, sigma=0.1, unit="share", source=f"of tensor-parallel traffic that delays the step; {JUDGEMENT}", most=1.0
    )
    data_hidden: Array = constant(
        0.95,
        sigma=0.1,
        unit="share",
        source="of the passes beside which weights and gradients travel: beside one layer, whose turn comes first or "
        "last, nothing does (1/32 of Llama 8B), and prefetching waits now and then; judgement",
        most=1.0,
    )
    expert_exposed: Array = constant(
        0.65, sigma=0.2, unit="share", source=f"of expert-parallel traffic that delays the step; {JUDGEMENT}", most=1.0
    )
    straggler: Array = constant(
        0.006, sigma=0.6, unit="share", source=f"of the step per doubling of accelerators beyond 8; {JUDGEMENT}"
    )
    optimizer_traffic: Array = constant(
        1.0, sigma=0.4, unit="multiple", source="of the counted bytes of the update (physics/stacks.py)"
    )
    unmodelled: Array = constant(
        1.05,
        sigma=0.10,
        unit="multiple",
        source=f"of the step but for the traffic of weights and gradients: what no term stands for; {JUDGEMENT}",
    )


# -------- Constants of generation: shares of ceilings, host times and latencies, each with its spread and its source.


@dataclass(frozen=True, kw_only=True)
class ServingConstants:
    """Constants of the roofline of prefill and decode besides data sheets."""

    matmul_share: Array = constant(
        0.75,
        sigma=0.15,
        unit="share of the measured matmul ceiling",
        source="judgement: average shapes against the best shape of a search",
        most=1.0,
    )
    narrow_share: Array = constant(
        0.8,
        sigma=0.2,
        unit="share of the 4-bit rate against the 8-bit share",
        source="judgement: block scales and quantisation of activations; no 4-bit ceiling is published",
        most=1.2,
    )
    expert_share: Array = constant(
        0.5, sigma=0.3, unit="share of the dense matmul rate", source="judgement: grouped products are ragged"
    )
    attention_share: Array = constant(
        1.0,
        sigma=0.2,
        unit="factor on the attention ceiling of the device",
        source="ceilings: physics/serving_devices.py (FlashAttention papers)",
    )
    stream_share: Array = constant(
        0.82,
        sigma=0.1,
        unit="share of data-sheet bandwidth",
        source="STREAM-like tests; weights read by skinny matrix products",
        most=1.0,
    )
    cache_share: Array = constant(
        0.8,
        sigma=0.2,
        unit="share of data-sheet bandwidth",
        source="judgement: split decoding kernels (Flash-Decoding) read pages nearly as fast as streams",
        most=1.0,
    )
    tile_rows: Array = constant(
        64.0,
        sigma=0.3,
        unit="rows",
        source="WGMMA works on 64 rows (CUDA PTX ISA, wgmma.mma_async); fewer rows cost as much",
    )
    activation_values: Array = constant(
        24.0,
        sigma=0.3,
        unit="values moved per feature, token and layer",
        source="count of reads and writes of a fused layer: two norms, rotary, gated activation, residuals",
    )
    graph_layer_seconds: Array = constant(
        45e-6,
        sigma=0.4,
        unit="s",
        source="about 12 kernels of 3-4 us each between dependent kernels of a captured graph; judgement",
    )
    step_seconds: Array = constant(
        1.0e-3, sigma=0.5, unit="s", source="scheduling, sampling, graph launch of one step; judgement"
    )
    token_seconds: Array = constant(
        20e-6,
        sigma=0.5,
        unit="s per generated token",
        source="scheduler, sampler, detokenisation in Python, per sequence and step; judgement",
    )
    eager_layer_seconds: Array = constant(
        0.75e-3,
        sigma=0.3,
        unit="s",
        source="about 100 operations of 7 us issued from Python per decoder layer; judgement from profiler traces",
    )
    eager_expert_seconds: Array = constant(
        85e-6, sigma=0.4, unit="s", source="transformers loops over all experts: about 12 operations each"
    )
    quantised_linear_seconds: Array = constant(
        90e-6,
        sigma=0.4,
        unit="s",
        source="judgement: Python around a dequantising kernel (bitsandbytes, GPTQ, Triton fp8) per linear layer",
    )
    cache_passes: Array = constant(
        8.0,
        sigma=0.5,
        unit="times the repeated cache is moved",
        source="repeat_kv writes it, 1; torch's math path copies it to 32 bits, 1 + 2, scales keys, 2 + 2, "
        "and multiplies, 2: 10 of keys and 6 of values (`_scaled_dot_product_attention_math`)",
    )
    reduce_seconds: Array = constant(
        9e-6,
        sigma=0.3,
        unit="s",
        source="one-shot all-reduce inside an NVLink node at decode sizes; judgement from nccl-tests",
    )
    stage_stall: Array = constant(
        0.03,
        sigma=0.5,
        unit="share per further pipeline stage",
        source="judgement: prefill chunks make micro-batches of a pipeline uneven",
    )
    unmodelled: Array = constant(
        1.0, sigma=0.15, unit="factor", source="clocks, queueing, warm-up, everything else; 1 until measured"
    )


# -------- A process on processors.

LIBRARY_BYTES, MODEL_CODE_BYTES = 0.215 * GIB, 0.14 * GIB
"""Resident size of a process on processors beside its tensors: Python with numpy and torch; transformers, one family of
model classes, tokenizer and Charter's own modules. A torch that was built for CUDA maps more; it was not measured."""
CPU_PROCESS_BYTES = LIBRARY_BYTES + MODEL_CODE_BYTES
CPU_PROCESS_FORMULA = f"{LIBRARY_BYTES / GIB:g} GiB with torch + {MODEL_CODE_BYTES / GIB:g} GiB with transformers"
CPU_PROCESS_SOURCE = "345 to 382 MiB over the tensors of 17 stages, torch 2.13 for processors (physics/constants.py)"
