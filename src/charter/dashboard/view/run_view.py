"""The run page: pipeline, progress, money now, what happened. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from charter.artifacts.stage_state import Phase
from charter.dashboard.snapshot import Snapshot, StageNow, State, tone_of
from charter.dashboard.view.eta import Eta, eta_of, planned_interval
from charter.dashboard.view.graph_svg import NARROW, WIDE, Graph, graph_svg
from charter.evaluate.outcome import EvaluationOutcome
from charter.ledger import Accounted
from charter.ledger.account import wall_milliseconds
from charter.run.budget import running_usd_per_hour
from charter.units import format_seconds

MOST = 60
_SILENT = frozenset({"stage_pending", "stage_skipped", "stage_progress"})


@dataclass(frozen=True, kw_only=True)
class EventLine:
    """One event."""

    time: float
    stage: str
    tone: str
    """`info`, `good`, `warn` or `bad`."""
    icon: str
    text: str


def event_lines(events: Sequence[Mapping[str, Any]]) -> tuple[EventLine, ...]:
    """The last events, newest first."""
    shown = [event for event in events if event.get("event") not in _SILENT]
    return tuple(_line(event) for event in reversed(shown[-MOST:]))


def _line(event: Mapping[str, Any]) -> EventLine:
    name = str(event.get("event", ""))
    tone, icon, text = _words(name, event)
    return EventLine(time=float(event["time"]), stage=str(event.get("stage", "")), tone=tone, icon=icon, text=text)


def _words(name: str, event: Mapping[str, Any]) -> tuple[str, str, str]:
    message = str(event.get("message", ""))
    match name:
        case "run_started":
            return "info", "running", f"run started, {_count(event.get('todo'))} to do"
        case "run_done":
            return "good", "done", "run finished"
        case "run_stopped":
            return ("bad" if event.get("label") in ("budget", "stage") else "warn"), "interrupted", message
        case "stage_started":
            step = event.get("first_step") or 0
            go_on = f" from step {step}" if step else ""
            return "info", "running", f"started{go_on} (attempt {event.get('number', 1)})"
        case "stage_done":
            return "good", "done", f"done in {format_seconds(_number(event.get('seconds')))}"
        case "stage_interrupted":
            return "warn", "interrupted", f"stopped at step {event.get('step', 0)}"
        case "stage_restart":
            return "warn", "interrupted", f"{message}; starts again ({event.get('reason', '')})"
        case "stage_failed":
            return "bad", "failed", f"{message} ({event.get('reason', '')})"
        case "attempt_abandoned":
            return "warn", "interrupted", f"attempt {event.get('number')} had ended with its supervisor"
        case "stopping":
            return "warn", "interrupted", "asked to stop at a safe point"
    tone = "warn" if "warning" in name or "failed" in name or "budget" in name else "info"
    return tone, "note", message or name.replace("_", " ")


def _count(names: Any) -> str:
    number = len(names) if isinstance(names, list) else 0
    return f"{number} stage{'' if number == 1 else 's'}"


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


BROKEN = ("killed", "failed", "hung", "interrupted")
"""Outcomes of attempts that count as interruptions."""


@dataclass(frozen=True, kw_only=True)
class StageRow:
    """One stage on the run page."""

    stage: StageNow
    colour: int
    seconds: float
    """Of all its attempts."""
    planned_seconds: float | None
    usd: float | None
    attempts: int
    interruptions: int
    left_seconds: float | None
    ends_in: float | None

    @property
    def name(self) -> str:
        """Its name."""
        return self.stage.name

    @property
    def state(self) -> State:
        """Its state."""
        return self.stage.state


@dataclass(frozen=True, kw_only=True)
class Money:
    """Spending against the budget."""

    spent_usd: float | None
    per_hour_usd: float | None
    limit_usd: float | None
    forecast_usd: float | None

    @property
    def share(self) -> float | None:
        """Of the budget that is spent."""
        return (self.spent_usd or 0.0) / self.limit_usd if self.limit_usd else None

    @property
    def tone(self) -> str:
        """`good`, `warn` or `bad`."""
        share = self.share
        if share is None:
            return "good"
        over = self.forecast_usd is not None and self.limit_usd is not None and self.forecast_usd > self.limit_usd
        return "bad" if share >= 1 else "warn" if share >= 0.8 or over else "good"


@dataclass(frozen=True, kw_only=True)
class Span:
    """An attempt on the clock of the run."""

    start: float
    end: float
    outcome: str
    """`running` while it does."""


@dataclass(frozen=True, kw_only=True)
class TimelineRow:
    """One stage: when it was planned to run, and when it ran, in seconds of the run's clock."""

    name: str
    colour: int
    planned: tuple[float, float] | None
    """Start and end at the median."""
    spans: tuple[Span, ...]


