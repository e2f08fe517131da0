"""Rates and latencies of serving: a row as a served model on its devices, and what the passes of its engine take."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from charter.catalog.accelerators import Accelerator
from charter.physics.columns import Array, array, stacked
from charter.physics.constants import ServingConstants
from charter.physics.flops import kv_cache_bytes
from charter.physics.generation import decode_terms, issue_of, prefill_terms, served_terms
from charter.physics.serving_devices import (
    COMPILED,
    TRANSFORMERS,
    VLLM,
    GenerationEngine,
    ServingDevice,
    WeightFormat,
    cache_bytes_per_value,
    engine_named,
    weight_format,
)
from charter.physics.serving_passes import Issue, ServingModel
from charter.physics.shapes import count_parameters
from charter.spec.architecture import Architecture
from charter.units import GIB
from charter.validation.rows.accelerator import accelerator_of, in_cluster_of
from charter.validation.rows.architecture import architecture_of
from charter.validation.rows.measurement import Measurement, Refusal

WORKSPACE_BYTES = 3 * GIB
"""Context, activations of one prefill chunk and captured graphs beside weights and cache. Judgement."""
MOST_WEIGHTS = 0.97
"""Share of a device that weights fill at most; a group that could not hold them is wider than printed (experts spread
over data-parallel ranks). Judgement."""
SHORT_PROMPT, SHORT_ANSWER = 32.0, 256.0
"""Lengths of a single-stream test that prints none: a one-line prompt. Judgement."""
CHAT_PROMPT, CHAT_ANSWER = 220.0, 200.0
"""Lengths of a server test that prints none: near the means of the ShareGPT set that serving benchmarks replay."""
SERVED_KERNELS = {
    "unfused": "flash1", "flash1": "flash1", "triton": "flash1", "flash2": "flash2", "flash3": "flash3",
    "flash4": "flash3", "cudnn": "recent", "trtllm": "recent", "splash": "recent",
}  # fmt: skip
"""Generation of an attention kernel by its typed name; where it says less, the engine's habit stays."""
_BY_LAYERS = re.compile(r"llama\.?cpp|gg(ml|uf)|ollama|exllama")
"""Engines that give every device some of the layers (`--split-mode layer`)."""


@dataclass(frozen=True, kw_only=True)
class GenerationCase:
    """One serving configuration and what was measured of it."""

    architecture: Architecture
    accelerator: Accelerator
    engine: GenerationEngine
    weights: WeightFormat
    cache_bytes: float
    tensor: int
    pipeline: int
    replicas: float
    data_attention: bool
    """Every rank of the group attends to sequences of its own."""
    attention: str
    """Generation of the attention kernels."""
    sequences: float
    """Decoded together on one replica."""
    prompt: float
    new_tokens: float
    waiting: float
    """Share of the prompts that wait until others are answered."""
    metric: str
    """`out`, `total`, `requests`, `prefill rate`, `step rate` (rates); `prefill`, `step` or `whole` (latencies)."""
    scale: float
    """From tokens per second of all replicas, or from seconds, to the row's unit."""


def generation_case(row: Measurement) -> GenerationCase:
    """The configuration of an inference row; raises Refusal where model or accelerator is unknown."""
    architecture, accelerator = architecture_of(row), in_cluster_of(row, accelerator_of(row))
    metric, scale = _metric(row)
    engine = engine_named(row.framework, row.model, row.notes, row.source) or (
        TRANSFORMERS if row.mbs == 1 or "latency" in row.metric else VLLM
    )
    weights = weight_format(row.dtype or row.framework)
    follows = engine.label == "tensorrt-llm"
    cache = cache_bytes_per_value(f"{row.dtype}; {row.notes}", weights, follows_weights=follows)
    tensor, pipeline, replicas = _degrees(row, architecture, accelerator, weights, engine)
    apart = _attention_is_data_parallel(row, tensor)
    served = _one_stream_engine(engine)
    prompt, answer = _lengths(row, served, metric)
    sequences = _stated_batch(row)
    if sequences is None:
        single = metric in ("prefill", "step", "whole") or served
        sequences = (
            1.0
            if single
            else _full_load(
                architecture, accelerator, engine, weights, cache, tensor, pipeline, prompt + answer, apart=apart
            )
        )
    elif not row.mbs and replicas > 1:
        sequences = max(1.0, sequences / replicas)
    requests = _requests(row)
    sequences = _even_waves(sequences, requests, replicas)
    return GenerationCase(
        architecture=architecture,
        accelerator=accelerator,
        engine=engine,
        weights=weights,
        cache_bytes=cache,
        tensor=tensor,
        pipeline=pipeline,
        replicas=replicas,
        data_attention=apart,
        attention=SERVED_KERNELS.get(row.attention_kernel, engine.attention),
        sequences=sequences,
        prompt=prompt,
        new_tokens=answer,
        waiting=0.0 if row.mbs or served else _waiting(sequences, requests, replicas),
        metric=metric,
        scale=scale / _shares(row, tensor * pipeline * replicas, sequences * replicas),
    )


