"""Memory of very many layouts: rows that differ only in what memory does not depend on are computed once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from charter.physics.arrays import Array, array
from charter.physics.layouts import Layouts
from charter.physics.memory.constants import TrainingMemoryConstants
from charter.physics.memory.shape import MemoryShape
from charter.physics.memory.states import rank_columns
from charter.physics.memory.table import MemoryTable, training_memory_table
from charter.physics.memory.terms import Rank, state_columns
from charter.physics.training.factored import distinct, rows_of

MEMORY_AXES = (
    "data",
    "tensor",
    "pipeline",
    "context",
    "expert",
    "sequence_parallel",
    "zero",
    "replicas",
    "micro_batch",
    "accumulation",
    "recompute",
    "interleave",
    "offload_optimizer",
    "offload_parameters",
)


def factored_memory(
    shape: MemoryShape,
    layouts: Layouts,
    constants: TrainingMemoryConstants,
    read: Callable[[MemoryTable, int], dict[str, Array]],
    *,
    beside: Sequence[Array] = (),
) -> dict[str, Array]:
    """Columns that `read` takes from the memory table of the distinct layouts (and their number), for every layout.

    `beside` holds a whole number per row and trait of `shape` in which rows differ.
    """
    rows, which = distinct([*(getattr(layouts, name) for name in MEMORY_AXES), *beside])
    few = replace(rows_of(replace(shape, source=""), rows), source=shape.source)
    table = training_memory_table(few, rows_of(layouts, rows), constants)
    columns = read(table, len(rows))
    return {name: array(np.broadcast_to(column, (len(rows),))[which]) for name, column in columns.items()}


def factored_peaks(
    shape: MemoryShape, layouts: Layouts, constants: TrainingMemoryConstants, *, beside: Sequence[Array] = ()
) -> Array:
    """Bytes of the fullest rank at its fullest phase, of every layout.

    >>> from charter.catalog import models
    >>> from charter.physics.memory.job import MemoryJob
    >>> from charter.spec.layout import Layout
    >>> job = MemoryJob(architecture=models.get("Llama-3.1-8B").architecture, seq_len=4096)
    >>> many = Layouts.of([Layout(data=8), Layout(data=8)])
    >>> factored_peaks(MemoryShape.of(job), many, TrainingMemoryConstants()).shape
    (2,)
    """
    return factored_memory(shape, layouts, constants, lambda table, _: {"total": table.total}, beside=beside)["total"]


def least_state_bytes(shape: MemoryShape, layouts: Layouts, constants: TrainingMemoryConstants) -> Array:
    """Weights and optimizer state of the first pipeline stage: never more than the peak of the layout.

    Both exist in every phase of a step, on every stage; the peak is a maximum over phases and stages of sums that
    contain them. A bound, so what it rules out does not fit.
    """
    layers = np.where((shape.first_layers > 0) & (layouts.pipeline > 1), shape.first_layers, _even(shape, layouts))
    parameters = rank_columns(shape.model, layouts, stage="first", layers=array(layers))
    rank = Rank(shape=shape, layouts=layouts, constants=constants, parameters=parameters, stage="first")
    columns = state_columns(rank)
    return array(columns["base"].values + columns["weights"].values + columns["optimizer"].values)


def _even(shape: MemoryShape, layouts: Layouts) -> Array:
    return array(np.ceil(shape.model.layers / layouts.pipeline))