@dataclass(frozen=True, kw_only=True)
class AttemptTimeline:
    """Attempts of a run on a clock that stands still while nothing runs."""

    rows: tuple[TimelineRow, ...]
    last: float
    pauses: int
    """Times in which nothing ran, which the clock leaves out."""


@dataclass(frozen=True, kw_only=True)
class RunView:
    """The whole page."""

    phase: Phase
    state: State
    rows: tuple[StageRow, ...]
    done: int
    share: float
    eta: Eta
    money: Money
    started_at: float | None
    wall_seconds: float | None
    """Time in which something ran; None for a run of so many attempts that they are kept as sums."""
    timeline: AttemptTimeline | None
    interruptions: int
    lost_seconds: float
    lost_usd: float | None
    checkpoint_at: float | None
    checkpoint_stage: str
    gates: tuple[StageNow, ...]
    holds: tuple[StageNow, ...]
    failures: tuple[StageNow, ...]
    stopped: str
    """Why the run stopped, where it says so itself: a spent budget."""
    events: tuple[EventLine, ...]
    wide: Graph
    narrow: Graph
    by_name: Mapping[str, StageRow]
    outcomes: tuple[EvaluationOutcome, ...]
    """What finished evaluations say of their policies."""


def run_view(snapshot: Snapshot, outcomes: tuple[EvaluationOutcome, ...] = ()) -> RunView:
    """The run page of a project."""
    eta = eta_of(snapshot)
    rows = tuple(_row(snapshot, stage, index, eta) for index, stage in enumerate(snapshot.stages))
    inputs = {stage.name: stage.inputs for stage in snapshot.stages}
    totals, recent = snapshot.ledger.whole.totals, snapshot.ledger.recent
    lost = totals.milliseconds - totals.useful_milliseconds
    saved = [stage for stage in snapshot.stages if stage.state == "running" and stage.checkpoint_at is not None]
    newest = max(saved, key=lambda stage: stage.checkpoint_at or 0.0, default=None)
    return RunView(
        phase=snapshot.phase,
        state=tone_of(snapshot.phase),
        rows=rows,
        done=sum(row.state == "done" for row in rows),
        share=run_share(snapshot),
        eta=eta,
        money=money_of(snapshot, eta),
        started_at=next((_time(event) for event in snapshot.events if event.get("event") == "run_started"), None),
        wall_seconds=wall_milliseconds(item.attempt for item in recent) / 1000 if recent else None,
        timeline=timeline_of(snapshot, recent),
        interruptions=sum(row.interruptions for row in rows),
        lost_seconds=lost / 1000,
        lost_usd=_usd(totals.lost_to_kills_micro_usd + totals.lost_to_failures_micro_usd, totals.priced_attempts),
        checkpoint_at=newest.checkpoint_at if newest else None,
        checkpoint_stage=newest.name if newest else "",
        gates=tuple(stage for stage in snapshot.stages if stage.phase is Phase.WAITING),
        holds=tuple(stage for stage in snapshot.stages if stage.phase is Phase.HELD),
        failures=tuple(stage for stage in snapshot.stages if stage.state == "failed"),
        stopped=_stopped(snapshot),
        events=event_lines(snapshot.events),
        wide=graph_svg(inputs, WIDE),
        narrow=graph_svg(inputs, NARROW),
        by_name={row.name: row for row in rows},
        outcomes=outcomes,
    )


PAUSE_SECONDS = 1.0
"""Shorter times without an attempt are the supervisor's, between two stages."""


