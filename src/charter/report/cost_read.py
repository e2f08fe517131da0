"""Inputs of the cost report beside the run's files: sums, limits, bills, advice. The edge to ledger and samples."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from charter.cost.advice import Advice, Use, advice
from charter.cost.forecast import Forecast, forecast
from charter.ledger import Attempt, Ledger
from charter.ledger.bill_rows import StoredBill
from charter.ledger.store import has_ledger, ledger_place
from charter.ledger.stored import OtherCharge
from charter.ledger.sums import Sums
from charter.report.cost_storage import StoredPlace, stored_places
from charter.run.budget import BudgetLine, Spending, budget_lines, read_plan, read_spending, stages_so_far, steps_now
from charter.run.graph import Pipeline, build_pipeline
from charter.run.paths import run_dir
from charter.run.staleness import assess
from charter.spec.project import Project
from charter.spec.stage import TRAINS
from charter.tracking import meter_rows, summarise
from charter.units import MICRO_USD_PER_USD

GROUPS = ("stage", "owner", "accelerator", "market", "day")
"""What the report divides the cost by, beside tags."""


@dataclass(frozen=True, kw_only=True)
class CostFacts:
    """A run's money, as sums."""

    project: Project
    spending: Spending = field(default_factory=Spending)
    groups: Mapping[str, tuple[Sums, ...]] = field(default_factory=dict)
    """By `stage`, `owner`, `accelerator`, `market`, `day` and `tag:NAME` for every tag of the project."""
    left: Forecast = field(default_factory=Forecast)
    lines: tuple[BudgetLine, ...] = ()
    bills: tuple[StoredBill, ...] = ()
    newest: Mapping[str, Attempt] = field(default_factory=dict)
    """By stage, its newest attempt."""
    stored: tuple[StoredPlace, ...] = ()
    fees: tuple[OtherCharge, ...] = ()
    """What nothing has measured: reserved terms, licences."""
    plan: Mapping[str, Any] | None = None
    """The JSON of `plan.json`."""


def read_costs(project: Project, root: Path, *, with_groups: bool = True) -> CostFacts:
    """Read the sums of a run; empty ones without a ledger. The time does not grow with the number of attempts."""
    place = ledger_place(run_dir(root.resolve()), project.storage.ledger)
    if not has_ledger(place):
        return CostFacts(project=project)
    names = (*GROUPS, *(f"tag:{name}" for name in sorted(project.tags))) if with_groups else ()
    with Ledger.open(place, create=False) as ledger:
        spending = read_spending(ledger, project, now=time.time())
        groups = {name: ledger.sums(run=project.name, by=(name,)) for name in names}
        bills = ledger.bills()
        fees = ledger.other_charges(run=project.name)
        samples = ledger.stored(run=project.name) if with_groups else ()
        newest = {
            item.attempt.stage: item.attempt
            for name in project.pipeline
            for item in ledger.recent(run=project.name, stage=name, limit=1)
        }
    pipeline = build_pipeline(project, root)
    done = {name for name, stage in pipeline.stages.items() if assess(stage, pipeline.root).done}
    plan = read_plan(pipeline.root)
    left = forecast(stages_so_far(plan, steps_now(pipeline, done=done), spending))
    running = {attempt.stage for attempt in spending.running}
    return CostFacts(
        project=project,
        spending=spending,
        groups=groups,
        left=left,
        lines=budget_lines(project, spending, left, running=running),
        bills=bills,
        newest=newest,
        stored=stored_places(samples, now=time.time()),
        fees=fees,
        plan=plan,
    )


def read_advice(facts: CostFacts, root: Path) -> tuple[Advice, ...]:
    """Return advice that would make the run cheaper, the largest saving first; reads the samples of its stages."""
    pipeline = build_pipeline(facts.project, root)
    uses = (use for name in pipeline.stages if (use := _use(facts, pipeline, name)) is not None)
    items = [item for use in uses for item in advice(use)]
    return tuple(sorted(items, key=lambda item: -(item.saving_usd or 0.0)))


def _use(facts: CostFacts, pipeline: Pipeline, name: str) -> Use | None:
    """Return the machines that a stage has held, by its sums and its samples; None for one that has not run."""
    part = facts.spending.by_stage.get(name)
    if part is None or not part.totals.attempts:
        return None
    stage, totals = pipeline.stages[name], part.totals
    seen = summarise(meter_rows(stage.directory), idle_below=facts.project.idle.utilisation)
    peak, size = seen.gpu_memory_peak_bytes, seen.gpu_memory_bytes
    priced = bool(totals.priced_attempts)
    left = facts.left.stages.get(name)
    newest = facts.newest.get(name)
    return Use(
        stage=name,
        accelerator=newest.accelerator if newest else ", ".join(seen.gpu_names),
        count=newest.count if newest else max(1, seen.gpus),
        market=newest.market if newest else "",
        seconds=seen.seconds,
        usd=part.usd if priced else None,
        activity=seen.gpu_activity,
        memory_peak_share=None if peak is None or not size else peak / size,
        idle_usd=totals.idle_micro_usd / MICRO_USD_PER_USD if priced else None,
        lost_usd=(part.waste_micro_usd - totals.idle_micro_usd) / MICRO_USD_PER_USD if priced else None,
        checkpoints=stage.spec.kind in TRAINS,
        remaining_usd=left.usd.p50 if left is not None and left.usd is not None else 0.0,
    )
