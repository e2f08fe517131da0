"""Plan against actual, by stage and in all: pure, from what was read to values that tables and charts show."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from charter.artifacts.stage_state import STATES, Phase, StageState, State, run_phase
from charter.cost.forecast import Forecast, StageForecast, StageSoFar, forecast, paced
from charter.ledger.account import Totals, stage_totals, totals_of, wall_milliseconds
from charter.ledger.call import CallSums
from charter.ledger.focus import stage_usage, usage_sums
from charter.ledger.sums import Sums
from charter.report.plan_cells import NO_SPREAD, NOTHING, Amount, AmountSpread, planned
from charter.report.plan_cells import ratio as over
from charter.report.read import RunFiles, StageFiles
from charter.run.budget import StageStep, stage_so_far

PENDING = StageState(phase=Phase.PENDING, why="never run", step=0, target_step=None)


@dataclass(frozen=True, kw_only=True)
class StageView:
    """One stage: what was planned, what was spent, what is still to come."""

    name: str
    kind: str
    state: State
    phase: Phase
    step: int
    target_step: int | None
    plan: AmountSpread | None
    totals: Totals
    calls: CallSums
    """To servers that answer for a model."""
    remaining: AmountSpread
    """What is still to be done: the plan's part that is left, at the pace that was measured."""
    planned_stage: Mapping[str, Any]
    """The stage as the plan has it; empty for one that is in no plan."""
    sample_seconds: float = 0.0
    """Spent on answers for people to read; part of what is spent."""

    @property
    def samples(self) -> Amount:
        """Return what answers for people to read took, at the stage's mean price of a second."""
        machines = spent(self.totals)
        part = min(1.0, 1000 * self.sample_seconds / machines.milliseconds) if machines.milliseconds else 0.0
        return machines.scaled(part)

    @property
    def actual(self) -> Amount:
        """Return the money spent so far: attempts, and calls as far as they are settled."""
        return spent(self.totals) + spent_on_calls(self.calls)

    @property
    def forecast(self) -> AmountSpread:
        """Actual plus what is still to come; at most also what calls of which nobody knows may have cost."""
        return _plus(self.actual, self.remaining, self.calls)

    @property
    def time_ratio(self) -> float | None:
        """Actual over planned time of a finished stage."""
        if self.state != "done" or self.plan is None or not self.plan.p50.milliseconds:
            return None
        return self.actual.milliseconds / self.plan.p50.milliseconds if self.totals.attempts else None

    @property
    def cost_ratio(self) -> float | None:
        """Actual over planned cost of a finished stage."""
        if self.state != "done" or self.plan is None or not self.plan.p50.micro_usd:
            return None
        return None if self.actual.micro_usd is None else self.actual.micro_usd / self.plan.p50.micro_usd


@dataclass(frozen=True, kw_only=True)
class Overview:
    """A whole run; its amounts are the sums of its stages', but for the ends of the forecast, which do not add."""

    project: str
    state: State
    phase: Phase
    stages: tuple[StageView, ...]
    totals: Totals
    calls: CallSums
    plan: AmountSpread
    forecast: AmountSpread
    budget_limit_usd: float | None
    wall_seconds: float = 0.0
    """Time in which at least one attempt ran: the clock of the run, where `actual` has machine time."""
    wall_plan: AmountSpread = NO_SPREAD
    """The plan's time from the first start to the last end, where `plan` adds up all stages."""

    @property
    def actual(self) -> Amount:
        """Return the money spent so far: attempts, and calls as far as they are settled."""
        return spent(self.totals) + spent_on_calls(self.calls)

    @property
    def time_ratio(self) -> float | None:
        """Actual over planned machine time of a finished run."""
        ratios = [stage.time_ratio for stage in self.stages]
        return None if None in ratios else over(self.actual.milliseconds, self.plan.p50.milliseconds)

    @property
    def cost_ratio(self) -> float | None:
        """Actual over planned cost of a finished run."""
        ratios = [stage.cost_ratio for stage in self.stages]
        return None if None in ratios else over(self.actual.micro_usd, self.plan.p50.micro_usd)

    @property
    def most_usd(self) -> float | None:
        """The same with all that calls of which nobody knows may have cost on top."""
        unknown = self.calls.unknown_micro_usd
        return (self.actual + Amount(milliseconds=0, micro_usd=unknown)).usd if unknown else self.actual.usd

    @property
    def priced(self) -> bool:
        """Return True if any price is known."""
        return self.actual.micro_usd is not None or self.plan.p50.micro_usd is not None


