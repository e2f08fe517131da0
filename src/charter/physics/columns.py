"""Numbers that broadcast, and layouts as columns of them: one formula serves one configuration and a table of millions.

A single configuration is a table of one row; no formula has a twin for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from charter.spec.layout import Layout, Recompute

# -------- Numbers that broadcast: one configuration, or a whole table of them, through the same formulas.

Array: TypeAlias = NDArray[np.float64]
"""A scalar is an array of no dimensions; formulas use only operations that broadcast."""


def array(value: object) -> Array:
    """Any number or sequence of numbers as floats.

    >>> array(3).shape, array([1, 2]).dtype
    ((), dtype('float64'))
    """
    return np.asarray(value, dtype=np.float64)


Columns = TypeVar("Columns", bound=Any)
"""A frozen dataclass of columns."""


def stacked(items: Sequence[Columns]) -> Columns:
    """Return one value that holds a column for each configuration, every field stacked along a first dimension."""
    names = [item.name for item in fields(items[0])]
    columns: Columns = type(items[0])(**{name: np.stack([getattr(item, name) for item in items]) for name in names})
    return columns


# -------- Many layouts at once: every field of a layout as an array, so that one formula serves a plan and a search.

RECOMPUTE_CODES = {mode: float(code) for code, mode in enumerate(Recompute)}
"""none 0, selective 1, full 2, ..., in the order of the enumeration."""


@dataclass(frozen=True, kw_only=True)
class Layouts:
    """Layouts as columns that broadcast against each other; flags are 0 or 1, recomputation is a code."""

    data: Array
    tensor: Array
    pipeline: Array
    context: Array
    expert: Array
    sequence_parallel: Array
    zero: Array
    micro_batch: Array
    accumulation: Array
    recompute: Array
    interleave: Array
    offload_optimizer: Array
    offload_parameters: Array
    replicas: Array = field(default_factory=lambda: array(1.0))
    """Whole copies of what ZeRO shards (HSDP); 1 where it shards over all data-parallel ranks."""
    offload_activations: Array = field(default_factory=lambda: array(0.0))

    @classmethod
    def of(cls, layouts: Layout | Sequence[Layout]) -> Layouts:
        """One layout (columns without dimensions), or a sequence of them.

        >>> Layouts.of([Layout(data=2), Layout(data=4, tensor=2)]).num_accelerators.tolist()
        [2.0, 8.0]
        """
        if isinstance(layouts, Layout):
            return cls(**{item.name: array(_number(getattr(layouts, item.name))) for item in fields(cls)})
        columns = {item.name: [_number(getattr(one, item.name)) for one in layouts] for item in fields(cls)}
        return cls(**{name: array(column) for name, column in columns.items()})

    @cached_property
    def shards(self) -> Array:
        """Ranks over which ZeRO shards: all of data and context parallelism, or those of one copy (HSDP)."""
        return self.data * self.context / self.replicas

    @property
    def num_accelerators(self) -> Array:
        """Accelerators that a layout uses."""
        return self.data * self.tensor * self.pipeline * self.context

    @property
    def copies(self) -> Array:
        """1 where each of several processes has all of a model, whose gradients torch's DDP adds up."""
        return array((self.zero == 0) & (self.data * self.context > 1) & (self.tensor == 1) & (self.pipeline == 1))

    def recomputes(self, mode: Recompute) -> Array:
        """1 where a layout recomputes in this way."""
        return array(self.recompute == RECOMPUTE_CODES[mode])


def _number(value: object) -> object:
    return RECOMPUTE_CODES[value] if isinstance(value, Recompute) else value