def _metric(row: Measurement) -> tuple[str, float]:
    """Return the measured figure of a configuration, and the factor from seconds (or tokens per second) to its unit."""
    name = row.metric
    if re.search(r"latency|ttft|tpot|itl(_|$)|time_(per|to)_", name):
        scale = 1e3 if "ms" in name.split("_") or row.unit.strip() == "ms" else 1.0
        if re.search(r"ttft|prefill|first|prompt", name):
            return "prefill", scale
        if re.search(r"per_(output_)?token|decode|next_token|inter_?token|tpot|itl(_|$)", name):
            return "step", scale
        return "whole", scale
    if row.osl is not None and row.osl < 1 and (row.isl or 0) > 1 and "tokens_per_s" in name:
        return "prefill rate", 1.0
    if name.startswith(("prefill", "prompt", "input", "decode")) and "tokens_per_s" in name:
        return ("step rate" if name.startswith("decode") else "prefill rate"), 1.0
    if re.match(r"(requests|samples|sequences|queries|prompts)_per_", name):
        return "requests", 60.0 if "min" in name.split("_") else 1.0
    if name in ("total_tokens_per_s", "tokens_per_s_total"):
        return "total", 1.0
    if "tokens_per_s" in name:
        return (
            "total"
            if re.search(r"in ?\+ ?out|total tok", f"{row.unit} {row.notes}") and not name.startswith(("out", "gen"))
            else "out"
        ), 1.0
    raise Refusal(f"no model of the metric {name!r} of an inference row")


def _shares(row: Measurement, devices: float, sequences: float) -> float:
    """By what the rate of all replicas is divided: accelerators, or users."""
    if re.search(r"per_(gpu|device|chip|accelerator|card)", row.metric):
        return devices
    return sequences if re.search(r"per_(user|request|stream|sequence)$", row.metric) else 1.0


def _one_stream_engine(engine: GenerationEngine) -> bool:
    """Engines whose tables are made with one request at a time unless they say otherwise."""
    return engine.eager or engine is COMPILED or engine.label in ("fastertransformer", "deepspeed")


