"""Seconds of a stage on accelerators: under one layout as named terms, under many layouts at once."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil

import numpy as np

from charter.catalog.accelerators import Accelerator
from charter.engines.common.capabilities import NVIDIA, Capabilities
from charter.engines.native.capabilities import FUSED_TYPES
from charter.physics import serving_devices
from charter.physics.columns import Array, Layouts, array
from charter.physics.devices import DeviceColumns, group
from charter.physics.generation import forward_pass_seconds, generation
from charter.physics.matrix_products import ProductColumns
from charter.physics.micro_batch import NOTHING_DONE, StepInputs, least_step_seconds, step_work
from charter.physics.shapes import count_parameters
from charter.physics.stacks import StackColumns
from charter.physics.step_seconds import step_table
from charter.physics.step_time import (
    Index,
    distinct,
    factored_seconds,
    rows_of,
    step_job,
    with_precision,
)
from charter.physics.terms import Term
from charter.plan.answer_memory import ServerBeside, server_of
from charter.plan.knowledge import EngineKnowledge, Knowledge
from charter.plan.phase import Role, RolePhase, Workload, tools_term
from charter.plan.stage_memory import Fit, LayoutDevices
from charter.spec.layout import WHOLE_BITS, Layout, ZeroStage
from charter.spec.stage_base import NATIVE

# -------- Seconds of a stage on accelerators, as named terms: every phase over all its steps.
#
# The phases of a stage follow each other (a synchronous loop); nothing overlaps between them.

FILE_BYTES_PER_SECOND = 5e9
"""One thread that writes to, or reads from, files in memory; judgement."""
_generation = lru_cache(maxsize=4096)(generation)
_forward_pass_seconds = lru_cache(maxsize=4096)(forward_pass_seconds)
"""Places differ in price and market more often than in hardware: a search asks for the same seconds again and again."""


def other_phase_seconds(
    role: Role,
    phase: RolePhase,
    layout: Layout,
    together: int,
    accelerator: Accelerator,
    knowledge: Knowledge,
    engine: str = NATIVE,
) -> float:
    """Seconds of a phase that generates (`together` sequences of a replica at once) or scores."""
    return sum(term.value for term in _other(role, phase, layout, together, accelerator, knowledge, engine))


def _other(
    role: Role,
    phase: RolePhase,
    layout: Layout,
    together: int,
    accelerator: Accelerator,
    knowledge: Knowledge,
    engine: str,
) -> list[Term]:
    server = server_of(phase, engine)
    if server or engine != NATIVE:
        phase = replace(phase, read_share=1.0)  # what a server's own cache saves is not counted
    if server:
        terms = _served_rollouts(server, role, phase, layout, together, accelerator, knowledge)
    elif phase.work == "generate":
        terms = _rollouts(role, phase, layout, together, accelerator, knowledge)
    else:
        # Ranks that share rows read as much of them together as others do of rows of their own.
        turns, native = phase.steps / (layout.data * layout.context), serving_devices.NATIVE
        return _scoring(role, phase, turns, layout.tensor, accelerator, knowledge, native)
    return [*terms, tools_term(phase, layout.data)] if phase.call_seconds else terms


def answering_terms(
    work: Workload,
    *,
    tensor: int,
    replicas: int,
    batches: dict[str, float],
    accelerator: Accelerator,
    knowledge: Knowledge,
    alone: Container[str] = (),
) -> tuple[Term, ...]:
    """Terms of a stage that only answers: replicas take whole batches in turn, one model after another.

    Roles that are `alone` compute in the stage's own process, on one accelerator; vLLM serves the others.
    """
    terms: list[Term] = []
    for each in work.phases:
        if each.role in work.remote:
            continue
        is_own, role = each.role in alone, work.role(each.role)
        phase, degree = (each, 1) if is_own else (as_served(each), tensor)
        turns = ceil(phase.steps / (1 if is_own else replicas))
        if phase.work == "generate":
            together = max(1, int(batches[phase.name]))
            engine = native_decoder(role, accelerator, Layout()) if is_own else serving_devices.SERVER
            terms += _decoding(role, phase, turns, phase.batch, together, degree, 1, accelerator, knowledge, engine)
            if phase.call_seconds:
                terms.append(tools_term(phase))
        else:
            engine = serving_devices.NATIVE if is_own else serving_devices.SERVER
            terms += _scoring(role, phase, turns, degree, accelerator, knowledge, engine)
    return tuple(terms)


def as_served(phase: RolePhase) -> RolePhase:
    """A phase as servers answer it: nothing is padded, and an answer that ends makes room for the next at once."""
    read, written = phase.request_tokens
    written = written if phase.work == "generate" else phase.new_tokens
    return replace(phase, prompt_tokens=read, new_tokens=written, ragged=False)


def _rollouts(
    role: Role, phase: RolePhase, layout: Layout, together: int, accelerator: Accelerator, knowledge: Knowledge
) -> list[Term]:
    """The batch is split over the replicas; sharded weights are gathered once per rollout."""
    replicas, engine = layout.data, native_decoder(role, accelerator, layout)
    terms = _decoding(
        role, phase, phase.steps, phase.batch, together, layout.tensor, replicas, accelerator, knowledge, engine
    )
    if layout.zero >= ZeroStage.PARAMETERS:
        terms += over_steps(phase, phase.steps, (_gather(role, layout, accelerator, knowledge),))
    return terms


def _served_rollouts(
    server: ServerBeside,
    role: Role,
    phase: RolePhase,
    layout: Layout,
    together: int,
    accelerator: Accelerator,
    knowledge: Knowledge,
) -> list[Term]:
    """The batch is split over the servers, which take the policy's weights before every rollout.

    An answer that ends makes room for the next at once: a place writes answers of mean length, at last the longest.
    """
    replicas = server.replicas(layout.data)
    engine = serving_devices.SERVER
    turns = max(1.0, ceil(phase.batch / replicas) / together)
    mean = phase.mean_new_tokens or phase.new_tokens
    phase = replace(phase, new_tokens=mean + (phase.new_tokens - mean) / turns)
    terms = _decoding(
        role, phase, phase.steps, phase.batch, together, 1, replicas, accelerator, knowledge, engine=engine
    )
    moved = [_gather(role, layout, accelerator, knowledge)] if layout.zero >= ZeroStage.PARAMETERS else []
    if not server.everywhere:
        moved.append(_through_files(role, accelerator))
    return [*terms, *over_steps(phase, phase.steps, tuple(moved))]


def _through_files(role: Role, accelerator: Accelerator) -> Term:
    """16-bit weights of the policy to vLLM: off the device, into files in memory, out of them, onto the device."""
    size, link = gathered_bytes(role, Layout()), float(DeviceColumns.of(accelerator).host_link)
    return Term(
        name="weights to vLLM",
        part="transfer",
        value=2 * size / link + 2 * size / FILE_BYTES_PER_SECOND,
        unit="seconds",
        formula=f"2 x {size / 1e9:.1f} GB / {link / 1e9:g} GB/s + 2 x {size / 1e9:.1f} GB / "
        f"{FILE_BYTES_PER_SECOND / 1e9:g} GB/s",
        source="inference/generator.py: device, /dev/shm and back; the rate of files is judgement, not measured",
    )


def _gather(role: Role, layout: Layout, accelerator: Accelerator, knowledge: Knowledge) -> Term:
    """16-bit weights of the policy, from shards to a whole tensor-parallel rank."""
    size, constants = gathered_bytes(role, layout), knowledge.training
    ranks = group(
        DeviceColumns.of(accelerator),
        array(layout.data),
        array(layout.tensor),
        scaleup_share=constants.scaleup_share,
        scaleout_share=constants.scaleout_share,
        congestion=constants.congestion,
        latency=constants.latency_seconds,
    )
    return Term(
        name="gather weights",
        part="communication",
        value=float(ranks.gather_seconds(array(size))),
        unit="seconds",
        formula=f"all-gather of {size / 1e9:.1f} GB over {layout.data} at {float(ranks.ring) / 1e9:.3g} GB/s",
        source="ring: Patarasuk and Yuan 2009; fitted shares of the links (physics/devices.py)",
    )


def gathered_bytes(role: Role, layout: Layout) -> float:
    """Bytes of a model in 16 bits on one tensor-parallel rank."""
    return 2.0 * count_parameters(role.architecture).total / layout.tensor


def native_decoder(role: Role, accelerator: Accelerator, layout: Layout) -> serving_devices.GenerationEngine:
    """Return how the native engine decodes in 16 bits: as a captured graph where a plain model is complete on a GPU.

    Elsewhere operation by operation: over keys and values that stay in place, or over transformers' own kinds of cache
    where a layer has another than the plain one, in 32 bits where the weights that are trained are not sharded.
    It is held to what the engine does by `tests/integration/train/test_planned_decoder.py`.
    """
    a = role.architecture
    engine = serving_devices.NATIVE
    if a.sliding_window_layers or a.chunked_layers or a.state_space_layers:
        is_cast = role.trained and layout.tensor == 1 and layout.zero == ZeroStage.NONE
        engine = serving_devices.NATIVE_COPIED_IN_32_BITS if is_cast else serving_devices.NATIVE_COPIED
    elif layout.tensor == 1 and layout.zero == ZeroStage.NONE:
        is_complete = role.adapter is None or role.adapter.base_bits == WHOLE_BITS
        is_fused = a.model_type in FUSED_TYPES and accelerator.vendor == NVIDIA
        return serving_devices.NATIVE_CAPTURED if is_complete and is_fused else engine
    if layout.tensor > 1:
        return replace(engine, layer_slowness=serving_devices.NATIVE_SPLIT_SLOWNESS)
    is_sharded = layout.zero != ZeroStage.NONE
    return replace(engine, layer_slowness=serving_devices.NATIVE_SHARDED_SLOWNESS) if is_sharded else engine


def _decoding(
    role: Role,
    phase: RolePhase,
    turns: float,
    sequences: float,
    together: int,
    tensor: int,
    replicas: int,
    accelerator: Accelerator,
    knowledge: Knowledge,
    engine: serving_devices.GenerationEngine,
) -> list[Term]:
    one = _generation(
        role.architecture,
        accelerator,
        sequences=sequences,
        prompt_tokens=phase.prompt_tokens,
        new_tokens=phase.new_tokens,
        concurrency=together,
        tensor=tensor,
        replicas=replicas,
        engine=engine,
        read_share=1.0 if role.architecture.state_space else phase.read_share,
        weights=_weights(role, engine),
        constants=knowledge.serving_constants(engine),
    )
    return over_steps(phase, turns, one.terms)


def _weights(role: Role, engine: serving_devices.GenerationEngine) -> str:
    return role.stored if engine is serving_devices.SERVER else "bf16"


def _scoring(
    role: Role,
    phase: RolePhase,
    turns: float,
    tensor: int,
    accelerator: Accelerator,
    knowledge: Knowledge,
    engine: serving_devices.GenerationEngine,
) -> list[Term]:
    width = phase.padded_tokens(phase.batch)
    tokens = phase.batch * width
    share = 0.0 if role.scalar_head else phase.logit_share
    seconds = _forward_pass_seconds(
        role.architecture,
        accelerator,
        tokens=tokens,
        seq_len=width,
        tensor=tensor,
        head_positions=share * tokens,
        dtype=_weights(role, engine),
        engine=engine,
        constants=knowledge.serving_constants(engine),
    )
    term = Term(
        name="forward pass",
        part="prefill",
        value=seconds,
        unit="seconds",
        formula=f"{tokens:,.0f} tokens, {share:.3g} of the positions with logits",
        source="roofline at the measured matmul ceiling (physics/serving_passes.py)",
    )
    return over_steps(phase, turns, (term,))


def over_steps(phase: RolePhase, steps: float, terms: tuple[Term, ...]) -> list[Term]:
    """Terms of one step as terms of the phase."""
    return [
        replace(
            term,
            name=f"{phase.name}: {term.name}",
            part=phase.name,
            value=term.value * steps,
            formula=f"{steps:,.6g} x ({term.formula})",
        )
        for term in terms
    ]


# -------- Seconds of very many layouts of a stage that trains, as columns; and the same of a few layouts, as terms.


@dataclass(frozen=True, kw_only=True)
class TimedStage:
    """The stage whose layouts are timed."""

    work: Workload
    dtype: str
    known: EngineKnowledge
    knowledge: Knowledge


def update_seconds(task: TimedStage, layouts: Layouts, devices: LayoutDevices) -> Array:
    """Seconds of all optimizer steps of the stage, of every layout."""
    phases = [phase for phase in task.work.phases if phase.work == "train"]
    total = array(np.zeros(layouts.data.size))
    for phase in phases:
        total = total + phase.steps * step_seconds_of(task, phase, layouts, devices)
    return array(total)


def training_terms(
    task: TimedStage, layouts: Sequence[Layout], devices: LayoutDevices, together: Mapping[str, Array]
) -> list[tuple[Term, ...]]:
    """The terms of a stage that trains, of every layout: its updates, and what it generates and scores between them.

    `together` are the sequences that a generating phase decodes at once, per layout.
    """
    rows = range(len(layouts))
    terms: list[list[Term]] = [[] for _ in rows]
    for phase in task.work.phases:
        if phase.work == "train":
            for row, updates in zip(rows, _phase_terms(task, phase, layouts, devices), strict=True):
                terms[row] += updates
            continue
        role, engine = task.work.role(phase.role), task.known.does.name
        for row in rows:
            at_once = int(together[phase.name][row]) if phase.work == "generate" else 0
            accelerator = devices.accelerators[devices.of_row[row]]
            terms[row] += _other(role, phase, layouts[row], at_once, accelerator, task.knowledge, engine)
    return [tuple(each) for each in terms]


def _phase_terms(
    task: TimedStage, phase: RolePhase, layouts: Sequence[Layout], devices: LayoutDevices
) -> list[list[Term]]:
    given = step_inputs(task, phase, Layouts.of(layouts), devices)
    work = step_work(given.model, given.device, given.job, given.stack)
    columns = [
        (column, np.broadcast_to(column.values, (len(layouts),)).tolist())
        for column in step_table(replace(given, work=work)).columns
    ]
    return [
        over_steps(phase, phase.steps, tuple(column.of(values[row]) for column, values in columns if values[row]))
        for row in range(len(layouts))
    ]


def step_seconds_of(task: TimedStage, phase: RolePhase, layouts: Layouts, devices: LayoutDevices) -> Array:
    """Seconds of one optimizer step of a phase, of every layout."""
    given = step_inputs(task, phase, layouts, devices)
    _, device = distinct([devices.of_row.astype(float)])
    return factored_seconds(given, beside=[device.astype(float)])


def step_inputs(task: TimedStage, phase: RolePhase, layouts: Layouts, devices: LayoutDevices) -> StepInputs:
    """Return the inputs of a step's time, one value per row where rows differ; the work is left out."""
    role, engine = task.work.role(phase.role), task.known
    precision = engine.precision(task.dtype, devices.accelerators[0])
    stacks = [with_precision(engine.profile(one), precision) for one in devices.accelerators]
    job = step_job(
        layouts,
        seq_len=_padded(phase, layouts.micro_batch, engine.does),
        dtype=task.dtype,
        precision=precision,
        adapter=role.adapter,
        head_share=0.0 if role.scalar_head else phase.logit_share,
    )
    return StepInputs(
        model=ProductColumns.of(role.architecture),
        device=rows_of(DeviceColumns.stack([DeviceColumns.of(one) for one in devices.accelerators]), devices.of_row),
        job=job,
        stack=rows_of(StackColumns.stack(stacks), devices.of_row),
        work=NOTHING_DONE,
        constants=engine.training,
    )


