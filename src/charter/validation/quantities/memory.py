"""Peak memory of training and of inference, and the probability that a run fits: from row over job to bytes."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from charter.catalog.accelerators import Accelerator
from charter.physics.columns import Array, Layouts, array, stacked
from charter.physics.constants import InferenceMemoryConstants, TrainingMemoryConstants, memory_sigma, moved
from charter.physics.fitted import Fitted
from charter.physics.inference_memory import (
    ENGINE_SHARE,
    InferenceJob,
    InferenceShape,
    inference_memory_table,
    preallocated_bytes,
)
from charter.physics.memory import training_memory_table
from charter.physics.memory_profiles import MAXTEXT, MemoryJob
from charter.physics.memory_shape import MemoryShape
from charter.physics.precision import STORED_FORMATS, StoredFormat
from charter.physics.terms import Interval
from charter.spec.layout import Layout
from charter.units import GB
from charter.validation.quantities.memory_cases import MemoryCase, device_of, profile_of, training_case
from charter.validation.rows.architecture import architecture_of
from charter.validation.rows.measurement import Measurement, Refusal
from charter.validation.rows.metrics import unit_bytes

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
    (r"tf32|fp32|float32|32-true", "fp32"),
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
        unit=unit_bytes(row, stack),
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


@dataclass(frozen=True, kw_only=True)
class OomVerdict:
    """Out-of-memory verdict: `verdict` errs on the safe side and asks the 90th percentile, `p10` the 10th."""

    verdict: bool
    p10: bool
    p90: bool
    stack: str
    need: Interval
    """Bytes that the fullest device needs."""
    capacity_bytes: float

    @property
    def fits_probability(self) -> float:
        """P(need <= memory of the device), by `Interval.probability_below`."""
        return self.need.probability_below(self.capacity_bytes)


def out_of_memory(row: Measurement, fits: Mapping[str, Fitted] | None = None) -> OomVerdict:
    """The verdict on a row. Raises Refusal when its configuration or the size of its device is unknown.

    `fits` holds the constants of training and of inference memory by name, fitted without the row; what is missing is
    as it was before any fit. What a caching allocator could free on demand does not count. Where a row that is known to
    have run does not say what is recomputed, everything is taken to be: only what cannot fit is called out of memory.
    """
    fits = fits or {}
    if row.kind == "inference":
        inference = inference_case(row)
        stack, device = inference.stack, inference.job.accelerator
        need = inference_need(inference.job, fits.get(INFERENCE_MEMORY.name, Fitted()).shift(stack))
    else:
        case = training_case(leanest(row))
        stack, device = case.job.profile.name, case.job.accelerator
        need = training_need(case.job, case.layout, fits.get(TRAINING_MEMORY.name, Fitted()).shift(stack))
        need += case.extra_bytes
    capacity = _capacity(row, device)
    interval = Interval.around(need, sigma=memory_sigma(stack))
    return OomVerdict(
        verdict=interval.p90 > capacity,
        p10=interval.p10 > capacity,
        p90=interval.p90 > capacity,
        stack=stack,
        need=interval,
        capacity_bytes=capacity,
    )


def leanest(row: Measurement) -> Measurement:
    """The row with what it does not say taken as the leanest: full recomputation, and offloading in PPO.

    A `partial` policy says no more than a blank one; MaxText's may have the inputs of layers in host memory, too
    (`remat_policy: custom`, `decoder_layer_input: offload`).
    A row that asks whether a job fits (metric `oom`) keeps the habits of its stack, which errs on the safe side.
    """
    if row.metric == "oom":
        return row
    lean = row
    if row.recompute in ("", "partial"):
        moves = profile_of(row) is MAXTEXT and not row.offload
        lean = replace(row, recompute="full", offload="activations" if moves else row.offload)
    return replace(lean, offload="optimizer+parameters") if row.kind == "ppo" and not row.offload else lean


def training_need(job: MemoryJob, layout: Layout, shift: Mapping[str, float]) -> float:
    """Bytes a training job needs on its fullest device, with constants moved by `shift`, in logarithms."""
    shape = MemoryShape.of(replace(job, reserved=True, idle=False, context=True))
    constants = moved(TrainingMemoryConstants(), shift)
    return float(training_memory_table(shape, Layouts.of(layout), constants).total)


def inference_need(job: InferenceJob, shift: Mapping[str, float]) -> float:
    """Bytes an answering job needs on one device."""
    constants = moved(InferenceMemoryConstants(), shift)
    return float(inference_memory_table(InferenceShape.of(replace(job, context=True)), constants).total)


def _capacity(row: Measurement, accelerator: Accelerator | None) -> float:
    if accelerator is not None:
        return accelerator.memory_bytes
    if row.mem_gb:
        return row.mem_gb * GB
    raise Refusal(f"the memory of {row.gpu or 'the device'} is not known")


__all__ = ["INFERENCE_MEMORY", "MEMORY_NAMES", "TRAINING_MEMORY", "OomVerdict", "out_of_memory"]

MOST_FILLED = 0.95
"""In fits alone: where a run that ran seems to need more than its device, what its row does not print (recomputation,
offloading, a smaller micro-batch) made it fit, and it teaches the constants no more than that it filled so much of it.
Judgement. No prediction is cut."""
TRAINING_KINDS = ("pretrain", "sft", "lora", "rm", "ppo")


@dataclass(frozen=True, kw_only=True)
class PreparedTraining:
    """Training cases as arrays."""

    shape: MemoryShape
    layouts: Layouts
    extra_bytes: Array
    most_bytes: Array
    bound_bytes: Array
    first_stage: Array
    factor: Array
    """From bytes of a device to the row's unit."""


