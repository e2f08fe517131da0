"""Memory of a training step by phase and pipeline stage, for arrays of layouts: the peak is the largest of all.

A step loads weights once, then repeats forward, loss, backward and optimizer step, and sometimes saves. Every phase is
a sum of its own terms; a term that is alive in several phases is the same column in each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from charter.physics.arrays import Array, array
from charter.physics.layouts import Layouts
from charter.physics.memory.buffers import buffer_columns, cached_column, constant_columns, slack_column
from charter.physics.memory.constants import TrainingMemoryConstants
from charter.physics.memory.shape import MemoryShape
from charter.physics.memory.states import Stage, rank_columns, stage_layers
from charter.physics.memory.terms import ExplainedColumn, Rank, activation_columns, logit_columns, state_columns
from charter.physics.terms import Term, TermTable

RESIDENT = ("base", "weights", "optimizer")
BUFFERS = ("gathered", "copies", "fp8", "dequantised", "messages", "gathered_sequence", "workspace")
PHASES: dict[str, tuple[str, ...]] = {
    "load": (*RESIDENT, "dequantised", "workspace"),
    "forward": (*RESIDENT, "early_gradients", "kept", "inputs", "encoder", "forward_live", *BUFFERS),
    "loss": (*RESIDENT, "early_gradients", "kept", "inputs", "encoder", "logits", *BUFFERS),
    "backward": (
        *RESIDENT,
        "early_gradients",
        "kept",
        "inputs",
        "encoder",
        "live",
        "backward",
        "unreduced",
        "buckets",
        *BUFFERS,
    ),
    "end of backward": (*RESIDENT, "gradients", "live", "backward", "unreduced", "buckets", *BUFFERS),
    "optimizer step": (*RESIDENT, "gradients", "step", "buckets", "workspace"),
    "checkpoint": (*RESIDENT, "early_gradients", "gathered", "workspace"),
}
"""Which terms are alive in a phase. Gradients exist before the end of the backward pass where they are accumulated over
micro-batches or kept in a buffer of their own."""
TRANSIENT = ("activations", "logits", "buffers")


@dataclass(frozen=True, kw_only=True)
class StageTable:
    """One pipeline stage: a table of terms per phase."""

    phases: Mapping[str, TermTable]

    @cached_property
    def totals(self) -> Mapping[str, Array]:
        """Bytes per phase."""
        return {phase: table.total for phase, table in self.phases.items()}

    @property
    def peak(self) -> Array:
        """Bytes at the fullest phase."""
        totals = iter(self.totals.values())
        peak = next(totals)
        for total in totals:
            peak = np.maximum(peak, total)
        return peak


class StagePhases(Mapping[str, tuple[Term, ...]]):
    """The phases of one configuration of a stage, their terms written out when they are asked for."""

    def __init__(self, table: MemoryTable, stage: Stage) -> None:
        self._table, self._stage = table, stage

    def __getitem__(self, phase: str) -> tuple[Term, ...]:
        return self._table.terms(self._stage, phase)

    def __iter__(self) -> Iterator[str]:
        return iter(self._table.stages[self._stage].phases)

    def __len__(self) -> int:
        return len(self._table.stages[self._stage].phases)


@dataclass(frozen=True, kw_only=True)
class MemoryTable:
    """Memory of many layouts: per stage, per phase, per term."""

    stages: Mapping[Stage, StageTable]

    @cached_property
    def total(self) -> Array:
        """Bytes of the fullest rank at its fullest phase."""
        peaks = [table.peak for table in self.stages.values()]
        return array(np.maximum.reduce(np.broadcast_arrays(*peaks)))

    def fullest(self, index: int | tuple[int, ...] = ()) -> tuple[Stage, str]:
        """The stage and the phase of the peak of one configuration."""
        shape = self.total.shape
        if not shape:
            sizes = {
                (at, phase): float(size) for at, table in self.stages.items() for phase, size in table.totals.items()
            }
            return max(sizes, key=lambda pair: sizes[pair])

        def size(stage: Stage, phase: str) -> float:
            return float(np.broadcast_to(self.stages[stage].totals[phase], shape)[index])

        pairs = [(stage, phase) for stage, table in self.stages.items() for phase in table.phases]
        return max(pairs, key=lambda pair: size(*pair))

    def terms(self, stage: Stage, phase: str, index: int | tuple[int, ...] = ()) -> tuple[Term, ...]:
        """The terms of one configuration in a phase that are not zero."""
        table = self.stages[stage].phases[phase]
        if index == () and not self.total.shape:
            return tuple(item.at() for item in table.columns if item.values)
        return table.at(index)


def training_memory_table(
    shape: MemoryShape, layouts: Layouts, constants: TrainingMemoryConstants | None = None
) -> MemoryTable:
    """Memory of every layout; `shape` is of one job, or one per layout.

    Without uneven splits a middle stage holds no more than the first (as many layers, fewer micro-batches, no
    embedding), so only the ends are computed.
    """
    constants = constants or TrainingMemoryConstants()
    stages: list[Stage] = ["first"]
    if np.any(layouts.pipeline > 1):
        stages += ["middle", "last"] if np.any(shape.first_layers > 0) else ["last"]
    return MemoryTable(stages={stage: _stage_table(shape, layouts, constants, stage) for stage in stages})


def _stage_table(shape: MemoryShape, layouts: Layouts, constants: TrainingMemoryConstants, stage: Stage) -> StageTable:
    layers = _layers(shape, layouts, stage)
    parameters = rank_columns(shape.model, layouts, stage=stage, layers=layers)
    rank = Rank(shape=shape, layouts=layouts, constants=constants, parameters=parameters, stage=stage)
    columns = {
        **state_columns(rank),
        **activation_columns(rank),
        **logit_columns(rank),
        **buffer_columns(rank),
    }
    early = np.where((shape.persistent_gradients > 0) | (layouts.accumulation > 1), 1.0, 0.0)
    gradients = columns["gradients"]
    columns["early_gradients"] = replace(gradients, values=array(gradients.values * early))
    columns["forward_live"] = _forward_live(columns["live"])
    cached = {stepping: cached_column(rank, columns["step"].values, stepping=stepping) for stepping in (False, True)}
    always = tuple(constant_columns(rank).values())
    return StageTable(phases={phase: _phase(rank, columns, phase, cached, always) for phase in PHASES})


def _forward_live(live: ExplainedColumn) -> ExplainedColumn:
    """While a layer runs forward about half of what it would keep is alive at once."""
    return replace(live, values=array(0.5 * live.values), formula="half of " + live.formula)


def _phase(
    rank: Rank,
    columns: Mapping[str, ExplainedColumn],
    phase: str,
    cached: Mapping[bool, ExplainedColumn],
    always: tuple[ExplainedColumn, ...],
) -> TermTable:
    alive = [columns[key] for key in PHASES[phase]]
    transient = array(sum((item.values for item in alive if item.part in TRANSIENT), start=np.float64(0.0)))
    reserved = () if phase in ("load", "checkpoint") else (cached[phase == "optimizer step"],)
    return TermTable(columns=(*alive, slack_column(rank, transient), *reserved, *always))


def _layers(shape: MemoryShape, layouts: Layouts, stage: Stage) -> Array:
    even = stage_layers(shape.model.layers, layouts.pipeline, stage)
    between = (shape.model.layers - shape.first_layers - shape.last_layers) / np.maximum(layouts.pipeline - 2, 1)
    given = {"first": shape.first_layers, "middle": np.ceil(between), "last": shape.last_layers}[stage]
    return array(np.where((shape.first_layers > 0) & (layouts.pipeline > 1), given, even))
