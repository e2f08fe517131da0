"""Bytes per accelerator at the peak of a training step, and of an inference job, term by term.

The peak of a training step is taken as everything at once: model state, all kept activations, the logits, gather
buffers. That is true at the start of the backward pass, and errs on the safe side otherwise.
"""

from dataclasses import dataclass

from charter.catalog.accelerators import Accelerator
from charter.estimate.activations import SOURCE as ACTIVATION_SOURCE
from charter.estimate.activations import Implementation, layer_activations
from charter.estimate.kv_cache import kv_cache_bytes
from charter.estimate.memory_terms import (
    CrossEntropy,
    Head,
    TrainingJob,
    activation_terms,
    buffer_terms,
    bytes_term,
    logit_terms,
    overhead_terms,
    state_terms,
)
from charter.estimate.precision import FSDP_MIXED, WEIGHT_BYTES, TrainingPrecision
from charter.estimate.states import rank_parameters
from charter.estimate.terms import Breakdown
from charter.spec.architecture import Architecture
from charter.spec.layout import Adapter, Layout

__all__ = ["CrossEntropy", "Head", "MemoryBreakdown", "inference_memory", "largest_batch", "training_memory"]


@dataclass(frozen=True, kw_only=True)
class MemoryBreakdown(Breakdown):
    """Bytes on one accelerator; `total_bytes` is the sum of the terms."""

    stage: str = "only"
    """Which pipeline stage the figures are of: the one that needs most."""

    @property
    def total_bytes(self) -> float:
        """Everything."""
        return self.total

    @property
    def parameter_bytes(self) -> float:
        """Weights."""
        return self.part("parameters")

    @property
    def gradient_bytes(self) -> float:
        """Gradients."""
        return self.part("gradients")

    @property
    def optimizer_bytes(self) -> float:
        """Optimizer state."""
        return self.part("optimizer")

    @property
    def activation_bytes(self) -> float:
        """What the forward pass keeps."""
        return self.part("activations")

    @property
    def logits_bytes(self) -> float:
        """Logits and the loss."""
        return self.part("logits")

    @property
    def buffer_bytes(self) -> float:
        """Gathered weights and communication buffers."""
        return self.part("buffers")

    @property
    def kv_cache_bytes(self) -> float:
        """Keys and values."""
        return self.part("kv_cache")

    @property
    def overhead_bytes(self) -> float:
        """Context and allocator slack."""
        return self.part("overhead")

    def fits(self, capacity_bytes: float) -> bool:
        """Whether it is within a capacity."""
        return self.total <= capacity_bytes


def training_memory(
    architecture: Architecture,
    layout: Layout,
    *,
    seq_len: int,
    precision: TrainingPrecision = FSDP_MIXED,
    adapter: Adapter | None = None,
    head: Head = "lm",
    fused_attention: bool = True,
    cross_entropy: CrossEntropy = "eager",
    logit_share: float = 1.0,
    dropout: float = 0.0,
    implementation: Implementation = "huggingface",
    accelerator: Accelerator | None = None,
) -> MemoryBreakdown:
    """Bytes of the fullest rank during a training step; the first and the last pipeline stage are compared.

    `logit_share` is the share of positions whose logits are computed; `implementation` says whose layers run.
    Reading it: docs/concepts/memory.md.

    >>> from charter.catalog import models
    >>> from charter.spec.layout import Recompute, ZeroStage
    >>> llama = models.get("Llama-3.1-8B").architecture
    >>> layout = Layout(data=8, zero=ZeroStage.PARAMETERS, recompute=Recompute.FULL)
    >>> round(training_memory(llama, layout, seq_len=4096).parameter_bytes / 2**30, 2)
    3.74
    """
    job = TrainingJob(
        architecture=architecture,
        layout=layout,
        seq_len=seq_len,
        precision=precision,
        adapter=adapter,
        head=head,
        fused_attention=fused_attention,
        cross_entropy=cross_entropy,
        logit_share=logit_share,
        dropout=dropout,
        implementation=implementation,
        accelerator=accelerator,
    )
    stages = sorted({0, layout.pipeline - 1})
    return max((_stage_memory(job, stage) for stage in stages), key=lambda breakdown: breakdown.total)