def _padded(phase: RolePhase, micro_batch: Array, does: Capabilities) -> Array:
    rows, which = distinct([micro_batch])
    return array([_row_tokens(phase, float(micro_batch[row]), does) for row in rows])[which]


def _row_tokens(phase: RolePhase, together: float, does: Capabilities) -> float:
    """Return the mean tokens that an engine computes for a sequence of which `together` share a micro-batch."""
    if phase.ragged and does.packs:
        return phase.prompt_tokens
    return phase.longest_tokens if does.fills_rows else phase.padded_tokens(together)


def other_seconds(
    task: TimedStage, layouts: Sequence[Layout], at: Sequence[Accelerator], fit: Fit, rows: Index
) -> Array:
    """Seconds of generation and scoring of some rows, each computed once per tuple of what they depend on."""
    phases = [phase for phase in task.work.phases if phase.work != "train"]
    by_key: dict[tuple[object, ...], float] = {}
    seconds = np.zeros(len(rows))
    for number, (layout, accelerator, row) in enumerate(zip(layouts, at, rows, strict=True)):
        for phase in phases:
            together = int(fit.together[phase.name][row]) if phase.work == "generate" else 0
            gathers = layout.zero >= ZeroStage.PARAMETERS and phase.work == "generate"
            network = accelerator.scaleout_bytes_per_second_per_node if gathers else None
            degrees = (layout.data, layout.context, layout.tensor)
            key = (phase.name, accelerator.name, network, *degrees, layout.zero, together)
            if key not in by_key:
                by_key[key] = other_phase_seconds(
                    task.work.role(phase.role),
                    phase,
                    layout,
                    together,
                    accelerator,
                    task.knowledge,
                    task.known.does.name,
                )
            seconds[number] += by_key[key]
    return array(seconds)


def least_update_seconds(task: TimedStage, layouts: Layouts, devices: LayoutDevices) -> Array:
    """A bound: matrix products of the layers alone, at the best rate of the device, split without loss.

    Every other term of a step is at least 0, shapes reach at most the best rate, the fullest pipeline stage holds at
    least the mean, and recomputation only adds. Multiplied by the factor for what no term stands for.
    """
    total = array(np.zeros(layouts.data.size))
    for phase in task.work.phases:
        if phase.work == "train":
            total = total + phase.steps * least_step_seconds(step_inputs(task, phase, layouts, devices))
    return array(total)


def some_rows(devices: LayoutDevices, rows: Index) -> LayoutDevices:
    """Some rows of the devices of many layouts."""
    return replace(devices, of_row=devices.of_row[rows])
