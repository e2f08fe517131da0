"""Hours, accelerator-hours and dollars of measured whole runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from charter.physics.columns import Array, array
from charter.physics.runs import RlPhases, Run, RunConstants, rl_step_terms, run_hours, run_usd
from charter.validation.quantities.rl_cases import RlCase
from charter.validation.quantities.rl_step import phases_of
from charter.validation.quantities.run_cases import RunCase, run_case
from charter.validation.rows.measurement import Measurement
from charter.validation.rows.metrics import run_metric

METRICS = ("wall_hours", "wall_days", "gpu_hours", "cost_usd")
HOURS_PER_DAY = 24.0


@dataclass(frozen=True, kw_only=True)
class PreparedRuns:
    """Runs as columns; phases are zero for runs that only train."""

    run: Run
    phases: RlPhases
    is_rl: Array
    metric: Array
    scale: Array
    """From the unit of the metric's family to the row's."""


class RunTotal:
    """Whole runs; see `charter.validation.quantity.Quantity`."""

    name = "run total"
    row_noise = 0.25
    """Scatter of rows of one source around a calibrated model, in logarithms (judgement)."""
    constants = RunConstants

    def accepts(self, row: Measurement) -> bool:
        """Rows with hours, days, accelerator-hours or dollars, of any kind but inference."""
        return run_metric(row) is not None and row.kind != "inference"

    def case(self, row: Measurement) -> RunCase:
        """The run behind a row."""
        return run_case(row)

    def stack(self, case: RunCase) -> str:
        """The framework of reinforcement learning, or the kind of run."""
        return case.stack

    def prepare(self, cases: Sequence[RunCase]) -> PreparedRuns:
        """Cases as columns."""
        is_rl = array([case.rl is not None for case in cases])
        return PreparedRuns(
            run=Run(
                step_seconds=array([case.train_seconds for case in cases]),
                steps=array([case.steps for case in cases]),
                accelerators=array([case.devices for case in cases]),
                usd_per_accelerator_hour=array([case.usd_per_hour for case in cases]),
                ideal=array([case.ideal for case in cases]),
            ),
            phases=_phases([case.rl for case in cases]),
            is_rl=is_rl,
            metric=array([METRICS.index(case.metric) for case in cases]),
            scale=array([case.scale for case in cases]),
        )

    def predict(self, prepared: PreparedRuns, constants: RunConstants) -> Array:
        """Totals in the unit of each row."""
        step = rl_step_terms(prepared.phases, constants).total
        plain = prepared.run.step_seconds * constants.training_factor
        run = replace(prepared.run, step_seconds=array(np.where(prepared.is_rl > 0, step, plain)))
        hours = run_hours(run, constants)
        totals = (hours, hours / HOURS_PER_DAY, hours * run.accelerators, run_usd(run, hours))
        return array(prepared.scale * np.choose(prepared.metric.astype(int), totals))


def _phases(cases: Sequence[RlCase | None]) -> RlPhases:
    """Phases of those that have any, spread over all rows."""
    places = [index for index, case in enumerate(cases) if case is not None]
    phases = phases_of([case for case in cases if case is not None]) if places else None
    columns = {}
    for name in RlPhases.__dataclass_fields__:
        column = np.zeros(len(cases))
        if phases is not None:
            column[places] = getattr(phases, name)
        columns[name] = array(column)
    return RlPhases(**columns)


RUN_TOTAL = RunTotal()
