"""Devices, number formats and engines that generate text, as the passes see them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from charter.catalog.accelerators import Accelerator
from charter.physics.columns import Array, array
from charter.physics.devices import fused_attention_rate, generation_of, host_slowness
from charter.units import GB

# -------- Formats of stored weights for generation, and their cost: bytes, arithmetic, dequantisation.


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
    synchronises: bool = False
    """In eager mode the host waits for each quantised product, and nothing hides behind another: `FP8Linear` of
    transformers 4 ends in a synchronisation (integrations.finegrained_fp8)."""
    head_bytes: float = 2.0
    cache_bytes: float = 2.0
    """Bytes of a cached key or value that usually go with it."""


BF16 = WeightFormat(name="bf16", bytes_per_weight=2.0, compute="bf16")
SCALES_FIRST = 1.4
"""Python of a product whose scales are quantised too, over that of one whose scales are not: a kernel of its own and an
addition make them (bitsandbytes, `gemv_4bit` where the state is nested); judgement with rows of LGT in sight."""
FORMATS: tuple[tuple[str, WeightFormat], ...] = (
    (
        r"nf4[- ]?dq",
        WeightFormat(name="nf4", bytes_per_weight=0.53, compute="bf16", weight_only=True, python_share=SCALES_FIRST),
    ),
    (
        r"nf4|bnb.*4|qlora|4[- ]?bit.*(bnb|bitsandbytes)",
        WeightFormat(name="nf4", bytes_per_weight=0.53, compute="bf16", weight_only=True, python_share=1.0),
    ),
    (r"w4a16.*fp4", WeightFormat(name="w4a16-fp4", bytes_per_weight=0.54, compute="bf16", weight_only=True)),
    (r"mxfp4", WeightFormat(name="mxfp4", bytes_per_weight=0.53, compute="fp8")),
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
    (
        r"fp8|f8|e4m3|w8a8.*fp|float8",
        WeightFormat(name="fp8", bytes_per_weight=1.0, compute="fp8", python_share=1.4, synchronises=True),
    ),
    (r"w8a8|smooth", WeightFormat(name="int8", bytes_per_weight=1.0, compute="int8", python_share=1.0)),
    (
        r"^int8|^8[- ]?bit|[^+] ?int8(?! *kv)",
        WeightFormat(name="int8", bytes_per_weight=1.02, compute="bf16", weight_only=True, python_share=0.15),
    ),
    (r"tf32", WeightFormat(name="tf32", bytes_per_weight=4.0, compute="tf32", head_bytes=4.0, cache_bytes=4.0)),
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
    return max(2.0, weights.cache_bytes) if weights.name in ("fp32", "tf32") else 2.0


# -------- Accelerator, and the group that serves one model, as generation sees them: numbers that broadcast.

UNMEASURED_CEILING = 0.78
"""Median of the bf16 shares in matmul_ceilings.csv, for devices that nobody measured."""
OLD_INSTRUCTION_SHARE = {"hopper": 0.62, "blackwell": 0.62}
"""Of the rate of products, that kernels reach which expand 4- or 8-bit weights (Marlin, ExLlama): they are written with
the warp-level instructions of Ampere (`mma.sync`), which on Hopper reach about 62 % of what its own warp-group
instructions do (from memory of arXiv:2402.13499); Blackwell the same (judgement)."""
WARP_ROWS = ("volta", "ampere", "ada", "blackwell-rtx", "cdna")
"""Generations whose products work on 16 rows (`mma.m16n8k16`, CUDA PTX ISA; 16 or 32 of AMD's MFMA); those of Hopper
and of Blackwell's data-centre boards have 64 at least (`wgmma`, `tcgen05`)."""
ATTENTION_ROWS = {"flash1": 64.0, "flash2": 64.0, "flash3": 64.0, "recent": 8.0}
"""Queries that a tile of attention has at least, by the generation of the kernel: FlashAttention's splits have 64 rows
(`run_mha_fwd_splitkv_dispatch`, kBlockM; wgmma of FlashAttention-3 has 64), TensorRT-LLM's XQA puts queries where an
instruction has 8 (`mma.m16n8k16`, CUDA PTX ISA). Query heads that share keys lie in one tile; the rest stays empty."""
PCIE_SHARE = 0.6
"""Of a PCIe slot's data-sheet rate that collectives through the host reach; from memory of nccl-tests."""
LINK_SHARE = 0.75
NODE_BYTES_PER_SECOND = 25 * GB
"""Per accelerator between nodes where the catalog names no network: 200 Gbit/s."""
PCIE_LATENCY, NODE_LATENCY = 2.5, 5.0
"""Latency of a small all-reduce over that of one inside NVLink: through the host, and across nodes (judgement)."""


@dataclass(frozen=True, kw_only=True)
class ServingDevice:
    """Peaks and links of a serving group, or one column per configuration."""

    matmul_flops: Array
    """Peak of the compute dtype times its measured ceiling."""
    half_flops: Array
    """The same at 16 bits, for the output projection."""
    attention_flops: Array
    attention_rows: Array
    """Rows of a tile of attention, which one decoded token of a few heads does not fill."""
    memory_bytes_per_second: Array
    narrow: Array
    """1 where matrix products run at 4 bits."""
    bytes_per_weight: Array
    head_bytes: Array
    weight_only: Array
    few_rows: Array
    """1 where a product pads to 16 rows: kernels that expand weights, devices of `WARP_ROWS`, and plain 32-bit
    arithmetic, which has no matrix instructions."""
    expanded_share: Array
    """Of the rate of products, where weights are expanded inside the kernel; else 1."""
    sixteen: Array
    """1 where matrix products run on 16-bit operands."""
    python_share: Array
    synchronises: Array
    """1 where the host waits for each quantised product in eager mode."""
    cache_bytes: Array
    cache_ranks: Array
    """Ranks of the tensor group that share the heads of one sequence: all, or one where attention is data-parallel."""
    host_slowness: Array
    tensor: Array
    pipeline: Array
    link_bytes_per_second: Array
    link_latency: Array
    """Factor on the latency of an all-reduce."""
    send_bytes_per_second: Array

    @classmethod
    def of(
        cls,
        accelerator: Accelerator,
        *,
        weights: WeightFormat = BF16,
        cache_bytes: float = 2.0,
        tensor: int = 1,
        pipeline: int = 1,
        data_attention: bool = False,
        attention: str = "flash2",
    ) -> ServingDevice:
        """The columns of one serving group, without dimensions; `attention` is the generation of its kernels.

        >>> from charter.catalog import accelerators
        >>> group = ServingDevice.of(accelerators.get("H100"), tensor=2)
        >>> round(float(group.matmul_flops) / 1e12), float(group.link_bytes_per_second) / 1e9
        (795, 337.5)
        """
        native = _multiplies(accelerator, weights)
        compute = weights.compute if native else "bf16"
        rate, latency = _group_link(accelerator, tensor)
        send, _ = _group_link(accelerator, tensor * pipeline)
        expands = weights.weight_only or not native
        plain = compute == "fp32" or generation_of(accelerator.name) in WARP_ROWS
        old = OLD_INSTRUCTION_SHARE.get(generation_of(accelerator.name), 1.0)
        columns = {
            "matmul_flops": _ceiling(accelerator, compute),
            "half_flops": _ceiling(accelerator, "bf16"),
            "attention_flops": fused_attention_rate(accelerator, attention),
            "attention_rows": ATTENTION_ROWS[attention],
            "memory_bytes_per_second": accelerator.memory_bytes_per_second,
            "narrow": 1.0 if compute == "fp4" else 0.0,
            "bytes_per_weight": weights.bytes_per_weight,
            "head_bytes": weights.head_bytes,
            "weight_only": 1.0 if expands else 0.0,
            "few_rows": 1.0 if expands or plain else 0.0,
            "expanded_share": old if expands else 1.0,
            "sixteen": 1.0 if compute in ("bf16", "fp16") else 0.0,
            "python_share": weights.python_share,
            "synchronises": weights.synchronises,
            "cache_bytes": cache_bytes,
            "cache_ranks": 1 if data_attention else tensor,
            "host_slowness": host_slowness(accelerator.name),
            "tensor": tensor,
            "pipeline": pipeline,
            "link_bytes_per_second": rate,
            "link_latency": latency,
            "send_bytes_per_second": send,
        }
        return cls(**{name: array(value) for name, value in columns.items()})


def _has_rate(accelerator: Accelerator, compute: str) -> bool:
    return compute in ("bf16", "fp16", "tf32", "fp32") or compute in accelerator.dense_flops_per_second


def _multiplies(accelerator: Accelerator, weights: WeightFormat) -> bool:
    """Return True if a device multiplies the format as it is stored; else kernels expand it to 16 bits, as vLLM's
    Marlin and triton's `matmul_ogs` do with 4-bit floats on Hopper and older."""
    return _has_rate(accelerator, "fp4" if weights.name in ("fp4", "mxfp4") else weights.compute)


def _ceiling(accelerator: Accelerator, dtype: str) -> float:
    name = dtype if _has_rate(accelerator, dtype) else "bf16"
    measured = accelerator.matmul_ceiling
    measured_dtype = "bf16" if name == "fp16" else name
    share = (
        measured.get(measured_dtype) or measured.get("fp8" if name in ("fp4", "int8") else "bf16") or UNMEASURED_CEILING
    )
    return accelerator.peak_flops_per_second(name) * (1.0 if accelerator.kind == "cpu" else share)


def _group_link(accelerator: Accelerator, span: int) -> tuple[float, float]:
    """Bytes per second of a rank in a group of `span` neighbours, and the latency over that of NVLink."""
    pcie = "pcie" in accelerator.scaleup_link.casefold() and "nvlink" not in accelerator.scaleup_link.casefold()
    rate = accelerator.scaleup_bytes_per_second
    if not pcie and span <= max(accelerator.scaleup_domain, 1):
        return rate * LINK_SHARE, 1.0
    if span <= max(accelerator.devices_per_node, 1):
        return min(rate, 32 * GB if not pcie else rate) * PCIE_SHARE, PCIE_LATENCY
    node = accelerator.scaleout_bytes_per_second_per_node
    share = node / accelerator.devices_per_node if node else NODE_BYTES_PER_SECOND
    return share * LINK_SHARE, NODE_LATENCY


# -------- Engines that generate text: how they issue work, and what a name in a table or a configuration means.


@dataclass(frozen=True, kw_only=True)
class GenerationEngine:
    """Way in which a generation engine issues work; times are relative to the constants of `serving.constants`."""

    name: str
    eager: bool
    """Every operation is issued from Python at every step; else a step is a captured graph or compiled code."""
    continuous: bool
    """A finished sequence makes room at once; otherwise the batch waits for its longest answer."""
    label: str = ""
    """Short name of the stack whose fitted constants apply."""
    overlapped: bool = False
    """The host prepares the next step while the device works on this one (not across pipeline stages)."""
    repeats_heads: bool = False
    """The cache is copied, and repeated for every head, at each step: by `cache_passes` of the constants."""
    joins_projections: bool = False
    """Query, key and value are one matrix."""
    cache_passes: float = 1.0
    """Times that the bytes of the cache, 2 for a value, are moved at a step: 1 where keys and values stay in place."""
    layer_slowness: float = 1.0
    """Time to issue a layer, over the usual of its kind (eager, or captured)."""
    step_slowness: float = 1.0
    """Scheduling and sampling of one step, over the usual."""
    token_slowness: float = 1.0
    """Host time per generated token, over the usual."""
    tile_share: float = 1.0
    """Rows that a product pads to, over those of a library's kernels (less where one row is a vector product)."""
    most_sequences: int = 1024
    """Sequences it decodes together by default, whatever memory allows."""
    memory_share: float = 0.9
    """Of the device, that it takes for weights, cache and work space by default."""
    attention: str = "flash2"
    """Generation of its attention kernels (physics/devices.py)."""
    mixed: bool = False
    """Waiting prompts are read in the passes that decode, so that both share one reading of the weights (Agrawal et al.
    2023, arXiv:2308.16369); else a prompt has a pass of its own."""


NATIVE = GenerationEngine(name="native torch", eager=True, continuous=False, label="transformers")
"""Keys and values are written into room that is there (`RoomyLayer`, inference/generate.py) and read once for the query
heads that share them, padded or not: tests/integration/train/test_planned_decoder.py counts what is moved."""
NATIVE_SHARDED_SLOWNESS, NATIVE_SPLIT_SLOWNESS = 1.25, 4.0
"""Host time of a layer over the usual: under FSDP2's hooks with weights that are gathered, and with DTensor's dispatch
at every product of tensor parallelism. `benchmarks/host_of_layouts.py` (two cores of an x86 server, torch 2.13) has
0.18 and 2.1 ms more than without, beside the 0.66 of `eager_layer_seconds`; not measured on a GPU."""
NATIVE_COPIED = replace(NATIVE, name="native torch, cache copied", cache_passes=3.0)
"""A cache of transformers' own, where a layer has a window, a chunk or a recurrent state: keys and values of all
layers are concatenated at every token, a read and a write beside that of attention."""
NATIVE_COPIED_IN_32_BITS = replace(NATIVE, name="native torch, cache copied in 32 bits", cache_passes=8.0)
"""The same where autocast keeps such a cache in 32 bits: 8 bytes of a value for the copy, 6 to make 16 bits of it, 2
for attention, over 2."""
NATIVE_CAPTURED = GenerationEngine(
    name="native torch, captured graph", eager=False, continuous=False, label="transformers"
)
"""One accelerator and a model type of `FUSED_TYPES`: a token is a CUDA graph over keys and values that stay in place
(docs/reference/first-gpu.md has what it took)."""
SERVER = GenerationEngine(
    name="serving engine (vLLM-like)",
    eager=False,
    continuous=True,
    label="vllm",
    most_sequences=256,
    attention="flash3",
    mixed=True,
)
"""Chunked prefill is on by default since vLLM's V1 engine."""
VLLM = SERVER
SGLANG = GenerationEngine(
    name="SGLang",
    eager=False,
    continuous=True,
    label="sglang",
    overlapped=True,
    memory_share=0.88,
    attention="flash3",
)
"""Prompts have passes of their own unless `--enable-mixed-chunk` is given."""
TENSORRT = GenerationEngine(
    name="TensorRT-LLM",
    eager=False,
    continuous=True,
    label="tensorrt-llm",
    overlapped=True,
    most_sequences=2048,
    memory_share=0.93,
    attention="recent",
    mixed=True,
)
COMPILED = GenerationEngine(
    name="compiled loop (gpt-fast, llama.cpp)", eager=False, continuous=False, label="compiled", tile_share=1 / 16
)
"""Its kernels for few rows are vector products (llama.cpp's `mul_mat_vec_q`, ExLlama's, what a compiler makes of one
row; from memory), which pad nothing."""
TRANSFORMERS = GenerationEngine(
    name="transformers", eager=True, continuous=False, label="transformers", repeats_heads=True, most_sequences=64
)
LITGPT = GenerationEngine(
    name="litgpt",
    eager=True,
    continuous=False,
    label="litgpt",
    joins_projections=True,
    layer_slowness=1.2,
    most_sequences=64,
)
HYBRID = GenerationEngine(
    name="DeepSpeed (hybrid engine, inference kernels)",
    eager=False,
    continuous=False,
    label="deepspeed",
    layer_slowness=5.0,
    most_sequences=64,
)
FASTER_TRANSFORMER = GenerationEngine(
    name="FasterTransformer",
    eager=False,
    continuous=False,
    label="fastertransformer",
    step_slowness=0.3,
    token_slowness=0.2,
    most_sequences=128,
)

_NAMES: tuple[tuple[str, GenerationEngine], ...] = (
    (r"\bcharter\b", NATIVE_CAPTURED),
    (r"tensorrt|trt[- ]?llm|\btrt\b|\bnim\b", TENSORRT),
    (r"sglang|\bsgl\b", SGLANG),
    (r"vllm|aphrodite|\brouter\b", VLLM),
    (
        r"\btgi\b|text[- ]generation[- ]inference|lmdeploy|turbomind|lightllm|\bmlc\b|\bmax serve|jetstream|saxml|"
        r"neuron|\bmii\b|fastgen|\brtp",
        VLLM,
    ),
    (r"faster ?transformer", FASTER_TRANSFORMER),
    (r"deepspeed.*(chat|hybrid|inference)|hybrid engine", HYBRID),
    (r"litgpt|lit-gpt|lit-llama|lit-parrot", LITGPT),
    (r"gpt-fast|llama\.?cpp|ggml|gguf|ollama|exllama|torch\.?compile|ctransformers|\bmlx\b", COMPILED),
    (
        r"transformers|hugging ?face|\bhf\b|autogptq|auto-gptq|autoawq|bitsandbytes|peft|unsloth|accelerate|"
        r"eager|torch",
        TRANSFORMERS,
    ),
)


def engine_named(*texts: str) -> GenerationEngine | None:
    """The engine that the first telling text names, None when none does.

    >>> engine_named("TensorRT-LLM 1.0 (PyTorch backend)").label, engine_named("", "vLLM, batch 100").label
    ('tensorrt-llm', 'vllm')
    >>> engine_named("HF transformers (AutoGPTQ)").label, engine_named("something new")
    ('transformers', None)
    """
    for text in texts:
        lowered = text.casefold()
        for pattern, engine in _NAMES:
            if re.search(pattern, lowered):
                return engine
    return None
