"""The answering job behind a measured row of memory, every gap filled by a rule that holds for other sources too."""

import re
from dataclasses import dataclass, replace

from charter.catalog.accelerators import Accelerator
from charter.physics.inference_memory import ENGINE_SHARE, InferenceJob, preallocated_bytes
from charter.physics.precision import STORED_FORMATS, StoredFormat
from charter.units import MIB
from charter.validation.quantities.memory_cases import device_of
from charter.validation.quantities.memory_stacks import unit_bytes
from charter.validation.rows.architecture import architecture_of
from charter.validation.rows.measurement import Measurement

SHORT_ANSWER = 64
"""Tokens in the cache where a source says neither prompt nor answer: a demonstration of a few words."""
_FORMATS: tuple[tuple[str, str], ...] = (
    (r"nf4-?dq|double", "nf4"),
    (r"nf4|bnb.{0,12}4|bitsandbytes.{0,12}4", "nf4-plain"),
    (r"llm\.int8|bnb.{0,12}8|bitsandbytes", "bnb-int8"),
    (r"mxfp4", "mxfp4"),
    (r"nvfp4|fp4", "fp4"),
    (r"fp8|e4m3|f8", "fp8"),
    (r"awq|int4|w4|4-?bit|gptq(?!\D{0,6}8)|uint4|squeezellm|quip|hqq", "int4"),
    (r"int8|w8|8-?bit|smoothquant", "int8"),
    (r"fp32|float32|32-true", "fp32"),
)
_GGUF_BITS: tuple[tuple[str, float], ...] = (
    (r"q8_0", 8.5),
    (r"q6_k", 6.56),
    (r"q5_", 5.69),
    (r"q4_|iq4", 4.85),
    (r"q3_", 3.91),
    (r"q2_", 3.35),
)
"""Bits per weight of llama.cpp's formats (its `quantize` table)."""
_ENGINES: tuple[tuple[str, float], ...] = (
    (r"vllm", ENGINE_SHARE),
    (r"sglang", 0.88),
    (r"tensorrt|trt", ENGINE_SHARE),
    (r"lmdeploy|turbomind", 0.85),
    (r"\btgi\b|text-generation-inference", 0.95),
)
"""Share of a device that an engine takes in advance: defaults of its settings."""


@dataclass(frozen=True, kw_only=True)
class InferenceCase:
    """A row as a job; an engine that takes its memory in advance shows that."""

    job: InferenceJob
    stack: str
    unit: float
    devices: float
    preallocated: float = 0.0
    """Bytes an engine shows as used; 0 where memory is taken on demand."""


def inference_case(row: Measurement) -> InferenceCase:
    """The case of a row. Raises Refusal with the reason."""
    architecture, accelerator = architecture_of(row), device_of(row)
    stack = stack_of(row)
    prompt = float(row.isl or 0)
    tokens = prompt + float(row.osl or 0)
    allocated = stack == "litgpt" or (stack == "transformers" and row.isl is not None)
    devices = max(1, row.gpus or row.tp or 1)
    tensor = row.tp or 1
    form = stored_format(row, stack)
    job = InferenceJob(
        architecture=architecture,
        batch=max(1.0, row.mbs or 1.0),
        tokens_per_sequence=tokens or float(row.seq or SHORT_ANSWER),
        prompt_tokens=prompt,
        prefill_tokens=prompt * max(1.0, row.mbs or 1.0),
        tensor=tensor,
        pipeline=max(1, row.pp or (devices // tensor if stack in ("transformers", "llama.cpp") else 1)),
        weights=form,
        kv_bytes_per_value=kv_bytes(row),
        grown_cache=stack == "transformers" and not allocated,
        whole_prefill=False,
        untied_copy=stack == "transformers" and form.name == "fp8",
        context=not allocated,
        accelerator=accelerator,
    )
    added = row.metric.endswith("_total") or (devices > 1 and re.search(r"\bsum\b", row.notes.lower()) is not None)
    return InferenceCase(
        job=job,
        stack=stack,
        unit=MIB if "mib" in row.metric.split("_") else unit_bytes(row, stack),
        devices=float(devices) if added else 1.0,
        preallocated=_preallocated(row, accelerator),
    )


def stack_of(row: Measurement) -> str:
    """The engine: one that preallocates, litgpt, llama.cpp, or transformers and what is built on it.

    >>> stack_of(Measurement(id="X-1", metric="peak_mem_gb", value=1.0, framework="vLLM 0.6"))
    'engine'
    """
    text = row.framework.lower()
    if any(re.search(words, text) for words, _ in _ENGINES):
        return "engine"
    if re.search(r"lit-?gpt|lightning|gpt-fast", text):
        return "litgpt"
    return "llama.cpp" if re.search(r"llama\.?cpp|gguf|ollama|exllama|mlc", text) else "transformers"


def stored_format(row: Measurement, stack: str) -> StoredFormat:
    """Return how the weights are stored, by the printed dtype; a format of the cache after a plus sign is not one."""
    text = re.split(r"\+", row.dtype.lower())[0].strip()
    text = re.sub(r"(fp8|int8|8-?bit|int4|4-?bit)[ _-]*(kv|cache)\w*", "", text)
    bits_each = re.search(r"(\d(?:\.\d+)?) ?bpw|\b([2367])-?bit", text)
    if bits_each:
        size = float(bits_each[1] or bits_each[2]) / 8
        return StoredFormat(name=text, matrix_bytes=size, end_bytes=2.0, source="bits per weight as printed")
    for words, bits in _GGUF_BITS:
        if re.search(words, text):
            return StoredFormat(name=text, matrix_bytes=bits / 8, end_bytes=bits / 8, source="llama.cpp")
    name = next((name for words, name in _FORMATS if re.search(words, text)), "bf16")
    form = STORED_FORMATS[name]
    head_too = stack == "litgpt" and form.dequantises
    return replace(form, head_bytes=form.matrix_bytes) if head_too else form


def kv_bytes(row: Measurement) -> float:
    """Bytes of a cached value; 8-bit caches keep a scale per head and token."""
    text = f"{row.dtype} {row.notes}".lower()
    if re.search(r"(int8|8-?bit)[ _-]*kv|kv[ _-]*cache[^.;]{0,12}(int8|8-?bit)", text):
        return 1.06
    return 1.0 if re.search(r"fp8[ _-]*kv|kv[ _-]*cache[^.;]{0,12}fp8", text) else 2.0


def _preallocated(row: Measurement, accelerator: Accelerator | None) -> float:
    text = row.framework.lower()
    share = next((share for words, share in _ENGINES if re.search(words, text)), None)
    if share is None:
        return 0.0
    printed = re.search(r"(?:gpu_memory_utilization|mem_fraction_static)\D{0,3}(0?\.\d+)", row.notes)
    capacity = accelerator.memory_bytes if accelerator else float(row.mem_gb or 80) * 1e9
    return preallocated_bytes(capacity, float(printed[1]) if printed else share)