def _degrees(
    row: Measurement,
    architecture: Architecture,
    accelerator: Accelerator,
    weights: WeightFormat,
    engine: GenerationEngine,
) -> tuple[int, int, float]:
    """Tensor and pipeline degree of a replica, and replicas.

    Blank: tensor parallelism over all devices of a node, or over as many as the weights need with blank `gpus`. Plain
    eager code spreads layers over devices instead (`device_map="auto"`); llama.cpp over as many as the weights need.
    """
    pipeline = row.pp or 1
    needed = weights.bytes_per_weight * count_parameters(architecture).total / (0.8 * accelerator.memory_bytes)
    if (row.tp or 1) == 1 and (row.gpus or 1) > 1 and not row.dp:
        if engine.eager:
            return 1, row.gpus or 1, 1.0
        if row.tp is None and _BY_LAYERS.search(row.framework.casefold()):
            return 1, min(row.gpus or 1, math.ceil(needed)), 1.0
    node = max(accelerator.devices_per_node, accelerator.scaleup_domain if accelerator.devices_per_node == 4 else 1)
    if row.tp:
        tensor = row.tp
    elif row.gpus:
        tensor = max(1, min(row.gpus // pipeline // (row.dp or 1), node))
    else:
        tensor = 1
        while tensor < needed and tensor < 64:
            tensor *= 2
    replicas = row.dp if row.dp and row.tp else (row.gpus or tensor * pipeline) / (tensor * pipeline)
    ranks = 0.8 * needed / MOST_WEIGHTS
    while row.gpus and tensor * pipeline < ranks and 2 * tensor * pipeline <= row.gpus:
        tensor, replicas = 2 * tensor, row.gpus / (2 * tensor * pipeline)
    return tensor, pipeline, max(1.0, float(replicas))


def _attention_is_data_parallel(row: Measurement, tensor: int) -> bool:
    """Return True if every rank of a group attends to sequences of its own; experts spread over the group anyway."""
    words = r"(dp|data[- ]parallel)[- _]?attention|attention[- _](dp|data)|\bdep\d*\b"
    said = re.search(words, f"{row.framework} {row.notes}", re.I)
    return tensor > 1 and (said is not None or tensor > (row.tp or (1 if row.dp else tensor)))


def _lengths(row: Measurement, one_stream: bool, metric: str) -> tuple[float, float]:
    usual = (SHORT_PROMPT, SHORT_ANSWER) if one_stream else (CHAT_PROMPT, CHAT_ANSWER)
    answer = row.osl if row.osl is not None else usual[1]
    prompt = (
        row.isl
        if row.isl is not None
        else (row.seq - answer if row.seq and row.seq > answer and not row.osl else usual[0])
    )
    return max(1.0, float(prompt)), max(1.0, float(answer))


def _stated_batch(row: Measurement) -> float | None:
    """Batch or concurrency as a column or a note says it."""
    if row.mbs:
        return row.mbs
    match = re.search(
        r"(?:batch(?: size)?|concurrency|concurrent(?: requests| users)?|bs)\s*[=:]?\s*(\d+)", row.notes, re.I
    )
    if match:
        return float(match[1])
    match = re.search(r"(\d+)\s*(?:concurrent|parallel)\s*(?:requests|users|streams|sequences)", row.notes, re.I)
    return float(match[1]) if match else None


def _requests(row: Measurement) -> float | None:
    """Requests of the whole test, where the notes say so."""
    match = re.search(r"(?:queued|requests|prompts)\s*\((\d+)\)|\b(\d{2,})\s+(?:requests|prompts)\b", row.notes, re.I)
    return float(match[1] or match[2]) if match else None


def _even_waves(sequences: float, requests: float | None, replicas: float) -> float:
    """A server has no more work than there are requests; equal answers leave in waves, the last one part full."""
    if requests is None:
        return sequences
    each = max(1.0, requests / replicas)
    return each / math.ceil(each / sequences)


def _waiting(sequences: float, requests: float | None, replicas: float) -> float:
    """Share of the prompts that are read while others are answered: all but the first ones; all of an endless load."""
    return 1.0 if requests is None else max(0.0, 1 - sequences * replicas / requests)


def _full_load(
    architecture: Architecture,
    accelerator: Accelerator,
    engine: GenerationEngine,
    weights: WeightFormat,
    cache_bytes: float,
    tensor: int,
    pipeline: int,
    tokens: float,
    *,
    apart: bool,
) -> float:
    """Sequences whose cache fits beside the weights, at most what the engine admits per pipeline stream."""
    resident = resident_sequences(
        architecture,
        accelerator.memory_bytes * engine.memory_share,
        weights=weights,
        cache_bytes=cache_bytes,
        tensor=tensor,
        pipeline=pipeline,
        tokens=tokens,
        data_attention=apart,
    )
    return max(1.0, min(resident, engine.most_sequences * pipeline * (tensor if apart else 1)))


def resident_sequences(
    architecture: Architecture,
    room_bytes: float,
    *,
    weights: WeightFormat,
    cache_bytes: float,
    tensor: int,
    pipeline: int,
    tokens: float,
    data_attention: bool = False,
) -> float:
    """Sequences of `tokens` tokens whose keys and values fit beside the weights on every rank of a replica."""
    total = count_parameters(architecture)
    sixteen = total.embedding + total.head
    stored_bytes = weights.head_bytes * sixteen + weights.bytes_per_weight * (total.total - sixteen)
    free = room_bytes - WORKSPACE_BYTES - stored_bytes / (tensor * pipeline)
    one = kv_cache_bytes(architecture, tokens, bytes_per_value=cache_bytes, tensor=1 if data_attention else tensor)
    one = one / pipeline / (tensor if data_attention else 1)
    return max(1.0, free / one)


RATES = re.compile(r"tokens_per_s|(requests|samples|sequences|queries|prompts)_per_(s|sec|second|min|minute)(_|$)")
TIMES = ("latency", "ttft", "tpot", "itl", "time_per_output_token", "time_to_first_token")


@dataclass(frozen=True, kw_only=True)
class PreparedGeneration:
    """Inference rows as columns."""

    model: ServingModel
    group: ServingDevice
    issue: Issue
    sequences: Array
    prompt: Array
    new_tokens: Array
    waiting: Array
    replicas: Array
    scale: Array
    counted: Array
    """What a rate counts while one sequence is served: tokens of its answer, of its prompt, both, or itself."""
    is_rate: Array
    is_prefill: Array
    is_step: Array


class Generation:
    """Rates and latencies of prefill and decode; see `charter.validation.score.Quantity`."""

    name = "generation"
    constants = ServingConstants

    def accepts(self, row: Measurement) -> bool:
        """Inference rows with a rate or a latency."""
        return row.kind == "inference" and (
            RATES.search(row.metric) is not None or any(word in row.metric for word in TIMES)
        )

    def case(self, row: Measurement) -> GenerationCase:
        """The configuration behind a row."""
        return generation_case(row)

    def stack(self, case: GenerationCase) -> str:
        """The engine."""
        return case.engine.label

    def prepare(self, cases: Sequence[GenerationCase]) -> PreparedGeneration:
        """Cases as columns."""
        groups = [
            ServingDevice.of(
                case.accelerator,
                weights=case.weights,
                cache_bytes=case.cache_bytes,
                tensor=case.tensor,
                pipeline=case.pipeline,
                data_attention=case.data_attention,
                attention=case.attention,
            )
            for case in cases
        ]
        return PreparedGeneration(
            model=stacked([ServingModel.of(case.architecture) for case in cases]),
            group=stacked(groups),
            issue=issue_of([case.engine for case in cases]),
            sequences=array([case.sequences for case in cases]),
            prompt=array([case.prompt for case in cases]),
            new_tokens=array([case.new_tokens for case in cases]),
            waiting=array([case.waiting for case in cases]),
            replicas=array([case.replicas for case in cases]),
            scale=array([case.scale for case in cases]),
            counted=array([_counted(case) for case in cases]),
            is_rate=array([case.metric not in ("prefill", "step", "whole") for case in cases]),
            is_prefill=array([case.metric.startswith("prefill") for case in cases]),
            is_step=array([case.metric.startswith("step") for case in cases]),
        )

    def predict(self, prepared: PreparedGeneration, constants: ServingConstants) -> Array:
        """Rates or latencies in the unit of each row."""
        p = prepared
        first = prefill_terms(p.model, p.group, p.issue, constants, sequences=p.sequences, prompt=p.prompt).total
        middle = p.prompt + p.new_tokens / 2
        step = decode_terms(p.model, p.group, p.issue, constants, sequences=p.sequences, context=middle).total
        total = served_terms(
            p.model,
            p.group,
            p.issue,
            constants,
            sequences=p.sequences,
            prompt=p.prompt,
            new_tokens=p.new_tokens,
            waiting=p.waiting,
        ).total
        counted = p.sequences * p.replicas * p.counted
        latency = np.where(p.is_prefill > 0, first, np.where(p.is_step > 0, step, total))
        return array(p.scale * np.where(p.is_rate > 0, counted / latency, latency))


def _counted(case: GenerationCase) -> float:
    both = case.new_tokens + case.prompt
    counts = {"total": both, "out": case.new_tokens, "prefill rate": case.prompt}
    return counts.get(case.metric, 1.0)


GENERATION = Generation()
