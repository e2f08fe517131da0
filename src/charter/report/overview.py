"""Plan against actual, by stage and in all: pure, from what was read to values that tables and charts show."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from charter.ledger.account import Totals, stage_totals, totals_of
from charter.ledger.call import CallSums
from charter.ledger.usage import stage_usage, usage_sums
from charter.report.amounts import NO_SPREAD, Amount, Spread, planned
from charter.report.read import RunFiles, StageFiles

State = Literal["pending", "running", "interrupted", "failed", "done"]


@dataclass(frozen=True, kw_only=True)
class StageView:
    """One stage: what was planned, what was spent, what is still to come."""

    name: str
    kind: str
    state: State
    step: int | None
    target_step: int | None
    plan: Spread | None
    totals: Totals
    calls: CallSums
    """To servers that answer for a model."""
    remaining: Spread
    """The plan's part that is still to be done."""
    planned_stage: Mapping[str, Any]
    """The stage as the plan has it; empty for one that is in no plan."""

    @property
    def actual(self) -> Amount:
        """What was spent so far: attempts, and calls as far as they are settled."""
        return spent(self.totals) + spent_on_calls(self.calls)

    @property
    def forecast(self) -> Spread:
        """Actual plus what is still to come."""
        return _plus(self.actual, self.remaining)

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
    """A whole run; its amounts are the sums of its stages'."""

    project: str
    state: State
    stages: tuple[StageView, ...]
    totals: Totals
    calls: CallSums
    plan: Spread
    forecast: Spread
    budget_limit_usd: float | None

    @property
    def actual(self) -> Amount:
        """What was spent so far: attempts, and calls as far as they are settled."""
        return spent(self.totals) + spent_on_calls(self.calls)

    @property
    def most_usd(self) -> float | None:
        """The same with all that calls of which nobody knows may have cost on top."""
        unknown = self.calls.unknown_micro_usd
        return (self.actual + Amount(milliseconds=0, micro_usd=unknown)).usd if unknown else self.actual.usd

    @property
    def priced(self) -> bool:
        """Whether any price is known."""
        return self.actual.micro_usd is not None or self.plan.p50.micro_usd is not None


def overview(run: RunFiles) -> Overview:
    """Plan, ledger and stage files put together; stages in the plan's order, then those only in the ledger."""
    in_plan = {str(stage["name"]): stage for stage in (run.plan or {}).get("stages", [])}
    totals, calls = stage_totals(run.accounted), stage_usage(run.usage)
    kinds = {item.attempt.stage: item.attempt.kind for item in run.accounted}
    last = {item.attempt.stage: item.attempt.outcome for item in run.accounted}
    stages = tuple(
        _view(
            name,
            kind=str(in_plan.get(name, {}).get("kind") or kinds.get(name, "")),
            planned_stage=in_plan.get(name, {}),
            files=run.stages.get(name, StageFiles(name=name)),
            totals=totals.get(name, Totals()),
            calls=calls.get(name, CallSums()),
            last_outcome=last.get(name),
        )
        for name in dict.fromkeys((*in_plan, *totals, *calls))
    )
    return Overview(
        project=run.project,
        state=_run_state(stages),
        stages=stages,
        totals=totals_of(run.accounted),
        calls=usage_sums(run.usage),
        plan=sum((view.plan for view in stages if view.plan), NO_SPREAD),
        forecast=sum((view.forecast for view in stages), NO_SPREAD),
        budget_limit_usd=run.budget_limit_usd,
    )


def spent(totals: Totals) -> Amount:
    """Time and cost of some attempts; the cost of those that have a price, None when none has."""
    return Amount(milliseconds=totals.milliseconds, micro_usd=totals.micro_usd if totals.priced_attempts else None)


def spent_on_calls(calls: CallSums) -> Amount:
    """Cost of settled calls; None when no call has a price. Their time is that of the attempt that waits for them."""
    priced = calls.settled_micro_usd or calls.unknown_micro_usd or calls.unpriced < calls.requests
    return Amount(milliseconds=0, micro_usd=calls.settled_micro_usd if calls.requests and priced else None)


def lost(totals: Totals, cause: Literal["kills", "failures"]) -> Amount:
    """What was spent for nothing, by cause."""
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
    files: StageFiles,
    totals: Totals,
    calls: CallSums,
    last_outcome: str | None,
) -> StageView:
    state = _stage_state(files, last_outcome)
    progress = files.record or files.progress or {}
    step, target = progress.get("step"), progress.get("target_step")
    plan = planned(planned_stage) if planned_stage else None
    done_share = step / target if state != "pending" and step and target else 0.0
    left = 0.0 if state == "done" else max(0.0, 1.0 - done_share)
    return StageView(
        name=name,
        kind=kind,
        state=state,
        step=step,
        target_step=target,
        plan=plan,
        totals=totals,
        calls=calls,
        remaining=plan.scaled(left) if plan else NO_SPREAD,
        planned_stage=planned_stage,
    )


def _stage_state(files: StageFiles, last_outcome: str | None) -> State:
    if files.record is not None:
        return "done"
    if last_outcome == "running":
        return "running"
    if last_outcome == "failed":
        return "failed"
    return "pending" if last_outcome is None and files.progress is None else "interrupted"


def _run_state(stages: tuple[StageView, ...]) -> State:
    states = {stage.state for stage in stages}
    if states == {"done"}:
        return "done"
    for state in ("running", "failed", "interrupted"):
        if state in states:
            return state
    return "interrupted" if "done" in states else "pending"


def _plus(amount: Amount, spread: Spread) -> Spread:
    return Spread(p10=amount + spread.p10, p50=amount + spread.p50, p90=amount + spread.p90)
