"""Peak bytes per accelerator of a stage: under one layout as named terms, under many layouts at once."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from charter.catalog.accelerators import Accelerator
from charter.engines import capabilities
from charter.physics.columns import Array, Layouts, array
from charter.physics.constants import context_factor
from charter.physics.inference_memory import PASS_TOKENS, inference_memory
from charter.physics.memory import (
    MemoryTable,
    StageTable,
    factored_memory,
    job_memory,
    least_state_bytes,
    offloaded_input_bytes,
)
from charter.physics.memory_profiles import OF_ENGINES, AdapterUse, Head, MemoryJob
from charter.physics.memory_shape import (
    MemoryShape,
    frozen_parameters,
    looked_up_parameters,
    rank_parameters,
)
from charter.physics.placement_memory import FULL_STATE
from charter.physics.precision import FP32, FSDP_MIXED, TrainingPrecision
from charter.physics.step_time import Index, distinct
from charter.physics.terms import MemoryBreakdown, Term, bytes_term
from charter.plan.answer_memory import (
    ServerBeside,
    drawn_at_once,
    gathered_bytes,
    generation_terms,
    is_scored,
    reading_bytes,
    scoring_bytes,
    scoring_term,
    server_of,
    written_bytes,
)
from charter.plan.knowledge import FP8_COPIES_BYTES, EngineKnowledge, Knowledge, engine_knowledge
from charter.plan.phase import Role, RolePhase, Workload
from charter.spec.layout import Layout
from charter.spec.stage_base import FP8, NATIVE

# -------- Peak bytes per accelerator of a stage under a layout, as named terms.
#
# A stage that trains keeps every role in memory (PPO, DPO) or has only one; its peak is the larger of training and
# generating. A stage that only answers has all the models that it asks at hand, each in servers or a copy of its own;
# an evaluation takes one after another.

GRADIENTS = "gradients"
STATE_PARTS = ("parameters", GRADIENTS, "optimizer")
"""The phase in which weights, gradients and optimizer state all exist; between roles they are counted as staying."""
CONTEXT_TERMS = ("device context", "process", "communicators")
CPU = "cpu"


@dataclass(frozen=True, kw_only=True)
class Peak:
    """The fullest moment of a stage on one accelerator: terms, each with the role it belongs to."""

    moment: str
    parts: tuple[tuple[str, Term], ...] = ()

    @property
    def total_bytes(self) -> float:
        """Sum of all terms."""
        return sum(term.value for _, term in self.parts)

    @property
    def terms(self) -> tuple[Term, ...]:
        """The terms, named by role where there is one."""
        return tuple(replace(term, name=f"{role}: {term.name}") if role else term for role, term in self.parts)

    def by_part(self) -> dict[str, float]:
        """Sum per part, in the order in which parts appear."""
        return MemoryBreakdown(terms=self.terms).by_part()


def training_precision(dtype: str, accelerator: Accelerator) -> TrainingPrecision:
    """Return how the native engine stores numbers: fp32 weights and Adam, computation in `dtype`."""
    return FP32 if dtype == "fp32" or accelerator.kind == CPU else FSDP_MIXED


def training_peak(
    work: Workload,
    layout: Layout,
    *,
    accelerator: Accelerator,
    dtype: str,
    knowledge: Knowledge,
    engine: str = NATIVE,
    together: Mapping[str, int] | None = None,
) -> Peak:
    """Peak of a stage that trains, with all its roles in memory.

    `together` are the sequences that each generating phase decodes at once, where that was computed already.
    """
    moments = training_moments(
        work, layout, accelerator=accelerator, dtype=dtype, knowledge=knowledge, engine=engine, together=together
    )
    return max(moments, key=lambda peak: peak.total_bytes)


def training_moments(
    work: Workload,
    layout: Layout,
    *,
    accelerator: Accelerator,
    dtype: str,
    knowledge: Knowledge,
    engine: str,
    together: Mapping[str, int] | None,
) -> list[Peak]:
    """Every moment of a stage that may be its fullest."""
    breakdowns = {
        role.name: _trained(work, role, layout, accelerator, dtype, knowledge, engine) for role in work.trained
    }
    resident = _resident(work, breakdowns, layout, accelerator, dtype=dtype, engine=engine)
    moments = [
        Peak(
            moment=f"training {role} ({phase})",
            parts=(*resident, *((role, term) for term in terms if _comes_and_goes(term))),
        )
        for role, breakdown in breakdowns.items()
        for phase, terms in breakdown.phases.items()
    ]
    is_freed = bool(_frees_gradients(Layouts.of([layout]), engine)[0])
    between = [(role, term) for role, term in resident if not (is_freed and term.part == GRADIENTS)]
    for phase in work.phases:
        if phase.work == "generate" and not server_of(phase, engine):
            sequences = (
                together[phase.name]
                if together is not None
                else decoded_together(
                    work, phase, layout, accelerator=accelerator, dtype=dtype, knowledge=knowledge, engine=engine
                )
            )
            parts = generation_terms(work.role(phase.role), phase, layout, sequences)
            moments.append(Peak(moment=phase.name, parts=(*between, *parts)))
        elif is_scored(work, phase, engine):
            term = scoring_term(work.role(phase.role), phase, layout)
            moments.append(Peak(moment=phase.name, parts=(*between, (phase.role, term))))
    return moments


def decoded_together(
    work: Workload,
    phase: RolePhase,
    layout: Layout,
    *,
    accelerator: Accelerator,
    dtype: str,
    knowledge: Knowledge,
    engine: str = NATIVE,
) -> int:
    """Sequences of a rollout that one replica decodes at once: all of its share, or as many as memory holds."""
    constants = engine_knowledge(engine, knowledge)
    devices = one_device(accelerator, 1, constants.usable_bytes(accelerator, knowledge))
    return int(fit_of(work, Layouts.of([layout]), devices, dtype=dtype, known=constants).together[phase.name][0])


def _resident(
    work: Workload,
    breakdowns: Mapping[str, MemoryBreakdown],
    layout: Layout,
    accelerator: Accelerator,
    *,
    dtype: str,
    engine: str,
) -> list[tuple[str, Term]]:
    """State of the trained roles, weights of the frozen ones, the process, vLLM: there at every moment."""
    width = _frozen_width_bytes(dtype, accelerator)
    states = [
        (role, term)
        for role, breakdown in breakdowns.items()
        for term in breakdown.phases[FULL_STATE]
        if term.part in STATE_PARTS
    ]
    frozen = [(role.name, _frozen(role, layout, width, engine)) for role in work.roles if not role.trained]
    context = [("", term) for term in next(iter(breakdowns.values())).terms if term.name in CONTEXT_TERMS]
    servers = [
        (phase.role, server.memory(work.role(phase.role), phase, accelerator))
        for phase in work.phases
        if (server := server_of(phase, engine))
    ]
    return [*states, *frozen, *context, *servers]


def answering_peak(
    work: Workload,
    *,
    tensor: int,
    batches: dict[str, float],
    accelerator: Accelerator,
    knowledge: Knowledge,
    weights: str | None = None,
    together: bool = False,
) -> Peak:
    """Peak of a stage that only answers; `batches` are sequences per replica by phase; `weights` their format if it is
    not that of each model's servers.

    The fullest of its phases where its models are loaded one after another; the sum over the models, each in its
    fullest phase, where all are there `together`.
    """
    moments = [
        Peak(
            moment=phase.name,
            parts=_of_role(
                phase.role,
                inference_memory(
                    work.role(phase.role).architecture,
                    batch=batches[phase.name] if phase.work == "generate" else 0.0,
                    tokens_per_sequence=max(phase.longest_tokens, 1.0),
                    tensor=tensor,
                    weights=weights or work.role(phase.role).stored,
                    prefill_tokens=max(phase.longest_tokens, PASS_TOKENS),
                    head=_head(work.role(phase.role)),
                    accelerator=accelerator,
                    constants=knowledge.inference_memory,
                ),
            ),
        )
        for phase in work.phases
        if phase.role not in work.remote
    ]
    if not together:
        return max(moments, key=lambda peak: peak.total_bytes, default=NOTHING_LOADED)
    fullest: dict[str, Peak] = {}
    for moment in moments:
        model = work.role(moment.parts[0][0]).model
        fullest[model] = max(fullest.get(model, moment), moment, key=lambda peak: peak.total_bytes)
    if len(fullest) < 2:
        return next(iter(fullest.values()), NOTHING_LOADED)
    parts = tuple(part for peak in fullest.values() for part in peak.parts)
    return Peak(moment=" beside ".join(peak.moment for peak in fullest.values()), parts=parts)


NOTHING_LOADED = Peak(moment="nothing is loaded")


def _of_role(role: str, breakdown: MemoryBreakdown) -> tuple[tuple[str, Term], ...]:
    return tuple((role, term) for term in breakdown.terms)


def _head(role: Role) -> Head:
    return "scalar" if role.scalar_head else "lm"


def _trained(
    work: Workload,
    role: Role,
    layout: Layout,
    accelerator: Accelerator,
    dtype: str,
    knowledge: Knowledge,
    engine: str = NATIVE,
) -> MemoryBreakdown:
    constants = engine_knowledge(engine, knowledge)
    return job_memory(training_job(work, role, accelerator, dtype, engine), layout, constants.memory)


def training_job(work: Workload, role: Role, accelerator: Accelerator, dtype: str, engine: str = NATIVE) -> MemoryJob:
    """The training of one role as the memory model sees it."""
    does = capabilities(engine)
    phase = next(phase for phase in work.phases if phase.role == role.name and phase.work == "train")
    return MemoryJob(
        architecture=role.architecture,
        seq_len=max(1, round(phase.longest_tokens)),
        precision=does.precision if training_precision(dtype, accelerator) is not FP32 else FP32,
        profile=OF_ENGINES[does.memory],
        adapter=AdapterUse.of(role.adapter) if role.adapter else None,
        head=_head(role),
        logit_share=phase.logit_share,
        cross_entropy="each" if work.together and engine == NATIVE else None,
        fp8=dtype == FP8,
        fp8_copies=FP8_COPIES_BYTES if dtype == FP8 else 0.0,
        accelerator=accelerator,
    )


def _comes_and_goes(term: Term) -> bool:
    return term.part not in STATE_PARTS and term.name not in CONTEXT_TERMS


def _frozen_width_bytes(dtype: str, accelerator: Accelerator) -> float:
    """Bytes per weight of a frozen model: the width in which a stage computes."""
    return training_precision(dtype, accelerator).compute_bytes


def _frozen(role: Role, layout: Layout, width_bytes: float, engine: str) -> Term:
    rank = rank_parameters(role.architecture, layout, scalar_head=role.scalar_head)
    layouts = Layouts.of(layout)
    sharded_parameters = float(frozen_parameters(role.architecture, layouts, scalar_head=role.scalar_head))
    value = float(_frozen_columns(role, layouts, width_bytes, engine))
    wider = value - width_bytes * sharded_parameters
    rest = f" + {wider:,.0f} B" if wider else ""
    return bytes_term(
        name="frozen weights",
        part="parameters",
        value=value,
        formula=f"{width_bytes:g} B x {sharded_parameters:,.0f} of {rank.total:,.0f}{rest}",
        source="weights only, sharded like the trained ones under ZeRO-3; without ZeRO embedding and norms in fp32",
    )


def _frozen_columns(role: Role, layouts: Layouts, width_bytes: float, engine: str) -> Array:
    """Bytes of a frozen role; Charter's engine narrows all of its weights under ZeRO alone."""
    sharded = width_bytes * frozen_parameters(role.architecture, layouts, scalar_head=role.scalar_head)
    stays = (4.0 - width_bytes) * looked_up_parameters(role.architecture, layouts)
    return array(sharded + np.where(layouts.zero == 0, stays, 0.0) * (engine == NATIVE))


