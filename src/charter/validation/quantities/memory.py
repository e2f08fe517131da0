"""Peak memory as measurable quantities: of training, of answering, and whether a run fits."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from charter.physics.columns import Array, Layouts, array
from charter.physics.constants import InferenceMemoryConstants, TrainingMemoryConstants
from charter.physics.inference_memory import InferenceShape, inference_memory_table
from charter.physics.memory import training_memory_table
from charter.physics.memory_shape import MemoryShape
from charter.validation.quantities.inference_cases import InferenceCase, inference_case
from charter.validation.quantities.memory_cases import MemoryCase, training_case
from charter.validation.quantities.memory_verdict import OomVerdict, out_of_memory
from charter.validation.rows.measurement import Measurement

__all__ = ["INFERENCE_MEMORY", "TRAINING_MEMORY", "OomVerdict", "out_of_memory"]

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
            factor=array([case.devices / case.unit for case in cases]),
        )

    def predict(self, prepared: PreparedTraining, constants: TrainingMemoryConstants) -> Array:
        """Peaks in the unit of each row; a need beyond the device stays as it is."""
        return array(self._need(prepared, constants) * prepared.factor)

    def taught(self, prepared: PreparedTraining, constants: TrainingMemoryConstants) -> Array:
        """As `predict`, with what a fit compares to a run that ran: at most what its device holds."""
        need = self._need(prepared, constants)
        return array(np.minimum(need, MOST_FILLED * prepared.most_bytes) * prepared.factor)

    @staticmethod
    def _need(prepared: PreparedTraining, constants: TrainingMemoryConstants) -> Array:
        table = training_memory_table(prepared.shape, prepared.layouts, constants)
        return array(table.total + prepared.extra_bytes)


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
            shape=InferenceShape.stacked([InferenceShape.of(case.job) for case in cases]),
            preallocated=array([case.preallocated for case in cases]),
            factor=array([case.devices / case.unit for case in cases]),
        )

    def predict(self, prepared: PreparedInference, constants: InferenceMemoryConstants) -> Array:
        """Peaks in the unit of each row; what an engine takes in advance, where it does."""
        needed = inference_memory_table(prepared.shape, constants).total
        return array(np.where(prepared.preallocated > 0, prepared.preallocated, needed) * prepared.factor)


INFERENCE_MEMORY = InferenceMemory()
