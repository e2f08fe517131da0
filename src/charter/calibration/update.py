"""Seconds of optimizer steps and of forward passes, as reinforcement learning and whole runs ask for them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from charter.catalog.accelerators import Accelerator
from charter.physics.arrays import Array, array
from charter.physics.layouts import Layouts
from charter.physics.training.constants import TrainingConstants
from charter.physics.training.device_columns import DeviceColumns
from charter.physics.training.micro_batch import StepInputs
from charter.physics.training.model_columns import ModelColumns
from charter.physics.training.stack_profiles import StackProfile
from charter.physics.training.step_job import StackColumns, StepJob
from charter.physics.training.step_seconds import step_values
from charter.physics.training.step_work import step_work
from charter.spec.architecture import Architecture
from charter.spec.layout import Layout

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
    model, stack = ModelColumns.of(job.architecture), StackColumns.of(job.profile)
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
