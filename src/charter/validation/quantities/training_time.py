"""Training step time as a quantity to fit and to score: rows of pretrain, sft, lora and rm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from charter.physics.columns import Array, Layouts, array
from charter.physics.constants import TrainingConstants
from charter.physics.devices import DeviceColumns
from charter.physics.matrix_products import ModelColumns
from charter.physics.micro_batch import StepInputs, StepWork, step_work
from charter.physics.stacks import StackColumns, StepJob
from charter.physics.step_seconds import step_seconds
from charter.validation.quantities.training_cases import TrainingCase, training_case
from charter.validation.rows.measurement import Measurement
from charter.validation.rows.metrics import training_metric

KINDS = ("pretrain", "sft", "lora", "rm")
_JOB_COLUMNS = (
    "seq",
    "bits",
    "value_bytes",
    "block_scaled",
    "autocast",
    "frozen",
    "adapter_rank",
    "base_bits",
    "shard_group",
    "keeps_gathered",
    "module_recompute",
    "recompute_share",
    "head_share",
    "compression",
)


@dataclass(frozen=True, kw_only=True)
class PreparedSteps:
    """Cases as columns, with the work that no constant changes."""

    model: ModelColumns
    device: DeviceColumns
    job: StepJob
    stack: StackColumns
    work: StepWork
    tokens: Array
    """Tokens that a rate divides by the step: of the whole job, or of one accelerator."""
    is_rate: Array
    scale: Array
    """From seconds to the unit of a time."""

    def inputs(self, constants: TrainingConstants) -> StepInputs:
        """With constants: what the physics needs."""
        return StepInputs(
            model=self.model,
            device=self.device,
            job=self.job,
            stack=self.stack,
            work=self.work,
            constants=constants,
        )


@dataclass(frozen=True)
class TrainingTime:
    """Seconds of a training step, or tokens per second."""

    name: str = "training step time"
    constants: type = TrainingConstants

    def accepts(self, row: Measurement) -> bool:
        """Steps and token rates of the kinds that train."""
        return row.kind in KINDS and training_metric(row) is not None

    def case(self, row: Measurement) -> TrainingCase:
        """The configuration with its gaps filled."""
        return training_case(row)

    def stack(self, case: TrainingCase) -> str:
        """The family of profiles whose constants apply."""
        return case.profile.family

    def prepare(self, cases: Sequence[TrainingCase]) -> PreparedSteps:
        """Cases as columns."""
        model = ModelColumns.stack([ModelColumns.of(case.architecture, mtp=case.mtp) for case in cases])
        device = DeviceColumns.stack([_device(case) for case in cases])
        columns = {name: array([float(getattr(case, name)) for case in cases]) for name in _JOB_COLUMNS}
        job = StepJob(layouts=Layouts.of([case.layout for case in cases]), **columns)
        stack = StackColumns.stack([case.profile for case in cases])
        shares = [case.layout.num_accelerators if case.metric == "tokens_per_s_per_gpu" else 1 for case in cases]
        return PreparedSteps(
            model=model,
            device=device,
            job=job,
            stack=stack,
            work=step_work(model, device, job, stack),
            tokens=array([case.tokens for case in cases]) / array(shares),
            is_rate=array([case.metric != "step_time_s" for case in cases]),
            scale=array([case.scale for case in cases]),
        )

    def predict(self, prepared: PreparedSteps, constants: TrainingConstants) -> Array:
        """Seconds, or tokens per second."""
        seconds = step_seconds(prepared.inputs(constants))
        return array(np.where(prepared.is_rate > 0, prepared.tokens / seconds, prepared.scale * seconds))


def _device(case: TrainingCase) -> DeviceColumns:
    columns = DeviceColumns.of(case.accelerator)
    return columns.with_network(case.network_bytes_per_second, case.node, case.domain)


TRAINING_TIME = TrainingTime()
