"""Seconds of an optimizer step: of one configuration with its interval, and of very many, each distinct part once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from charter.catalog.accelerators import Accelerator
from charter.physics.columns import Array, Layouts, array
from charter.physics.constants import TrainingConstants
from charter.physics.devices import DeviceColumns
from charter.physics.flops import training_flops_per_token
from charter.physics.matrix_products import ProductColumns
from charter.physics.micro_batch import StepInputs, StepWork, step_work
from charter.physics.precision import FSDP_MIXED, TrainingPrecision
from charter.physics.stacks import PROFILES, StackColumns, StackProfile, StepJob
from charter.physics.step_seconds import layer_seconds, step_table, step_values
from charter.physics.terms import Breakdown, Interval, Term
from charter.spec.architecture import Architecture
from charter.spec.layout import Adapter, Layout

# -------- Seconds of one optimizer step of one configuration, term by term, with an interval.

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
    constants: TrainingConstants | None = None,
) -> StepTime:
    """Seconds of `layout.accumulation` micro-batches of `layout.micro_batch` sequences per rank, and the update.

    Of the native engine (Hugging Face layers under PyTorch FSDP), on TPUs of MaxText. `head_share` is the share of
    positions with logits (0 for a scalar head); without `constants` their priors. With m
    micro-batches, p stages and v chunks the step takes `m + (p - 1) / v` passes (Narayanan et al. 2021, section 2.2).

    >>> from charter.catalog import accelerators, models
    >>> from charter.spec.layout import Recompute, ZeroStage
    >>> llama = models.get("Llama-3.1-8B").architecture
    >>> layout = Layout(data=8, zero=ZeroStage.PARAMETERS, recompute=Recompute.FULL)
    >>> step = training_step(llama, layout, accelerators.get("H100"), seq_len=8192)
    >>> 0.25 < step.model_flops_utilisation < 0.5
    True
    """
    fitted_stack = with_precision(native_profile(accelerator), precision)
    job = step_job(layout, seq_len=seq_len, dtype=dtype, precision=precision, adapter=adapter, head_share=head_share)
    model, device, profile = (
        ProductColumns.of(architecture),
        DeviceColumns.of(accelerator),
        StackColumns.of(fitted_stack),
    )
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
    flops = training_flops_per_token(architecture, seq_len, head_share=head_share, frozen_base=adapter is not None)
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
) -> StepJob:
    """One training step as columns without dimensions, or many that differ in layout and length of sequences."""
    return StepJob(
        layouts=Layouts.of(layout) if isinstance(layout, Layout) else layout,
        seq=array(seq_len),
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


# -------- Step times of very many layouts: what a micro-batch costs is computed once per distinct tuple of its few
# axes.
#
# It is gathered by index; the pipeline, data parallelism and the totals are column arithmetic over all layouts.
#
# Of a space of a million layouts a few thousand tuples are distinct. The numbers are those of `step_seconds`, since
# both call the same functions.

MICRO_BATCH_AXES = ("tensor", "pipeline", "context", "expert", "sequence_parallel", "micro_batch", "recompute")
"""What the work of a micro-batch depends on, beside whether weights are gathered (ZeRO-3) and, under quantised
products, how often weights are cast (accumulation)."""
USED_LATER = ("stage_message", "rank_parameters", "rank_experts", "trained")
"""Fields of `StepWork` that the rest of the step needs."""
Index = NDArray[np.intp]
Value = TypeVar("Value")


def distinct(columns: Sequence[Array]) -> tuple[Index, Index]:
    """One row of every distinct tuple of non-negative whole numbers, and for every row which of these it equals.

    >>> rows, which = distinct([np.array([1.0, 2.0, 1.0]), np.array([0.0, 0.0, 0.0])])
    >>> rows.tolist(), which.tolist()
    ([0, 1], [0, 1, 0])
    """
    key: NDArray[np.int64] | None = None
    for column in np.broadcast_arrays(*columns):
        codes = column.astype(np.int64)
        key = codes if key is None else key * (int(codes.max(initial=0)) + 1) + codes
    assert key is not None
    _, rows, which = np.unique(key, return_index=True, return_inverse=True)
    return rows, which.reshape(-1)


def rows_of(value: Value, index: Index) -> Value:
    """Some rows of a dataclass of columns; fields without dimensions stay as they are."""
    picked: dict[str, Any] = {}
    for item in fields(value):  # type: ignore[arg-type]
        column = getattr(value, item.name)
        if is_dataclass(column):
            picked[item.name] = rows_of(column, index)
        elif isinstance(column, np.ndarray) and column.ndim:
            picked[item.name] = column[..., index]
    return replace(value, **picked)  # type: ignore[type-var]


def factored_values(given: StepInputs, *, beside: Sequence[Array] = ()) -> dict[str, Array]:
    """`step_values` of many layouts; `given.work` is not read.

    `beside` holds a whole number per row and trait, other than the layout, in which rows differ as far as a
    micro-batch is concerned: the device, the length of sequences, the links of tensor parallelism. Columns of
    `given` have one value per row, or no dimension.
    """
    at = given.job.layouts
    columns = [getattr(at, name) for name in MICRO_BATCH_AXES]
    columns += [array(at.zero >= 3), *beside]
    columns += [at.accumulation] if np.any(given.job.bits < 16) else []
    rows, which = distinct(columns)
    few = replace(
        given,
        device=rows_of(given.device, rows),
        job=rows_of(given.job, rows),
        stack=rows_of(given.stack, rows),
        links=None if given.links is None else rows_of(given.links, rows),
    )
    few = replace(few, work=step_work(few.model, few.device, few.job, few.stack))
    layers = layer_seconds(few)
    micro_batches = rows_of(_spread(layers, len(rows)), which)
    return step_values(replace(given, work=_kept(few.work, len(rows), which)), micro_batches)


def factored_seconds(given: StepInputs, *, beside: Sequence[Array] = ()) -> Array:
    """Seconds of one optimizer step of every layout."""
    return array(sum(factored_values(given, beside=beside).values(), start=array(0.0)))


def _spread(value: Value, count: int) -> Value:
    """Every field with one value per row."""
    spread = {item.name: np.broadcast_to(getattr(value, item.name), (count,)) for item in fields(value)}  # type: ignore[arg-type]
    return replace(value, **spread)  # type: ignore[type-var]


def _kept(work: StepWork, count: int, which: Index) -> StepWork:
    """Return the work that the rest of the step needs, for every row; all else is dropped."""
    nothing = array(0.0)
    later = {name: np.broadcast_to(getattr(work, name), (count,))[which] for name in USED_LATER}
    return StepWork(**{item.name: later.get(item.name, nothing) for item in fields(StepWork)})


# -------- Seconds of optimizer steps and of forward passes, as reinforcement learning and whole runs ask for them.

ONCE_PER_STEP = (
    "gradient reduction",
    "optimizer",
    "per step",
    "gradient accumulation",
    "stragglers and the unmodelled",
)


@dataclass(frozen=True, kw_only=True)
class UpdateJob:
    """Training of one role: the model, its accelerator and its stack."""

    architecture: Architecture
    accelerator: Accelerator
    profile: StackProfile
    seq_len: float
    bits: float = 16.0
    adapter_rank: float = 0.0
    base_bits: float = 16.0
    per_node: int | None = None


@dataclass(frozen=True, kw_only=True)
class UpdateSeconds:
    """Seconds of one optimizer step, and of a forward pass over the same sequences."""

    step: Array
    forward: Array

    def at(self, index: int) -> tuple[float, float]:
        """Step and forward pass of one layout."""
        return float(self.step[index]), float(self.forward[index])


def update_seconds(job: UpdateJob, layouts: Sequence[Layout]) -> UpdateSeconds:
    """One optimizer step under each layout, with the constants nobody has fitted to the row.

    A forward pass takes a third of what a step does for every micro-batch, without what full recomputation adds
    (Kaplan et al. 2020, section 2.1: the backward pass is two forward passes).
    """
    columns = Layouts.of(list(layouts))
    count = np.ones(len(layouts))
    device = DeviceColumns.of(job.accelerator).with_network(None, job.per_node, None)
    step = StepJob(
        layouts=columns,
        seq=array(job.seq_len) * count,
        bits=array(job.bits),
        frozen=array(1.0 if job.adapter_rank else 0.0),
        adapter_rank=array(job.adapter_rank),
        base_bits=array(job.base_bits),
    )
    model, stack = ProductColumns.of(job.architecture), StackColumns.of(job.profile)
    given = StepInputs(
        model=model,
        device=device,
        job=step,
        stack=stack,
        work=step_work(model, device, step, stack),
        constants=TrainingConstants(),
    )
    terms = step_values(given)
    total = sum(terms.values(), start=array(0.0)) * count
    repeated = sum(
        (value for name, value in terms.items() if name not in (*ONCE_PER_STEP, "recomputation")), start=array(0.0)
    )
    return UpdateSeconds(step=array(total), forward=array(repeated) * count / 3)
