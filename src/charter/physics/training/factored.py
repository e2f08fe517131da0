"""Step times of very many layouts: what a micro-batch costs is computed once per distinct tuple of its few axes.

It is gathered by index; the pipeline, data parallelism and the totals are column arithmetic over all layouts.

Of a space of a million layouts a few thousand tuples are distinct. The numbers are those of `step_seconds`, since both
call the same functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from charter.physics.arrays import Array, array
from charter.physics.training.micro_batch import StepInputs
from charter.physics.training.step_seconds import layer_seconds, step_values
from charter.physics.training.step_work import StepWork, step_work

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
