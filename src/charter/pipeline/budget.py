"""What the run has cost against what it may cost: told as it grows, held and stopped where the file asks for it."""

import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from charter.artifacts import durable
from charter.cost.budget import BudgetState
from charter.cost.forecast import forecast, paced
from charter.errors import BudgetError, DataError
from charter.ledger import Ledger
from charter.pipeline.budget_lines import STATE_NAMES, BudgetLine, binding, budget_lines
from charter.pipeline.events import Events
from charter.pipeline.graph import Pipeline
from charter.pipeline.paths import run_dir
from charter.pipeline.planned import PLAN_FILE
from charter.pipeline.spending import Spending, StageStep, read_spending, stages_so_far
from charter.pipeline.staleness import checkpoint_step, read_progress
from charter.spec.project import Project
from charter.units import MICRO_USD_PER_USD, format_usd

NO_PRICE = "resources.price is not set"


def spent_usd(project: Project, ledger: Ledger) -> float | None:
    """Cost of all attempts and calls so far; None when nothing has a price.

    Running attempts count up to their last heartbeat, calls that may or may not have been billed with the most
    that they can cost: a limit holds for the bill, not for what is known of it.
    """
    total = ledger.total(run=project.name)
    return total.most_micro_usd / MICRO_USD_PER_USD if total.is_priced else None


def budget_error(line: BudgetLine) -> BudgetError:
    """The error that ends a run at a limit."""
    where = "budget.limit" if line.scope == "project" else f"budget.{line.scope}s.{line.name}"
    if line.share < 1:
        said = (
            f"{line.title} has cost {format_usd(line.spent_usd)}, and is expected to cost "
            f"{format_usd(line.forecast_p50_usd)} (p10 {format_usd(line.forecast_p10_usd)}), "
            f"over its limit of {format_usd(line.limit_usd)}"
        )
        mend = f"raise {where}, or set budget.on_forecast: warn"
    else:
        said = f"{line.title} has cost {format_usd(line.spent_usd)}, over its limit of {format_usd(line.limit_usd)}"
        mend = f"raise {where}, or set budget.on_exceed: warn"
    return BudgetError(f"{said}\n  everything done so far is kept; {mend}, and run again")


class BudgetWatch:
    """The budget of a run while it lasts: looked at with every heartbeat."""

    def __init__(self, pipeline: Pipeline, events: Events) -> None:
        self._pipeline = pipeline
        self._events = events
        self._plan: Mapping[str, Any] | None = None
        self._told: dict[tuple[str, str], tuple[float, BudgetState]] = {}
        self._held: dict[tuple[str, str], BudgetLine] = {}
        self.spent_usd: float | None = None
        """Cost so far, as of the last look."""

    def start(self, ledger: Ledger, *, done: Collection[str]) -> None:
        """Refuse to start when a limit is passed already; say when there is nothing to go by."""
        project = self._pipeline.project
        self._plan = read_plan(self._pipeline.root)
        if project.budget is None:
            return
        if project.resources.price is None:
            self._events.emit(
                "budget_unpriced", message=f"the budget cannot be watched{_but_calls(project)}: {NO_PRICE}"
            )
        if (error := self.look(ledger, running=(), done=done)) is not None:
            raise error

    def look(self, ledger: Ledger, *, running: Iterable[str], done: Collection[str]) -> BudgetError | None:
        """Tell what is new; the error when a limit asks to stop."""
        project = self._pipeline.project
        if project.budget is None:
            self.spent_usd = spent_usd(project, ledger)
            return None
        spending = read_spending(ledger, project, now=time.time())
        self.spent_usd = spending.total.most_micro_usd / MICRO_USD_PER_USD if spending.total.is_priced else None
        lines = lines_now(self._pipeline, self._plan, spending, running=running, done=done)
        stop = None
        self._held.clear()
        for line in binding(project, lines):
            self._tell(line)
            if line.state is BudgetState.HOLD:
                self._held[line.scope, line.name] = line
            if line.state is BudgetState.STOP and not _is_over(line, done):
                stop = stop or line
        return None if stop is None else budget_error(stop)

    def holds(self, stage: str) -> bool:
        """Whether a budget lets this stage wait."""
        return any(scope != "stage" or name == stage for scope, name in self._held)

    def standstill(self, ledger: Ledger, *, done: Collection[str]) -> BudgetError | None:
        """The error when nothing runs any more and a budget still holds the rest."""
        if not self._held:
            return None
        over = self.look(ledger, running=(), done=done)
        return over or (budget_error(next(iter(self._held.values()))) if self._held else None)

    def _tell(self, line: BudgetLine) -> None:
        """One event for each share that is passed and each new state."""
        share, state = self._told.get((line.scope, line.name), (0.0, BudgetState.OK))
        passed = max(line.passed_share or 0.0, 1.0 if line.share >= 1 else 0.0)
        if passed > share or (line.state is not state and line.state is not BudgetState.OK):
            self._events.emit(
                "budget_hold" if line.state is BudgetState.HOLD else "budget_warning",
                message=line.sentence(),
                scope=line.scope,
                name=line.name,
                state=STATE_NAMES[line.state],
                share=passed,
                spent_usd=line.spent_usd,
                limit_usd=line.limit_usd,
                forecast_usd=line.forecast_p50_usd,
            )
        self._told[line.scope, line.name] = (max(passed, share), line.state)


def lines_now(
    pipeline: Pipeline,
    plan: Mapping[str, Any] | None,
    spending: Spending,
    *,
    running: Iterable[str],
    done: Collection[str],
) -> tuple[BudgetLine, ...]:
    """All limits, with a forecast from the plan and from how far the stages' own files say they are."""
    steps = steps_now(pipeline, done=done)
    left = forecast(stages_so_far(plan, steps, spending))
    return budget_lines(pipeline.project, spending, left, running=set(running))


def steps_now(pipeline: Pipeline, *, done: Collection[str]) -> tuple[StageStep, ...]:
    """How far every stage is, by what it has last said."""
    found = []
    for name, stage in pipeline.stages.items():
        progress = read_progress(stage.directory)
        paced_steps, paced_seconds = paced(progress)
        if name in done:
            progress = {}
        step, target = int(progress.get("step") or 0), progress.get("target_step")
        found.append(
            StageStep(
                name=name,
                kind=stage.spec.kind,
                fingerprint=stage.asked_fingerprint,
                done=name in done,
                step=max(step, checkpoint_step(stage.directory)) if target else 0,
                target_step=int(target) if target else None,
                paced_steps=paced_steps,
                paced_seconds=paced_seconds,
            )
        )
    return tuple(found)


def read_plan(root: Path) -> Mapping[str, Any] | None:
    """The plan that the run has kept, if any."""
    try:
        found = durable.read_json(run_dir(root) / PLAN_FILE)
    except DataError:
        return None
    return found if isinstance(found, dict) else None


def _is_over(line: BudgetLine, done: Collection[str]) -> bool:
    """A stage that is finished cannot be stopped, whatever it has cost."""
    return line.scope == "stage" and line.name in done


def _but_calls(project: Project) -> str:
    priced = any(serving.usd_per_million_input_tokens is not None for serving in project.serving.values())
    return " but for calls to servers" if priced else ""
