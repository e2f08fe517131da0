"""Seconds of very many layouts of a stage that trains, as columns: the numbers of `accelerator_time`, without terms."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from charter.catalog.accelerators import Accelerator
from charter.physics.columns import Array, Layouts, array
from charter.physics.devices import DeviceColumns
from charter.physics.matrix_products import ModelColumns
from charter.physics.micro_batch import NOTHING_DONE, StepInputs, least_step_seconds, step_work
from charter.physics.stacks import StackColumns
from charter.physics.step_seconds import step_table
from charter.physics.step_time import Index, distinct, factored_seconds, rows_of, step_job, with_precision
from charter.physics.terms import Term
from charter.plan.physics import accelerator_time
from charter.plan.physics.engine_knowledge import EngineKnowledge
from charter.plan.physics.fit_many import Devices, Fit
from charter.plan.physics.knowledge import Knowledge
from charter.plan.work.phase import Phase, Workload
from charter.spec.layout import Layout, ZeroStage


@dataclass(frozen=True, kw_only=True)
class Task:
    """The stage whose layouts are timed."""

    work: Workload
    dtype: str
    known: EngineKnowledge
    knowledge: Knowledge


def update_seconds(task: Task, layouts: Layouts, devices: Devices) -> Array:
    """Seconds of all optimizer steps of the stage, of every layout."""
    phases = [phase for phase in task.work.phases if phase.work == "train"]
    total = array(np.zeros(layouts.data.size))
    for phase in phases:
        total = total + phase.steps * step_seconds_of(task, phase, layouts, devices)
    return array(total)


def update_terms(task: Task, layouts: Sequence[Layout], devices: Devices) -> list[tuple[Term, ...]]:
    """The terms of all optimizer steps of every layout, as `accelerator_time.training_terms` has them of one."""
    terms: list[tuple[Term, ...]] = [()] * len(layouts)
    for phase in task.work.phases:
        if phase.work != "train":
            continue
        given = step_inputs(task, phase, Layouts.of(layouts), devices)
        work = step_work(given.model, given.device, given.job, given.stack)
        columns = [
            (column, np.broadcast_to(column.values, (len(layouts),)).tolist())
            for column in step_table(replace(given, work=work)).columns
        ]
        for row in range(len(layouts)):
            step_terms = tuple(column.of(values[row]) for column, values in columns if values[row])
            terms[row] += tuple(accelerator_time.over_steps(phase, phase.steps, step_terms))
    return terms


def step_seconds_of(task: Task, phase: Phase, layouts: Layouts, devices: Devices) -> Array:
    """Seconds of one optimizer step of a phase, of every layout."""
    given = step_inputs(task, phase, layouts, devices)
    _, device = distinct([devices.of_row.astype(float)])
    return factored_seconds(given, beside=[device.astype(float)])


def step_inputs(task: Task, phase: Phase, layouts: Layouts, devices: Devices) -> StepInputs:
    """Return the inputs of a step's time, one value per row where rows differ; the work is left out."""
    role, engine = task.work.role(phase.role), task.known
    precision = engine.precision(task.dtype, devices.accelerators[0])
    stacks = [with_precision(engine.profile(one), precision) for one in devices.accelerators]
    job = step_job(
        layouts,
        seq_len=_padded(phase, layouts.micro_batch, packed=engine.does.packs),
        dtype=task.dtype,
        precision=precision,
        adapter=role.adapter,
        head_share=0.0 if role.scalar_head else phase.logit_share,
        causal=True,
    )
    return StepInputs(
        model=ModelColumns.of(role.architecture),
        device=rows_of(DeviceColumns.stack([DeviceColumns.of(one) for one in devices.accelerators]), devices.of_row),
        job=job,
        stack=rows_of(StackColumns.stack(stacks), devices.of_row),
        work=NOTHING_DONE,
        constants=engine.training,
    )


def _padded(phase: Phase, micro_batch: Array, *, packed: bool) -> Array:
    if packed and phase.ragged:
        return array(phase.prompt_tokens)
    rows, which = distinct([micro_batch])
    return array([phase.padded_tokens(float(micro_batch[row])) for row in rows])[which]


def other_seconds(task: Task, layouts: Sequence[Layout], at: Sequence[Accelerator], fit: Fit, rows: Index) -> Array:
    """Seconds of generation and scoring of some rows, each computed once per tuple of what they depend on."""
    phases = [phase for phase in task.work.phases if phase.work != "train"]
    by_key: dict[tuple[object, ...], float] = {}
    seconds = np.zeros(len(rows))
    for number, (layout, accelerator, row) in enumerate(zip(layouts, at, rows, strict=True)):
        for phase in phases:
            together = int(fit.together[phase.name][row]) if phase.work == "generate" else 0
            gathers = layout.zero >= ZeroStage.PARAMETERS and phase.work == "generate"
            network = accelerator.scaleout_bytes_per_second_per_node if gathers else None
            key = (phase.name, accelerator.name, network, layout.data, layout.tensor, together, gathers)
            if key not in by_key:
                by_key[key] = accelerator_time.other_seconds(
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


def least_update_seconds(task: Task, layouts: Layouts, devices: Devices) -> Array:
    """A bound: matrix products of the layers alone, at the best rate of the device, split without loss.

    Every other term of a step is at least 0, shapes reach at most the best rate, the fullest pipeline stage holds at
    least the mean, and recomputation only adds. Multiplied by the factor for what no term stands for.
    """
    total = array(np.zeros(layouts.data.size))
    for phase in task.work.phases:
        if phase.work == "train":
            total = total + phase.steps * least_step_seconds(step_inputs(task, phase, layouts, devices))
    return array(total)


def one_device(accelerator: Accelerator, count: int, usable: float) -> Devices:
    """All rows on one accelerator."""
    return Devices(accelerators=(accelerator,), of_row=np.zeros(count, dtype=np.intp), usable=array([usable]))


def some_rows(devices: Devices, rows: Index) -> Devices:
    """Some rows of the devices of many layouts."""
    return replace(devices, of_row=devices.of_row[rows])