class TrainingMemory:
    """Peak memory of training rows."""

    name = "training-memory"
    constants: type = TrainingMemoryConstants

    def accepts(self, row: Measurement) -> bool:
        """Rows of a training kind that measured a peak."""
        return row.metric.startswith("peak_mem") and row.kind in TRAINING_KINDS

    def case(self, row: Measurement) -> MemoryCase:
        """The job behind a row."""
        return training_case(row)

    def stack(self, case: MemoryCase) -> str:
        """The memory profile."""
        return case.job.profile.name

    def prepare(self, cases: Sequence[MemoryCase]) -> PreparedTraining:
        """Cases as arrays."""
        return PreparedTraining(
            shape=MemoryShape.stacked([MemoryShape.of(case.job) for case in cases]),
            layouts=Layouts.of([case.layout for case in cases]),
            extra_bytes=array([case.extra_bytes for case in cases]),
            most_bytes=array([case.most_bytes for case in cases]),
            bound_bytes=array([case.bound_bytes for case in cases]),
            first_stage=array([case.first_stage for case in cases]),
            factor=array([case.devices / case.unit for case in cases]),
        )

    def predict(self, prepared: PreparedTraining, constants: TrainingMemoryConstants) -> Array:
        """Peaks in the unit of each row; a need beyond the device stays as it is."""
        return array(self._need(prepared, constants) * prepared.factor)

    def taught(self, prepared: PreparedTraining, constants: TrainingMemoryConstants) -> Array:
        """As `predict`, with what a fit compares to a run that ran: at most what its device holds, at least a bound."""
        need = np.maximum(self._need(prepared, constants), prepared.bound_bytes)
        return array(np.minimum(need, MOST_FILLED * prepared.most_bytes) * prepared.factor)

    @staticmethod
    def _need(prepared: PreparedTraining, constants: TrainingMemoryConstants) -> Array:
        table = training_memory_table(prepared.shape, prepared.layouts, constants)
        shown = np.where(prepared.first_stage > 0, table.stages["first"].peak, table.total)
        return array(shown + prepared.extra_bytes)


TRAINING_MEMORY = TrainingMemory()


@dataclass(frozen=True, kw_only=True)
class PreparedInference:
    """Answering cases as arrays."""

    shape: InferenceShape
    preallocated: Array
    factor: Array


class InferenceMemory:
    """Peak memory of answering rows."""

    name = "inference-memory"
    constants: type = InferenceMemoryConstants

    def accepts(self, row: Measurement) -> bool:
        """Rows of inference that measured a peak."""
        return row.metric.startswith("peak_mem") and row.kind == "inference"

    def case(self, row: Measurement) -> InferenceCase:
        """The job behind a row."""
        return inference_case(row)

    def stack(self, case: InferenceCase) -> str:
        """The engine."""
        return case.stack

    def prepare(self, cases: Sequence[InferenceCase]) -> PreparedInference:
        """Cases as arrays."""
        return PreparedInference(
            shape=stacked([InferenceShape.of(case.job) for case in cases]),
            preallocated=array([case.preallocated for case in cases]),
            factor=array([case.devices / case.unit for case in cases]),
        )

    def predict(self, prepared: PreparedInference, constants: InferenceMemoryConstants) -> Array:
        """Peaks in the unit of each row; what an engine takes in advance, where it does."""
        needed = inference_memory_table(prepared.shape, constants).total
        return array(np.where(prepared.preallocated > 0, prepared.preallocated, needed) * prepared.factor)


INFERENCE_MEMORY = InferenceMemory()
MEMORY_NAMES = (TRAINING_MEMORY.name, INFERENCE_MEMORY.name)