# -------- Peak bytes of many layouts of a stage that trains, in one pass: the totals of `training_peak`, without terms.


@dataclass(frozen=True, kw_only=True)
class LayoutDevices:
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


def one_device(accelerator: Accelerator, count: int, usable: float) -> LayoutDevices:
    """All rows on one accelerator."""
    return LayoutDevices(accelerators=(accelerator,), of_row=np.zeros(count, dtype=np.intp), usable=array([usable]))


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Memory of many layouts."""

    peak: Array
    together: dict[str, Array]
    """Generating phase -> sequences that one replica decodes at once."""


def fit_of(work: Workload, layouts: Layouts, devices: LayoutDevices, *, dtype: str, known: EngineKnowledge) -> Fit:
    """Bytes at the fullest moment of every layout, and how much is decoded at once."""
    tables = {role.name: _fullest_stage(work, role, layouts, devices, dtype, known) for role in work.trained}
    resident = next(iter(tables.values()))["context"] + sum(table["states"] for table in tables.values())
    width, engine = _frozen_width_bytes(dtype, devices.accelerators[0]), known.does.name
    resident = resident + sum(_frozen_columns(role, layouts, width, engine) for role in work.roles if not role.trained)
    gradients = sum((table[GRADIENTS] for table in tables.values()), start=array(0.0))
    freed = array(gradients * _frees_gradients(layouts, engine))
    moments = [table["transient"] for table in tables.values()]
    together: dict[str, Array] = {}
    for phase in work.phases:
        role = work.role(phase.role)
        if server := server_of(phase, known.does.name):
            each = [server.memory(role, phase, one).value for one in devices.accelerators]
            resident = resident + array(each)[devices.of_row]
            together[phase.name] = _served_together(server, role, phase, layouts, devices)
        elif phase.work == "generate":
            gathered = gathered_bytes(role, layouts)
            sequences = drawn_at_once(role, phase, layouts, array(devices.room - resident + freed - gathered))
            together[phase.name] = sequences
            widest = np.maximum(
                written_bytes(role, phase, layouts, sequences), reading_bytes(role, phase, layouts, sequences)
            )
            moments.append(array(gathered + widest - freed))
        elif is_scored(work, phase, engine):
            moments.append(array(scoring_bytes(role, phase, layouts) - freed))
    return Fit(peak=array(resident + np.maximum.reduce(moments)), together=together)


def _served_together(
    server: ServerBeside, role: Role, phase: RolePhase, layouts: Layouts, devices: LayoutDevices
) -> Array:
    rows, which = distinct([layouts.data, devices.of_row.astype(float)])
    at = [(int(layouts.data[row]), devices.accelerators[devices.of_row[row]]) for row in rows]
    return array([float(server.together(role, phase, data, one)) for data, one in at])[which]


def least_bytes(
    work: Workload, layouts: Layouts, devices: LayoutDevices, *, dtype: str, known: EngineKnowledge
) -> Array:
    """A bound: state that every moment of the stage holds, never more than its peak."""
    total = array(0.0)
    for role in work.trained:
        total = total + least_state_bytes(_shape(work, role, devices, dtype, known), layouts, known.memory)
    return array(np.broadcast_to(total, layouts.data.shape))


def waiting_bytes(
    work: Workload, layouts: Layouts, devices: LayoutDevices, *, dtype: str, known: EngineKnowledge
) -> Array:
    """Weights and optimizer state that offload moves to the host, per accelerator, and inputs of layers.

    Roles are trained one after the other, so that of inputs only the largest ones wait at once.
    """
    none = array(0.0)
    stays = replace(layouts, offload_optimizer=none, offload_parameters=none)
    total = least_bytes(work, stays, devices, dtype=dtype, known=known)
    states = array(total - least_bytes(work, layouts, devices, dtype=dtype, known=known))
    if not np.any(layouts.offload_activations > 0):
        return states
    shapes = [_shape(work, role, devices, dtype, known) for role in work.trained]
    inputs = [offloaded_input_bytes(shape, layouts, known.memory) for shape in shapes]
    return array(states + np.maximum.reduce(inputs))


def _frees_gradients(layouts: Layouts, engine: str) -> Array:
    """1 where no gradient is kept between updates: only DDP keeps the buckets that its gradients lie in."""
    return array((engine == NATIVE) & (layouts.copies == 0))


def _shape(work: Workload, role: Role, devices: LayoutDevices, dtype: str, engine: EngineKnowledge) -> MemoryShape:
    job = training_job(work, role, devices.accelerators[0], dtype, engine.does.name)
    return replace(MemoryShape.of(job), context_factor=devices.context_factors)


def _fullest_stage(
    work: Workload, role: Role, layouts: Layouts, devices: LayoutDevices, dtype: str, engine: EngineKnowledge
) -> dict[str, Array]:
    """States, context and the largest transient phase of the pipeline stage that needs most, per layout."""
    shape = _shape(work, role, devices, dtype, engine)
    factors = np.unique(shape.context_factor, return_inverse=True)[1].reshape(-1)
    return factored_memory(shape, layouts, engine.memory, _parts, beside=[factors.astype(float)])


def _parts(table: MemoryTable, count: int) -> dict[str, Array]:
    stages = [_split(stage, count) for stage in table.stages.values()]
    chosen = np.argmax([np.broadcast_to(stage.peak, (count,)) for stage in table.stages.values()], axis=0)
    return {
        name: array(np.take_along_axis(np.stack([stage[name] for stage in stages]), chosen[None, :], axis=0)[0])
        for name in ("states", GRADIENTS, "context", "transient")
    }


def _split(stage: StageTable, count: int) -> dict[str, Array]:
    def total(phase: str, wanted: str) -> Array:
        values = np.zeros(count)
        for column in stage.phases[phase].columns:
            kind = "states" if column.part in STATE_PARTS else "transient"
            if ("context" if column.name in CONTEXT_TERMS else kind) == wanted:
                values = values + column.values
        return array(values)

    transient = [total(phase, "transient") for phase in stage.phases]
    gradients = [column.values for column in stage.phases[FULL_STATE].columns if column.part == GRADIENTS]
    return {
        GRADIENTS: array(np.broadcast_to(sum(gradients, start=array(0.0)), (count,))),
        "states": total(FULL_STATE, "states"),
        "context": total(FULL_STATE, "context"),
        "transient": array(np.maximum.reduce(transient)),
    }
