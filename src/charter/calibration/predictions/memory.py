"""Peak memory as measurable quantities: of training, of answering, and whether a run fits."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from charter.calibration.predictions.inference_cases import InferenceCase, inference_case
from charter.calibration.predictions.memory_cases import MemoryCase, training_case
from charter.calibration.predictions.memory_verdict import OomVerdict, out_of_memory
from charter.calibration.rows.measurement import Measurement
from charter.estimate.arrays import Array, array
from charter.estimate.layouts import Layouts
from charter.estimate.memory.constants import InferenceMemoryConstants, TrainingMemoryConstants
from charter.estimate.memory.inference import InferenceShape, inference_memory_table
from charter.estimate.memory.shape import MemoryShape
from charter.estimate.memory.table import training_memory_table

__all__ = ["INFERENCE_MEMORY", "TRAINING_MEMORY", "OomVerdict", "out_of_memory"]

MOST_FILLED = 0.95
"""Share of a device that a run fills whose needs, as far as its row tells them, go beyond it: what it does not print
(recomputation, offloading, a smaller micro-batch) made it fit. Judgement."""
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
        """Peaks in the unit of each row; a run that printed its peak did not need more than its device has."""
        table = training_memory_table(prepared.shape, prepared.layouts, constants)
        needed = table.total + prepared.extra_bytes
        return array(np.minimum(needed, MOST_FILLED * prepared.most_bytes) * prepared.factor)


TRAINING_MEMORY = TrainingMemory()


@dataclass(frozen=True, kw_only=True)
class PreparedInference:
    """Answering cases as arrays."""

    shape: InferenceShape
    preallocated: Array
    most_bytes: Array
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
            most_bytes=array([case.most_bytes for case in cases]),
            factor=array([case.devices / case.unit for case in cases]),
        )

    def predict(self, prepared: PreparedInference, constants: InferenceMemoryConstants) -> Array:
        """Peaks in the unit of each row; what an engine takes in advance, where it does."""
        needed = np.minimum(inference_memory_table(prepared.shape, constants).total, MOST_FILLED * prepared.most_bytes)
        return array(np.where(prepared.preallocated > 0, prepared.preallocated, needed) * prepared.factor)


INFERENCE_MEMORY = InferenceMemory()