def _stage_memory(job: TrainingJob, stage: int) -> MemoryBreakdown:
    rank = rank_parameters(job.architecture, job.layout, stage=stage, scalar_head=job.head == "scalar")
    last = stage == job.layout.pipeline - 1
    terms = [*state_terms(job, rank), *activation_terms(job, stage), *buffer_terms(job, rank)]
    if last and job.head == "lm":
        terms += logit_terms(job)
    terms += overhead_terms(job.layout, terms, job.accelerator)
    name = "only" if job.layout.pipeline == 1 else ("first" if stage == 0 else "last")
    return MemoryBreakdown(terms=tuple(term for term in terms if term.value), stage=name)


def inference_memory(
    architecture: Architecture,
    *,
    batch: float,
    tokens_per_sequence: float,
    tensor: int = 1,
    pipeline: int = 1,
    weights: str = "bf16",
    kv_bytes_per_value: float = 2.0,
    prefill_tokens: float | None = None,
    head: Head = "lm",
    accelerator: Accelerator | None = None,
) -> MemoryBreakdown:
    """Bytes on one accelerator that holds `batch` sequences of up to `tokens_per_sequence` tokens.

    Weights, key/value cache, and the activations of one prefill of `prefill_tokens` tokens (a whole batch when left
    out) through one layer, with the logits of the last positions. Source: roofline arithmetic (Chen 2022, "Transformer
    inference arithmetic"); page rounding and graph capture are not modelled.
    """
    layout = Layout(tensor=tensor, pipeline=pipeline)
    rank = rank_parameters(architecture, layout, scalar_head=head == "scalar")
    cache = kv_cache_bytes(architecture, tokens_per_sequence, bytes_per_value=kv_bytes_per_value, tensor=tensor)
    cache /= pipeline
    tokens = batch * tokens_per_sequence if prefill_tokens is None else prefill_tokens
    layer = layer_activations(architecture, seq_len=tokens_per_sequence)
    live = layer.bytes_per_token(layout, fused_attention=True) * tokens
    logits = 4.0 * batch * architecture.vocab_size / tensor if head == "lm" else 0.0
    weight_bytes = WEIGHT_BYTES[weights]
    terms = [
        bytes_term(
            "weights", "parameters", weight_bytes * rank.total, f"{weight_bytes:.3g} B x {rank.total:,.0f}", weights
        ),
        bytes_term(
            "keys and values",
            "kv_cache",
            cache * batch,
            f"{batch:g} sequences x {tokens_per_sequence:,.0f} tokens x {cache / tokens_per_sequence:,.0f} B",
            "2 x layers x kv_heads x head_dim x bytes / TP",
        ),
        bytes_term("one live layer", "activations", live, f"{tokens:,.0f} tokens of prefill", ACTIVATION_SOURCE),
        bytes_term("last logits", "logits", logits, "4 B x batch x vocabulary / TP", "fp32 sampling"),
    ]
    terms += overhead_terms(layout, terms, accelerator)
    return MemoryBreakdown(terms=tuple(term for term in terms if term.value))


def largest_batch(
    architecture: Architecture,
    capacity_bytes: float,
    *,
    tokens_per_sequence: float,
    tensor: int = 1,
    pipeline: int = 1,
    weights: str = "bf16",
    kv_bytes_per_value: float = 2.0,
    prefill_tokens: float = 8192,
    accelerator: Accelerator | None = None,
) -> int:
    """Sequences whose key/value cache fits beside the weights; 0 when the weights alone do not fit."""

    def total(batch: int) -> float:
        return inference_memory(
            architecture,
            batch=batch,
            tokens_per_sequence=tokens_per_sequence,
            tensor=tensor,
            pipeline=pipeline,
            weights=weights,
            kv_bytes_per_value=kv_bytes_per_value,
            prefill_tokens=prefill_tokens,
            accelerator=accelerator,
        ).total

    fixed, one = total(0), total(1)
    return max(0, int((capacity_bytes - fixed) / (one - fixed)))