def overview(run: RunFiles) -> Overview:
    """Plan, ledger and stage files put together; stages in the plan's order, then those only in the ledger."""
    in_plan = {str(stage["name"]): stage for stage in (run.plan or {}).get("stages", [])}
    totals, calls = stage_totals(run.accounted), stage_usage(run.usage)
    kinds = {item.attempt.stage: item.attempt.kind for item in run.accounted}
    stages = tuple(
        _view(
            name,
            kind=str(in_plan.get(name, {}).get("kind") or kinds.get(name, "")),
            planned_stage=in_plan.get(name, {}),
            sample_seconds=run.stages.get(name, StageFiles(name=name)).sample_seconds,
            totals=totals.get(name, Totals()),
            calls=calls.get(name, CallSums()),
            state=run.states.get(name, PENDING),
        )
        for name in dict.fromkeys((*in_plan, *totals, *calls))
    )
    left = forecast([_so_far(stage, run) for stage in stages])
    phase = run_phase(stage.phase for stage in stages)
    stages = tuple(replace(stage, remaining=_spread(left.stages[stage.name])) for stage in stages)
    medians, rest = sum((view.forecast for view in stages), NO_SPREAD), _spread(left)
    actual, calls_of_run = sum((view.actual for view in stages), NOTHING), usage_sums(run.usage)
    return Overview(
        project=run.project,
        state=STATES[phase],
        phase=phase,
        stages=stages,
        totals=totals_of(run.accounted),
        calls=calls_of_run,
        plan=sum((view.plan for view in stages if view.plan), NO_SPREAD),
        forecast=replace(_plus(actual, rest, calls_of_run), p50=medians.p50),
        budget_limit_usd=run.budget_limit_usd,
        wall_seconds=wall_milliseconds(item.attempt for item in run.accounted) / 1000,
        wall_plan=planned((run.plan or {}).get("total") or {}),
    )


def spent(totals: Totals) -> Amount:
    """Time and cost of some attempts; the cost of those that have a price, None when none has."""
    return Amount(milliseconds=totals.milliseconds, micro_usd=totals.micro_usd if totals.priced_attempts else None)


def spent_on_calls(calls: CallSums) -> Amount:
    """Cost of settled calls; None when no call has a price. Their time is that of the attempt that waits for them."""
    priced = calls.settled_micro_usd or calls.unknown_micro_usd or calls.unpriced < calls.requests
    return Amount(milliseconds=0, micro_usd=calls.settled_micro_usd if calls.requests and priced else None)


def lost(totals: Totals, cause: Literal["kills", "failures"]) -> Amount:
    """Return the money spent for nothing, by cause."""
    priced = bool(totals.priced_attempts)
    return Amount(
        milliseconds=getattr(totals, f"lost_to_{cause}_milliseconds"),
        micro_usd=getattr(totals, f"lost_to_{cause}_micro_usd") if priced else None,
    )


def _view(
    name: str,
    *,
    kind: str,
    planned_stage: Mapping[str, Any],
    sample_seconds: float,
    totals: Totals,
    calls: CallSums,
    state: StageState,
) -> StageView:
    plan = planned(planned_stage) if planned_stage else None
    return StageView(
        name=name,
        kind=kind,
        state=state.state,
        phase=state.phase,
        step=state.step,
        target_step=state.target_step,
        plan=plan,
        totals=totals,
        calls=calls,
        remaining=NO_SPREAD,
        planned_stage=planned_stage,
        sample_seconds=sample_seconds,
    )


def _so_far(stage: StageView, run: RunFiles) -> StageSoFar:
    """One stage as the forecast sees it: attempts and calls under the fingerprint that counts now."""
    mine = [item for item in run.accounted if item.attempt.stage == stage.name]
    now = mine[-1].attempt.fingerprint if mine else ""
    part = Sums(
        totals=totals_of(item for item in mine if item.attempt.fingerprint == now),
        calls=usage_sums(item for item in run.usage if (item.stage, item.fingerprint) == (stage.name, now)),
    )
    paced_steps, paced_seconds = paced(run.stages.get(stage.name, StageFiles(name=stage.name)).progress or {})
    progress = StageStep(
        name=stage.name,
        kind=stage.kind,
        fingerprint=now,
        done=stage.state == "done",
        step=stage.step,
        target_step=stage.target_step,
        paced_steps=paced_steps,
        paced_seconds=paced_seconds,
    )
    return stage_so_far(progress, stage.planned_stage, part)


def _spread(left: StageForecast | Forecast) -> AmountSpread:
    def amount(quantile: str) -> Amount:
        usd = None if left.usd is None else round(getattr(left.usd, quantile) * 1e6)
        return Amount(milliseconds=round(getattr(left.seconds, quantile) * 1000), micro_usd=usd)

    return AmountSpread(p10=amount("p10"), p50=amount("p50"), p90=amount("p90"))


def _plus(amount: Amount, spread: AmountSpread, calls: CallSums) -> AmountSpread:
    unknown = Amount(milliseconds=0, micro_usd=calls.unknown_micro_usd or None)
    return AmountSpread(p10=amount + spread.p10, p50=amount + spread.p50, p90=amount + spread.p90 + unknown)
