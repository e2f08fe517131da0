"""Verdict on running out of memory: the need at the safe end of the interval against the device."""

from dataclasses import dataclass, replace

from charter.catalog.accelerators import Accelerator
from charter.physics.columns import Layouts
from charter.physics.constants import memory_sigma
from charter.physics.inference_memory import InferenceJob, InferenceShape, inference_memory_table
from charter.physics.memory import training_memory_table
from charter.physics.memory_profiles import MemoryJob
from charter.physics.memory_shape import MemoryShape
from charter.physics.terms import Interval
from charter.spec.layout import Layout
from charter.units import GB
from charter.validation.quantities.inference_cases import inference_case
from charter.validation.quantities.memory_cases import training_case
from charter.validation.rows.measurement import Measurement, Refusal


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


def out_of_memory(row: Measurement) -> OomVerdict:
    """The verdict on a row. Raises Refusal when its configuration or the size of its device is unknown.

    What a caching allocator could free on demand does not count. Where a row that is known to have run does not say
    what is recomputed, everything is taken to be: only what cannot fit is called out of memory.
    """
    if row.kind == "inference":
        inference = inference_case(row)
        need, stack, device = inference_need(inference.job), inference.stack, inference.job.accelerator
    else:
        case = training_case(leanest(row))
        need, stack, device = training_need(case.job, case.layout), case.job.profile.name, case.job.accelerator
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

    A row that asks whether a job fits (metric `oom`) keeps the habits of its stack, which errs on the safe side.
    """
    if row.metric == "oom":
        return row
    lean = row if row.recompute else replace(row, recompute="full")
    return replace(lean, offload="optimizer+parameters") if row.kind == "ppo" and not row.offload else lean


def training_need(job: MemoryJob, layout: Layout) -> float:
    """Bytes a training job needs on its fullest device."""
    profile = replace(job.profile, flat_step=False)
    shape = MemoryShape.of(replace(job, profile=profile, reserved=True, context=True))
    return float(training_memory_table(shape, Layouts.of(layout)).total)


def inference_need(job: InferenceJob) -> float:
    """Bytes an answering job needs on one device."""
    return float(inference_memory_table(InferenceShape.of(replace(job, context=True))).total)


def _capacity(row: Measurement, accelerator: Accelerator | None) -> float:
    if accelerator is not None:
        return accelerator.memory_bytes
    if row.mem_gb:
        return row.mem_gb * GB
    raise Refusal(f"the memory of {row.gpu or 'the device'} is not known")
