"""Peak bytes of many layouts of a stage that trains, in one pass: the totals of `fit.training_peak`, without terms."""

from collections.abc import Sequence

import numpy as np

from charter.catalog.accelerators import Accelerator
from charter.estimate.arrays import Array, array
from charter.estimate.layouts import Layouts
from charter.estimate.memory.shape import MemoryShape
from charter.estimate.memory.table import MemoryTable, StageTable, training_memory_table
from charter.plan import fit
from charter.plan.knowledge import Knowledge
from charter.plan.phase import Role, Workload
from charter.spec.layout import Layout


def training_totals(
    work: Workload, layouts: Sequence[Layout], *, accelerator: Accelerator, dtype: str, knowledge: Knowledge
) -> Array:
    """Bytes at the fullest moment of every layout; equal to `training_peak(...).total_bytes` of each."""
    columns = Layouts.of(layouts)
    tables = {
        role.name: _fullest_stage(work, role, columns, accelerator, dtype, knowledge, len(layouts))
        for role in work.trained
    }
    resident = next(iter(tables.values()))["context"] + sum(table["states"] for table in tables.values())
    width = 4.0 if accelerator.kind == fit.CPU else 2.0
    frozen = [role for role in work.roles if not role.trained]
    resident = resident + array([sum(fit.frozen_bytes(role, one, width) for role in frozen) for one in layouts])
    moments = [table["transient"] for table in tables.values()]
    room = knowledge.usable_bytes(accelerator) - resident
    moments += [
        array([fit.generation_bytes(work, phase, one, float(free)) for one, free in zip(layouts, room, strict=True)])
        for phase in work.phases
        if phase.work == "generate"
    ]
    return array(resident + np.maximum.reduce(moments))


def _fullest_stage(
    work: Workload,
    role: Role,
    layouts: Layouts,
    accelerator: Accelerator,
    dtype: str,
    knowledge: Knowledge,
    count: int,
) -> dict[str, Array]:
    """States, context and the largest transient phase of the pipeline stage that needs most, per layout."""
    shape = MemoryShape.of(fit.training_job(work, role, accelerator, dtype))
    table: MemoryTable = training_memory_table(shape, layouts, knowledge.training_memory)
    stages = [_split(stage, count) for stage in table.stages.values()]
    peaks = np.stack([np.broadcast_to(stage.peak, (count,)) for stage in table.stages.values()])
    chosen = np.argmax(peaks, axis=0)
    return {
        name: array(np.take_along_axis(np.stack([stage[name] for stage in stages]), chosen[None, :], axis=0)[0])
        for name in ("states", "context", "transient")
    }


def _split(stage: StageTable, count: int) -> dict[str, Array]:
    def total(phase: str, keep: Sequence[bool]) -> Array:
        columns = stage.phases[phase].columns
        found = sum((column.values for column, kept in zip(columns, keep, strict=True) if kept), start=np.zeros(count))
        return array(np.broadcast_to(found, (count,)))

    def marks(phase: str, wanted: str) -> list[bool]:
        columns = stage.phases[phase].columns
        states = [column.part in fit.STATE_PARTS for column in columns]
        context = [column.name in fit.CONTEXT_TERMS for column in columns]
        if wanted == "states":
            return states
        if wanted == "context":
            return context
        return [not (one or other) for one, other in zip(states, context, strict=True)]

    transient = [total(phase, marks(phase, "transient")) for phase in stage.phases]
    return {
        "states": total(fit.FULL_STATE, marks(fit.FULL_STATE, "states")),
        "context": total(fit.FULL_STATE, marks(fit.FULL_STATE, "context")),
        "transient": array(np.maximum.reduce(transient)),
    }
