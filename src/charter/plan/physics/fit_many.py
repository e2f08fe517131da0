"""Peak bytes of many layouts of a stage that trains, in one pass: the totals of `fit.training_peak`, without terms."""

from dataclasses import dataclass, field, replace

import numpy as np

from charter.catalog.accelerators import Accelerator
from charter.physics.columns import Array, Layouts, array
from charter.physics.constants import context_factor
from charter.physics.flops import kv_cache_bytes
from charter.physics.memory import MemoryTable, StageTable, factored_memory, least_state_bytes
from charter.physics.memory_shape import MemoryShape, ModelColumns, rank_columns, stage_layers
from charter.physics.step_time import Index, distinct
from charter.plan.physics import fit
from charter.plan.physics.engine_knowledge import EngineKnowledge
from charter.plan.work.phase import Phase, Role, Workload


@dataclass(frozen=True, kw_only=True)
class Devices:
    """The accelerators of many layouts: which one each row is on, and what it may fill."""

    accelerators: tuple[Accelerator, ...]
    """All processors, or none of them."""
    of_row: Index
    usable: Array
    """Bytes per accelerator of the list."""
    host: Array = field(default_factory=lambda: array([np.inf]))
    """Bytes of system memory that may wait per accelerator of the list, or one figure for all."""

    @property
    def context_factors(self) -> Array:
        """Size of the device context, by row."""
        return array([context_factor(one.name) for one in self.accelerators])[self.of_row]

    @property
    def host_room(self) -> Array:
        """Bytes that may wait in host memory, by row."""
        return np.broadcast_to(self.host, self.usable.shape)[self.of_row]

    @property
    def room(self) -> Array:
        """Bytes that an estimate may reach, by row."""
        return self.usable[self.of_row]


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Memory of many layouts."""

    peak: Array
    together: dict[str, Array]
    """Generating phase -> sequences that one replica decodes at once."""


def fit_of(work: Workload, layouts: Layouts, devices: Devices, *, dtype: str, known: EngineKnowledge) -> Fit:
    """Bytes at the fullest moment of every layout, and how much is decoded at once."""
    tables = {role.name: _fullest_stage(work, role, layouts, devices, dtype, known) for role in work.trained}
    resident = next(iter(tables.values()))["context"] + sum(table["states"] for table in tables.values())
    width = 4.0 if devices.accelerators[0].kind == fit.CPU else 2.0
    resident = resident + sum(width * held(role, layouts) for role in work.roles if not role.trained)
    moments = [table["transient"] for table in tables.values()]
    together: dict[str, Array] = {}
    for phase in work.phases:
        role = work.role(phase.role)
        if server := fit.server_of(phase, known.does.name):
            each = [server.memory(role, phase, one).value for one in devices.accelerators]
            resident = resident + array(each)[devices.of_row]
            together[phase.name] = _served_together(server, role, phase, layouts, devices)
        elif phase.work == "generate":
            gathered, cache = _gathered_bytes(role, layouts), _cache_bytes(role, phase, layouts)
            free = np.floor((devices.room - resident - gathered) / cache)
            sequences = np.maximum(1.0, np.minimum(np.ceil(phase.batch / layouts.data), free))
            together[phase.name] = array(sequences)
            moments.append(array(gathered + cache * sequences))
    return Fit(peak=array(resident + np.maximum.reduce(moments)), together=together)


def _served_together(server: fit.ServerBeside, role: Role, phase: Phase, layouts: Layouts, devices: Devices) -> Array:
    rows, which = distinct([layouts.data, devices.of_row.astype(float)])
    at = [(int(layouts.data[row]), devices.accelerators[devices.of_row[row]]) for row in rows]
    return array([float(server.together(role, phase, data, one)) for data, one in at])[which]


def least_bytes(work: Workload, layouts: Layouts, devices: Devices, *, dtype: str, known: EngineKnowledge) -> Array:
    """A bound: state that every moment of the stage holds, never more than its peak."""
    total = array(0.0)
    for role in work.trained:
        total = total + least_state_bytes(_shape(work, role, devices, dtype, known), layouts, known.memory)
    return array(np.broadcast_to(total, layouts.data.shape))


def waiting_bytes(work: Workload, layouts: Layouts, devices: Devices, *, dtype: str, known: EngineKnowledge) -> Array:
    """Weights and optimizer state that offload moves to the host, per accelerator."""
    none = array(0.0)
    stays = replace(layouts, offload_optimizer=none, offload_parameters=none)
    total = least_bytes(work, stays, devices, dtype=dtype, known=known)
    return array(total - least_bytes(work, layouts, devices, dtype=dtype, known=known))


def held(role: Role, layouts: Layouts) -> Array:
    """Parameters of a frozen role on one rank of the first stage; see `RankParameters.held`."""
    model = ModelColumns.of(role.architecture, scalar_head=role.scalar_head)
    layers = stage_layers(model.layers, layouts.pipeline, "first")
    rank = rank_columns(model, layouts, stage="first", layers=layers)
    group = np.where(layouts.zero >= 3, layouts.shards, 1.0)
    return array(rank.dense / group + rank.experts / np.maximum(1.0, np.floor(group / layouts.expert)))


def _gathered_bytes(role: Role, layouts: Layouts) -> Array:
    unsplit = replace(layouts, pipeline=array(1.0))
    model = ModelColumns.of(role.architecture, scalar_head=role.scalar_head)
    return 2.0 * rank_columns(model, unsplit, stage="first", layers=model.layers).total


def _cache_bytes(role: Role, phase: Phase, layouts: Layouts) -> Array:
    rows, which = distinct([layouts.tensor])
    each = [kv_cache_bytes(role.architecture, phase.longest_tokens, tensor=int(layouts.tensor[row])) for row in rows]
    return array(each)[which]


def _shape(work: Workload, role: Role, devices: Devices, dtype: str, engine: EngineKnowledge) -> MemoryShape:
    job = fit.training_job(work, role, devices.accelerators[0], dtype, engine.does.name)
    return replace(MemoryShape.of(job), context_factor=devices.context_factors)


def _fullest_stage(
    work: Workload, role: Role, layouts: Layouts, devices: Devices, dtype: str, engine: EngineKnowledge
) -> dict[str, Array]:
    """States, context and the largest transient phase of the pipeline stage that needs most, per layout."""
    shape = _shape(work, role, devices, dtype, engine)
    factors = np.unique(shape.context_factor, return_inverse=True)[1].reshape(-1)
    return factored_memory(shape, layouts, engine.memory, _parts, beside=[factors.astype(float)])


def _parts(table: MemoryTable, count: int) -> dict[str, Array]:
    stages = [_split(stage, count) for stage in table.stages.values()]
    peaks = np.stack([np.broadcast_to(stage.peak, (count,)) for stage in table.stages.values()])
    chosen = np.argmax(peaks, axis=0)
    return {
        name: array(np.take_along_axis(np.stack([stage[name] for stage in stages]), chosen[None, :], axis=0)[0])
        for name in ("states", "context", "transient")
    }


def _split(stage: StageTable, count: int) -> dict[str, Array]:
    def total(phase: str, wanted: str) -> Array:
        values = np.zeros(count)
        for column in stage.phases[phase].columns:
            kind = "states" if column.part in fit.STATE_PARTS else "transient"
            if ("context" if column.name in fit.CONTEXT_TERMS else kind) == wanted:
                values = values + column.values
        return array(values)

    transient = [total(phase, "transient") for phase in stage.phases]
    return {
        "states": total(fit.FULL_STATE, "states"),
        "context": total(fit.FULL_STATE, "context"),
        "transient": array(np.maximum.reduce(transient)),
    }
