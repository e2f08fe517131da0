"""Bytes per accelerator of a model that answers: weights, keys and values, prefill, and what an engine adds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from charter.catalog.accelerators import Accelerator
from charter.physics.columns import Array, Layouts, array
from charter.physics.constants import (
    CPU_PROCESS_BYTES,
    CPU_PROCESS_FORMULA,
    CPU_PROCESS_SOURCE,
    InferenceMemoryConstants,
    context_factor,
    memory_sigma,
)
from charter.physics.flops import kv_cache_bytes
from charter.physics.memory_profiles import Head
from charter.physics.memory_shape import ModelColumns, rank_columns
from charter.physics.precision import STORED_FORMATS, StoredFormat
from charter.physics.terms import ExplainedColumn, MemoryBreakdown, PhaseTables, PhaseTerms, TermTable, column
from charter.spec.architecture import Architecture
from charter.spec.layout import Layout

ENGINE_SHARE = 0.9
"""Share of a device that vLLM takes by default (`gpu_memory_utilization`); SGLang and TensorRT-LLM are near."""
SERVING_SLACK = 0.06
"""Share of prefill activations and logits lost to fragmentation: judgement."""


@dataclass(frozen=True, kw_only=True)
class InferenceJob:
    """Serving or generating job, as one of its devices holds it."""

    architecture: Architecture
    batch: float
    tokens_per_sequence: float
    """Prompt and answer: what the cache holds at the end."""
    prompt_tokens: float = 0.0
    """Tokens of a sequence whose cache exists while they are read."""
    prefill_tokens: float = 0.0
    """Tokens read in one pass, over all sequences."""
    tensor: int = 1
    pipeline: int = 1
    weights: StoredFormat = STORED_FORMATS["bf16"]
    kv_bytes_per_value: float = 2.0
    head: Head = "lm"
    grown_cache: bool = False
    """The cache grows by concatenation and the figure wanted is what the allocator reserves."""
    whole_prefill: bool = True
    """All activations of the prefill count (a plan errs safe); else the share that calibration finds."""
    untied_copy: bool = False
    """A tied output projection is stored once more (quantised checkpoints)."""
    context: bool = True
    accelerator: Accelerator | None = None


@dataclass(frozen=True, kw_only=True)
class InferenceShape:
    """The numbers of inference jobs as arrays."""

    matrices: Array
    ends: Array
    head_copy: Array
    matrix_bytes: Array
    end_bytes: Array
    cache_bytes: Array
    prompt_cache_bytes: Array
    live_bytes: Array
    logits_bytes: Array
    largest_matrix: Array
    grown: Array
    whole_prefill: Array
    context: Array
    context_factor: Array
    cpu: Array

    @classmethod
    def of(cls, job: InferenceJob) -> InferenceShape:
        """The numbers of one job."""
        a, tensor = job.architecture, job.tensor
        layout = Layouts.of(Layout(tensor=tensor, pipeline=job.pipeline))
        model = ModelColumns.of(a, scalar_head=job.head == "scalar")
        layers = np.ceil(model.layers / job.pipeline)
        rank = rank_columns(model, layout, stage="first", layers=array(layers))
        cache, prompt_cache = (
            kv_cache_bytes(a, tokens, bytes_per_value=job.kv_bytes_per_value, tensor=tensor) * job.batch / job.pipeline
            if tokens
            else 0.0
            for tokens in (job.tokens_per_sequence, job.prompt_tokens)
        )
        table = a.vocab_size * a.hidden_size
        copies = job.weights.end_bytes * table / tensor if job.untied_copy and a.tied_embeddings else 0.0
        if job.weights.head_bytes is not None and not a.tied_embeddings:
            copies += (job.weights.head_bytes - job.weights.end_bytes) * table / tensor
        numbers = {
            "matrices": rank.matrices,
            "ends": rank.total - rank.matrices,
            "head_copy": copies,
            "matrix_bytes": job.weights.matrix_bytes,
            "end_bytes": job.weights.end_bytes,
            "cache_bytes": cache,
            "prompt_cache_bytes": prompt_cache,
            "live_bytes": _live_bytes(a) * job.prefill_tokens / tensor,
            "logits_bytes": 4.0 * max(job.batch, 1.0) * a.vocab_size / tensor * (job.head == "lm" and job.batch > 0),
            "largest_matrix": max(float(model.largest_matrix), float(table)) / tensor * job.weights.dequantises,
            "grown": job.grown_cache,
            "whole_prefill": job.whole_prefill,
            "context": job.context,
            "context_factor": context_factor(job.accelerator.name) if job.accelerator else 1.0,
            "cpu": job.accelerator is not None and job.accelerator.kind == "cpu",
        }
        return cls(**{name: array(value) for name, value in numbers.items()})


def _live_bytes(a: Architecture) -> float:
    """Bytes per token of one layer without a backward pass: residual, normed input, and the widest inner values."""
    attention = (2 * a.num_heads + 2 * a.kv_heads) * a.head_size if a.attention_layers else 0
    return 2.0 * (2 * a.hidden_size + max((2 + a.gated_mlp) * _inner_width(a), attention))


def _inner_width(a: Architecture) -> float:
    inner = float(a.intermediate_size if a.mlp_layers > a.moe_layers else 0)
    if a.mixture:
        mixture = a.mixture
        inner = max(inner, mixture.expert_intermediate_size * mixture.experts_per_token + mixture.shared_width)
    return inner


def read_bytes(a: Architecture, *, stream: Array, tensor: Array) -> Array:
    """Bytes per token while Hugging Face's classes read without a backward pass, at the widest point of a layer.

    In the feed-forward part: embeddings, the layer's input, the stream after attention and its norm, `stream` bytes
    each, and gate, up and their product in 16 bits. In attention: three of these, four values of the queries' width
    while they turn, and keys and values. Source: the classes of Llama and Qwen3 in transformers 5.
    """
    hidden, queries, keys = a.hidden_size, a.num_heads * a.head_size, a.kv_heads * a.head_size
    feeds = 4 * stream * hidden + 2 * (2 + a.gated_mlp) * _inner_width(a) / tensor
    attends = 3 * stream * hidden + (4 * stream * queries + (stream + 2) * keys) / tensor
    return array(np.maximum(feeds, np.where(a.attention_layers > 0, attends, 0.0)))


@dataclass(frozen=True, kw_only=True)
class InferenceTable(PhaseTables):
    """Terms of two moments: while the prompt is read, and at the last generated token."""

    @property
    def total(self) -> Array:
        """Bytes at the fuller moment."""
        return array(np.maximum(self.totals["prefill"], self.totals["decode"]))


def inference_memory_table(shape: InferenceShape, constants: InferenceMemoryConstants | None = None) -> InferenceTable:
    """Memory of many jobs."""
    s, c = shape, constants or InferenceMemoryConstants()
    growth = np.where(s.grown > 0, c.cache_growth, 1.0)
    live = s.live_bytes * np.where(s.whole_prefill > 0, 1.0, c.prefill)
    weights, fixed = _weight_column(s, c), _fixed_columns(s, c)

    def cache(values: Array) -> ExplainedColumn:
        source = "2 x layers x kv_heads x head_dim x bytes / TP; times what growing by concatenation reserves"
        return column("keys and values", "kv_cache", c.cache * growth * values, "of all sequences", source)

    logits = column("last logits", "logits", s.logits_bytes, "4 B x batch x vocabulary / TP", "fp32 sampling")
    one = column(
        "one live layer", "activations", live, "residual, normed input and widest inner values", "Chen 2022 (kipply)"
    )
    slack = SERVING_SLACK * (live + s.logits_bytes)
    lost = column("allocator slack", "overhead", slack, "6% of activations and logits", "assumption")
    prefill = (weights, cache(s.prompt_cache_bytes), one, logits, *fixed, lost)
    decode = (weights, cache(s.cache_bytes), logits, *fixed)
    return InferenceTable(phases={"prefill": TermTable(columns=prefill), "decode": TermTable(columns=decode)})


def _weight_column(s: InferenceShape, c: InferenceMemoryConstants) -> ExplainedColumn:
    return column(
        "weights",
        "parameters",
        c.weights * (s.matrix_bytes * s.matrices + s.end_bytes * s.ends + s.head_copy),
        "{matrix:.3g} B x {matrices:,.0f} + {end:.3g} B x {ends:,.0f}",
        "stored bytes of the format, scales included (precision.py)",
        matrix=s.matrix_bytes,
        matrices=s.matrices,
        end=s.end_bytes,
        ends=s.ends,
    )


def _fixed_columns(s: InferenceShape, c: InferenceMemoryConstants) -> tuple[ExplainedColumn, ...]:
    """Return the terms that do not depend on the sequences: kernels' buffers, the device's context, the process."""
    device = 1 - s.cpu
    return (
        column(
            "dequantised weights",
            "buffers",
            2.0 * c.dequantised * s.largest_matrix,
            "2 B x {copies:.2g} x {matrix:,.0f}",
            "kernels that multiply in 16 bits, one matrix at a time",
            copies=c.dequantised,
            matrix=s.largest_matrix,
        ),
        column("workspaces", "buffers", c.workspace_bytes * device, "cuBLAS and small tensors", "assumption"),
        column(
            "device context",
            "overhead",
            c.context_bytes * s.context * s.context_factor * device,
            "driver and libraries, {factor:.2g} x {size:,.0f} B",
            "0.4-0.8 GiB seen in practice; docs/concepts/memory.md",
            factor=s.context_factor,
            size=c.context_bytes,
        ),
        column("process", "overhead", s.cpu * CPU_PROCESS_BYTES, CPU_PROCESS_FORMULA, CPU_PROCESS_SOURCE),
    )


def preallocated_bytes(capacity_bytes: float, share: float = ENGINE_SHARE) -> float:
    """Return the bytes that a device shows as used under an engine that takes its memory in advance."""
    return share * capacity_bytes


def job_inference_memory(job: InferenceJob, constants: InferenceMemoryConstants | None = None) -> MemoryBreakdown:
    """Memory of one job, term by term."""
    table = inference_memory_table(InferenceShape.of(job), constants)
    phase = "prefill" if float(table.totals["prefill"]) > float(table.totals["decode"]) else "decode"
    phases = PhaseTerms(table)
    return MemoryBreakdown(terms=phases[phase], phase=phase, phases=phases, sigma=memory_sigma("serving"))


PASS_TOKENS = 8192.0
"""Tokens that a server computes in one pass of a prefill: vLLM's `max_num_batched_tokens` on large accelerators (its
engine arguments); what is longer is split (chunked prefill)."""

SCORING_TOKENS = 32768
"""Most tokens of one pass over answers that are only scored, padding included; a longer answer is read alone. 32768
tokens x 4096 hidden x 4 bytes: one activation is 0.5 GiB."""
SCORING_ROWS = 64
"""Most answers that are scored together, however short they are."""
ROWS_OF_A_PASS = 8
"""Where several processes must make the same number of passes, about so many rows go in each."""

# -------- Answers that Charter's own engine draws: how their keys and values grow, and how many logits are drawn from.

ROOM_TOKENS = 64
"""Columns of keys and values that are added at once: the copy of a row's keys is then 1/64 of what one at every token
takes."""
ROOM_COLUMNS = 128
"""The same where joint products decode. Attention reads all of them, and a graph is recorded anew when there are more:
twice the time to launch a token, against 126 tokens that are launched at once."""
ALIGNED_COLUMNS = 16
"""Columns of joint products come in such numbers: fused attention copies a bias whose rows are of another length."""
DRAWN_LOGITS, DRAWING_BYTES = 2**22, 48.0
"""Logits from which tokens are drawn at once, of one row at least, and the bytes that each takes then: probabilities in
fp64 and their sums, sorted for `top_p` (17 bytes without)."""


def grown_columns(prompt: float, longest: float, *, joint: bool) -> tuple[float, float]:
    """Columns that keys and values have at the last token of an answer, unwritten ones included, and had before.

    >>> grown_columns(100, 1000, joint=True), grown_columns(100, 1000, joint=False), grown_columns(16, 20, joint=True)
    ((1104, 960), (1009, 944), (144, 0))
    """
    first = aligned_columns(prompt + ROOM_COLUMNS) if joint else prompt + ROOM_TOKENS
    each = aligned_columns(1 + ROOM_COLUMNS) if joint else 1 + ROOM_TOKENS
    last = first + each * ceil(max(longest - first, 0) / each)
    return last, last - each


def aligned_columns(columns: float) -> int:
    """The next number of columns that joint products take."""
    return ceil(columns / ALIGNED_COLUMNS) * ALIGNED_COLUMNS


def inference_memory(
    architecture: Architecture,
    *,
    batch: float,
    tokens_per_sequence: float,
    tensor: int = 1,
    pipeline: int = 1,
    weights: str = "bf16",
    prefill_tokens: float | None = None,
    head: Head = "lm",
    accelerator: Accelerator | None = None,
    constants: InferenceMemoryConstants | None = None,
) -> MemoryBreakdown:
    """Bytes on one accelerator that holds `batch` sequences of up to `tokens_per_sequence` tokens.

    Weights, key/value cache, and the activations of one prefill of `prefill_tokens` tokens (a whole batch when left
    out) through one layer, with the logits of the last positions; the cache is counted whole beside the prefill, so a
    plan errs on the safe side. Source: roofline arithmetic (Chen 2022, "Transformer inference arithmetic").
    """
    tokens = batch * tokens_per_sequence if prefill_tokens is None else prefill_tokens
    job = InferenceJob(
        architecture=architecture,
        batch=batch,
        tokens_per_sequence=tokens_per_sequence,
        prompt_tokens=tokens_per_sequence,
        prefill_tokens=tokens,
        tensor=tensor,
        pipeline=pipeline,
        weights=replace(STORED_FORMATS[weights], dequantises=False),
        head=head,
        accelerator=accelerator,
    )
    return job_inference_memory(job, constants)
