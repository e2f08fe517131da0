"""Seconds of one optimizer step, term by term, with an interval."""

from __future__ import annotations

import math
from dataclasses import dataclass

from charter.catalog.accelerators import Accelerator
from charter.estimate.flops import training_flops_per_token
from charter.estimate.precision import FSDP_MIXED, TrainingPrecision
from charter.estimate.terms import Breakdown, Interval, Term
from charter.estimate.training_pass import TrainingPass, seconds_term
from charter.spec.architecture import Architecture
from charter.spec.layout import Adapter, Layout

UNMODELLED_SHARE = 0.08
"""Data loading, stragglers, clocks below their boost: judgement, from the gap between microbenchmarks and runs."""
BASE_SIGMA = 0.22
"""Median absolute error of 15 % as a lognormal: 0.15 / 0.674. Source: docs/concepts/memory.md (constants per
generation land within 11-15 % on ordinary large runs; re-measurement noise has a median of 3.6 %)."""
UNMEASURED_SIGMA, UNUSUAL_SIGMA = 0.15, 0.30
"""Added in quadrature: a device without a measured ceiling; launch-bound steps, deep pipelines, long context,
processors (the cases in which docs/concepts/memory.md reports errors of 2x). Judgement."""


@dataclass(frozen=True, kw_only=True)
class StepTime(Breakdown):
    """Seconds of one optimizer step; `total` is the median estimate, the sum of the terms."""

    tokens: float
    """Tokens of the step over all accelerators."""
    model_flops: float
    """Operations of the step by the usual count, without recomputation."""
    num_accelerators: int
    peak_flops_per_second: float
    sigma: float

    @property
    def seconds(self) -> Interval:
        """10th, 50th and 90th percentile."""
        return Interval.around(self.total, sigma=self.sigma)

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second over all accelerators, at the median."""
        return self.tokens / self.total

    @property
    def model_flops_utilisation(self) -> float:
        """Model operations per second over the dense peak (causal attention, no recomputation)."""
        return self.model_flops / (self.total * self.num_accelerators * self.peak_flops_per_second)


def training_step(
    architecture: Architecture,
    layout: Layout,
    accelerator: Accelerator,
    *,
    seq_len: float,
    dtype: str = "bf16",
    precision: TrainingPrecision = FSDP_MIXED,
    adapter: Adapter | None = None,
    head_share: float = 1.0,
    causal: bool = True,
) -> StepTime:
    """Seconds of `layout.accumulation` micro-batches of `layout.micro_batch` sequences per rank, and the update.

    `head_share` is the share of positions with logits (0 for a scalar head). The slowest pipeline stage sets the
    pace; with m micro-batches, p stages and v chunks the step takes `m + (p - 1) / v` times its pass (Narayanan et
    al. 2021, section 2.2).

    >>> from charter.catalog import accelerators, models
    >>> from charter.spec.layout import Recompute, ZeroStage
    >>> llama = models.get("Llama-3.1-8B").architecture
    >>> layout = Layout(data=8, zero=ZeroStage.PARAMETERS, recompute=Recompute.FULL)
    >>> step = training_step(llama, layout, accelerators.get("H100"), seq_len=8192)
    >>> 0.25 < step.model_flops_utilisation < 0.5
    True
    """
    one_pass = TrainingPass.of(
        architecture, layout, accelerator, seq_len, dtype, precision, adapter, head_share, causal
    )
    micro = layout.accumulation
    terms = [*one_pass.compute_terms(micro), *one_pass.communication_terms(micro)]
    work = sum(term.value for term in terms)
    if layout.pipeline > 1:
        bubble = work / micro * (layout.pipeline - 1) / layout.interleave
        formula = f"(p - 1) / v = {(layout.pipeline - 1) / layout.interleave:.3g} passes of {work / micro:.3g} s"
        terms.append(seconds_term("pipeline bubble", "bubble", bubble, formula, "Narayanan et al. 2021, section 2.2"))
    terms += one_pass.update_terms(micro)
    shown = "data loading, stragglers, clocks (judgement)"
    terms.append(
        seconds_term("unmodelled", "overhead", UNMODELLED_SHARE * work, f"{UNMODELLED_SHARE:.0%} of work", shown)
    )
    tokens = layout.micro_batch * seq_len * micro * layout.data
    flops = training_flops_per_token(
        architecture, seq_len, causal=causal, head_share=head_share, frozen_base=adapter is not None
    )
    return StepTime(
        terms=tuple(term for term in terms if term.value),
        tokens=tokens,
        model_flops=flops * tokens,
        num_accelerators=layout.num_accelerators,
        peak_flops_per_second=accelerator.peak_flops_per_second("fp32" if accelerator.kind == "cpu" else dtype),
        sigma=_sigma(accelerator, dtype, layout, terms),
    )


def _sigma(accelerator: Accelerator, dtype: str, layout: Layout, terms: list[Term]) -> float:
    total = sum(term.value for term in terms)
    launch = sum(term.value for term in terms if term.part == "launch")
    unusual = accelerator.kind == "cpu" or layout.pipeline >= 16 or launch > 0.3 * total
    unmeasured = dtype not in accelerator.matmul_ceiling and accelerator.kind != "cpu"
    return math.hypot(BASE_SIGMA, UNMEASURED_SIGMA * unmeasured, UNUSUAL_SIGMA * unusual)
