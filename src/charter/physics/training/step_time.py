"""Seconds of one optimizer step of one configuration, term by term, with an interval."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from charter.catalog.accelerators import Accelerator
from charter.physics.arrays import Array, array
from charter.physics.layouts import Layouts
from charter.physics.precision import FSDP_MIXED, TrainingPrecision
from charter.physics.shapes.flops import training_flops_per_token
from charter.physics.terms import Breakdown, Interval, Term
from charter.physics.training.constants import TrainingConstants
from charter.physics.training.device_columns import DeviceColumns
from charter.physics.training.micro_batch import StepInputs
from charter.physics.training.model_columns import ModelColumns
from charter.physics.training.stack_profiles import PROFILES, StackProfile
from charter.physics.training.step_job import StackColumns, StepJob
from charter.physics.training.step_seconds import step_table
from charter.physics.training.step_work import step_work
from charter.spec.architecture import Architecture
from charter.spec.layout import Adapter, Layout

BASE_SIGMA = 0.22
"""Median absolute error of 15 % as a lognormal: 0.15 / 0.674. Source: docs/concepts/memory.md (constants per
generation land within 11-15 % on ordinary large runs; re-measurement noise has a median of 3.6 %)."""
UNMEASURED_SIGMA, UNUSUAL_SIGMA = 0.15, 0.30
"""Added in quadrature: a device without a measured ceiling; launch-bound steps, deep pipelines, long context,
processors (the cases in which docs/concepts/memory.md reports errors of 2x). Judgement."""
DTYPE_BITS = {
    "fp32": 32.0,
    "tf32": 19.0,
    "bf16": 16.0,
    "fp16": 16.0,
    "fp8": 8.0,
    "mxfp8": 8.0,
    "nvfp4": 4.0,
    "fp4": 4.0,
}
"""Of the operands of matrix products."""
BLOCK_SCALED = ("mxfp8", "nvfp4", "fp4")
CLIPPING_BYTES = 8.0
"""Per owned parameter beside Adam's states: the norm of the gradients, and the gradients scaled."""


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
    stack: StackProfile | None = None,
    constants: TrainingConstants | None = None,
) -> StepTime:
    """Seconds of `layout.accumulation` micro-batches of `layout.micro_batch` sequences per rank, and the update.

    `head_share` is the share of positions with logits (0 for a scalar head). Without a `stack` it is the native engine
    (Hugging Face layers under PyTorch FSDP), on TPUs MaxText; without `constants` their priors. With m
    micro-batches, p stages and v chunks the step takes `m + (p - 1) / v` passes (Narayanan et al. 2021, section 2.2).

    >>> from charter.catalog import accelerators, models
    >>> from charter.spec.layout import Recompute, ZeroStage
    >>> llama = models.get("Llama-3.1-8B").architecture
    >>> layout = Layout(data=8, zero=ZeroStage.PARAMETERS, recompute=Recompute.FULL)
    >>> step = training_step(llama, layout, accelerators.get("H100"), seq_len=8192)
    >>> 0.25 < step.model_flops_utilisation < 0.5
    True
    """
    fitted_stack = with_precision(stack or native_profile(accelerator), precision)
    job = step_job(
        layout, seq_len=seq_len, dtype=dtype, precision=precision, adapter=adapter, head_share=head_share, causal=causal
    )
    model, device, profile = ModelColumns.of(architecture), DeviceColumns.of(accelerator), StackColumns.of(fitted_stack)
    given = StepInputs(
        model=model,
        device=device,
        job=job,
        stack=profile,
        work=step_work(model, device, job, profile),
        constants=constants or TrainingConstants(),
    )
    terms = step_table(given).at()
    tokens = layout.micro_batch * seq_len * layout.accumulation * layout.data
    flops = training_flops_per_token(
        architecture, seq_len, causal=causal, head_share=head_share, frozen_base=adapter is not None
    )
    return StepTime(
        terms=terms,
        tokens=tokens,
        model_flops=flops * tokens,
        num_accelerators=layout.num_accelerators,
        peak_flops_per_second=accelerator.peak_flops_per_second("fp32" if accelerator.kind == "cpu" else dtype),
        sigma=_sigma(accelerator, dtype, layout, terms),
    )


def with_precision(stack: StackProfile, precision: TrainingPrecision) -> StackProfile:
    """A profile that moves the bytes of a gradient, and of an update, that a precision has."""
    return replace(
        stack,
        gradient_bytes=precision.gradient_bytes,
        update_bytes=2 * precision.state_bytes + CLIPPING_BYTES,
    )


def native_profile(accelerator: Accelerator) -> StackProfile:
    """Return the default profile: Hugging Face layers under PyTorch FSDP, or MaxText on TPUs."""
    return PROFILES["maxtext" if accelerator.kind == "tpu" else "native"]


def step_job(
    layout: Layout | Layouts,
    *,
    seq_len: float | Array,
    dtype: str,
    precision: TrainingPrecision,
    adapter: Adapter | None,
    head_share: float,
    causal: bool,
) -> StepJob:
    """One training step as columns without dimensions, or many that differ in layout and length of sequences."""
    return StepJob(
        layouts=Layouts.of(layout) if isinstance(layout, Layout) else layout,
        seq=array(seq_len),
        causal=array(causal),
        head_share=array(head_share),
        bits=array(DTYPE_BITS.get(dtype, 16.0)),
        block_scaled=array(dtype in BLOCK_SCALED),
        value_bytes=array(precision.compute_bytes),
        frozen=array(adapter is not None),
        adapter_rank=array(adapter.rank if adapter else 0.0),
        base_bits=array(adapter.base_bits if adapter else 16.0),
    )


def _sigma(accelerator: Accelerator, dtype: str, layout: Layout, terms: tuple[Term, ...]) -> float:
    total = sum(term.value for term in terms)
    launch = sum(term.value for term in terms if term.part == "launch" or term.name == "per step")
    unusual = accelerator.kind == "cpu" or layout.pipeline >= 16 or launch > 0.3 * total
    unmeasured = dtype not in accelerator.matmul_ceiling and accelerator.kind != "cpu"
    return math.hypot(BASE_SIGMA, UNMEASURED_SIGMA * unmeasured, UNUSUAL_SIGMA * unusual)