def timeline_of(snapshot: Snapshot, accounted: Sequence[Accounted]) -> AttemptTimeline | None:
    """Return every attempt beside the plan; None where nothing ran, or too much to draw one by one."""
    attempts = sorted((item.attempt for item in accounted), key=lambda attempt: attempt.started_at)
    if not attempts:
        return None
    spans: dict[str, list[Span]] = {}
    left_out, until, pauses = attempts[0].started_at, attempts[0].started_at, 0
    for attempt in attempts:
        if attempt.started_at - until > PAUSE_SECONDS:
            left_out, pauses = left_out + attempt.started_at - until, pauses + 1
        start = attempt.started_at - left_out
        span = Span(start=start, end=start + attempt.seconds, outcome=attempt.outcome)
        spans.setdefault(attempt.stage, []).append(span)
        until = max(until, attempt.started_at + attempt.seconds)
    planned = {name: at for name, at in _planned_times(snapshot.plan) if name in spans}
    rows = tuple(
        TimelineRow(
            name=stage.name, colour=index % 12, planned=planned.get(stage.name), spans=tuple(spans.get(stage.name, ()))
        )
        for index, stage in enumerate(snapshot.stages)
        if stage.name in spans
    )
    ends = [span.end for items in spans.values() for span in items] + [end for _, end in planned.values()]
    return AttemptTimeline(rows=rows, last=max(ends), pauses=pauses)


def _planned_times(plan: Mapping[str, Any] | None) -> list[tuple[str, tuple[float, float]]]:
    timeline = (plan or {}).get("timeline")
    stages = timeline.get("stages") if isinstance(timeline, Mapping) else None
    times = []
    for item in stages if isinstance(stages, list) else ():
        start, end = (item.get(f"{edge}_seconds") or {} for edge in ("start", "end"))
        if isinstance(start.get("p50"), int | float) and isinstance(end.get("p50"), int | float):
            times.append((str(item.get("name")), (float(start["p50"]), float(end["p50"]))))
    return times


def run_share(snapshot: Snapshot) -> float:
    """Return the finished share of a run: its stages' shares, weighted by their planned time where all have one."""
    stages = snapshot.stages
    planned = [planned_interval(stage, "seconds") for stage in stages]
    weights = [item.p50 for item in planned if item is not None and item.p50]
    if len(weights) < len(stages):
        weights = [1.0] * len(stages)
    total = sum(weights)
    return sum(w * stage.done_share for w, stage in zip(weights, stages, strict=True)) / total if total else 0.0


def money_of(snapshot: Snapshot, eta: Eta) -> Money:
    """Spending of a run: attempts, calls and other charges, and what runs at this moment."""
    ledger = snapshot.ledger
    now = {attempt.stage for attempt in ledger.running if _runs(snapshot, attempt.stage)}
    rate = running_usd_per_hour(
        [attempt for attempt in ledger.running if attempt.stage in now],
        now,
        machine_usd_per_hour=snapshot.machine_usd_per_hour,
    )
    spent = ledger.whole.usd if ledger.whole.is_priced else None
    has_run = bool(ledger.attempts)
    if spent is None and not has_run:
        spent = 0.0  # what never ran has cost nothing, whatever its price
    left = eta.left.usd
    return Money(
        spent_usd=spent,
        per_hour_usd=rate if rate is not None else (0.0 if spent is not None else None),
        limit_usd=snapshot.budget_limit_usd,
        forecast_usd=(spent if has_run else None) if left is None else (spent or 0.0) + left.p50,
    )


def _runs(snapshot: Snapshot, name: str) -> bool:
    stage = snapshot.stage(name)
    return stage is not None and stage.state == "running"


def _row(snapshot: Snapshot, stage: StageNow, index: int, eta: Eta) -> StageRow:
    sums, outcomes = snapshot.ledger.stage(stage.name), snapshot.ledger.outcomes.get(stage.name, {})
    expected = planned_interval(stage, "seconds")
    return StageRow(
        stage=stage,
        colour=index % 12,
        seconds=sums.totals.milliseconds / 1000,
        planned_seconds=expected.p50 if expected else None,
        usd=sums.usd if sums.is_priced else None,
        attempts=sums.totals.attempts,
        interruptions=sum(outcomes.get(name, 0) for name in BROKEN),
        left_seconds=eta.stage_seconds(stage.name),
        ends_in=eta.ends_in.get(stage.name),
    )


def _usd(micro_usd: int, priced: int) -> float | None:
    return micro_usd / 1e6 if priced else None


def _time(event: Mapping[str, Any]) -> float:
    return float(event["time"])


def _stopped(snapshot: Snapshot) -> str:
    """The last word of a run that ended early and was not started again; gates that wait have words of their own."""
    for event in reversed(snapshot.events):
        if event.get("event") in ("run_done", "run_started"):
            return ""
        if event.get("event") == "run_stopped":
            gates = event.get("label") == "interrupted" and any(
                stage.phase is Phase.WAITING for stage in snapshot.stages
            )
            return "" if gates else str(event.get("message", ""))
    return ""
