"""Hours, accelerator-hours and dollars of a whole run, for many runs at once.

`wall = (steps x step + evaluation + checkpoints) / goodput + start-up`. Goodput is the share of the time a run holds
its accelerators in which it makes progress: failures, restarts, slow nodes and idle time are the rest.
"""

from __future__ import annotations

from dataclasses import dataclass

from charter.physics.arrays import Array, array
from charter.physics.constants import constant
from charter.physics.runs.rl_step import RlConstants
from charter.physics.terms import TermColumn, TermTable
from charter.units import SECONDS_PER_HOUR


@dataclass(frozen=True, kw_only=True)
class RunConstants(RlConstants):
    """Constants of a run beside its steps; of a step's constants one factor is left free, since totals show no more."""

    generation_factor: Array = constant(1.1, sigma=0.0, unit="factor", source="rl_step.py")
    score_factor: Array = constant(1.0, sigma=0.0, unit="factor", source="rl_step.py")
    update_factor: Array = constant(1.1, sigma=0.0, unit="factor", source="rl_step.py")
    resampling: Array = constant(1.5, sigma=0.0, unit="batches generated per step of DAPO", source="rl_step.py")
    refit_bytes_per_second: Array = constant(25e9, sigma=0.3, unit="B/s per accelerator", source="rl_step.py")
    overhead_seconds: Array = constant(5.0, sigma=0.0, unit="s", source="rl_step.py")
    colocation_seconds: Array = constant(12.0, sigma=0.0, unit="s", source="rl_step.py")
    unmodelled: Array = constant(1.0, sigma=0.15, unit="factor", source="everything else; 1 until measured")

    goodput: Array = constant(
        0.92,
        sigma=0.03,
        unit="share of the hours",
        source="Llama 3 (arXiv:2407.21783, section 3.3.4): above 90 % effective time at 16k devices",
        most=1.0,
    )
    training_factor: Array = constant(
        1.15,
        sigma=0.1,
        unit="factor on the optimizer step",
        source="judgement: runs keep margins, and the best of a search is better than what was run",
    )
    start_seconds: Array = constant(
        240.0, sigma=0.4, unit="s", source="judgement: containers, loading, tokenisation, compilation, first step"
    )
    side_share: Array = constant(
        0.02, sigma=0.0, unit="share of the steps", source="judgement: evaluation, checkpoints, logging"
    )


@dataclass(frozen=True, kw_only=True)
class Run:
    """Runs as columns."""

    step_seconds: Array
    steps: Array
    accelerators: Array
    usd_per_accelerator_hour: Array
    ideal: Array
    """1 where the source leaves failures out."""


def run_terms(run: Run, constants: RunConstants) -> TermTable:
    """Seconds of wall time of a run, term by term.

    >>> run = Run(step_seconds=array(10.0), steps=array(1000.0), accelerators=array(8.0),
    ...           usd_per_accelerator_hour=array(2.0), ideal=array(1.0))
    >>> round(float(run_terms(run, RunConstants()).total))
    10440
    """
    work = run.step_seconds * run.steps
    side = work * constants.side_share
    lost = (1 - run.ideal) * (work + side) * (1 / constants.goodput - 1)
    start = constants.start_seconds + 0.0 * work
    return TermTable(
        columns=(
            _column("steps", work, "steps x seconds of a step", "training/step_time.py, runs/rl_step.py"),
            _column("evaluation and checkpoints", side, "share of the steps", "judgement (run_total.py)"),
            _column("lost time", lost, "(1 / goodput - 1) x the rest", "Llama 3, section 3.3.4"),
            _column("start", start, "once per run", "judgement (run_total.py)"),
        )
    )


def run_hours(run: Run, constants: RunConstants) -> Array:
    """Hours of wall time."""
    return array(run_terms(run, constants).total / SECONDS_PER_HOUR)


def run_usd(run: Run, hours: Array) -> Array:
    """Dollars: accelerator-hours times their price.

    >>> run = Run(step_seconds=array(1.0), steps=array(1.0), accelerators=array(8.0),
    ...           usd_per_accelerator_hour=array(2.0), ideal=array(1.0))
    >>> float(run_usd(run, array(10.0)))
    160.0
    """
    return array(hours * run.accelerators * run.usd_per_accelerator_hour)


def _column(name: str, values: Array, formula: str, source: str) -> TermColumn:
    return TermColumn(name=name, part="run", values=array(values), unit="seconds", formula=formula, source=source)
