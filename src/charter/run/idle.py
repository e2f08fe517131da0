"""Allocations that do nothing: noticed while a run lasts, told, and given back where the file asks for it."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from charter.cost.advice import Evidence, IdleVerdict, idle_verdict
from charter.errors import InterruptedRunError
from charter.launch.launcher import StageHandle
from charter.ledger.attempt import Reached
from charter.run.events import Events
from charter.run.graph import PlannedStage
from charter.spec.sections import IdlePolicy
from charter.tracking import MeterRow, MeterSummary, meter_rows, summarise
from charter.units import format_seconds

SECONDS_BETWEEN_LOOKS = 15.0
"""Samples are read again no sooner: reading those of days takes a while, and nothing changes faster."""
Rows = Callable[[Path, float], Iterable[MeterRow]]
"""The samples of a stage's directory since a time (Unix)."""


def rows_since(stage_dir: Path, since: float) -> tuple[MeterRow, ...]:
    """The samples as the sampler has written them."""
    return meter_rows(stage_dir, since=since)


@dataclass(kw_only=True)
class IdleClock:
    """Clock of one attempt's idle time. Times are Unix seconds, since samples are."""

    policy: IdlePolicy
    stage_dir: Path
    started_at: float
    rows: Rows = rows_since
    verdict: IdleVerdict = field(default_factory=lambda: IdleVerdict(idle=False, reason="it has just begun"))
    _progress: Mapping[str, Any] = field(default_factory=dict)
    _grew_at: float | None = None
    _looked_at: float = float("-inf")
    _ended_idle_seconds: float = 0.0

    def look(self, progress: Mapping[str, Any], *, now: float) -> IdleVerdict:
        """Decide anew from what the stage says of itself, and from samples once it says nothing new for the window."""
        since = self.started_at if self._grew_at is None else self._grew_at
        counted = {"step": progress.get("step"), "counters": progress.get("counters")}
        if progress and counted != self._progress:
            if self.verdict.idle:
                self._ended_idle_seconds += max(0.0, now - since)
            self._progress, self._grew_at, self._looked_at = counted, now, float("-inf")
            self.verdict = IdleVerdict(idle=False, reason="it makes progress")
        elif now - since >= self.policy.window and now - self._looked_at >= SECONDS_BETWEEN_LOOKS:
            self._looked_at = now
            seen = summarise(self.rows(self.stage_dir, max(since, now - self.policy.window)))
            self.verdict = idle_verdict(
                evidence(seen, seconds_without_progress=now - since),
                window_seconds=self.policy.window,
                busy_share=self.policy.utilisation,
            )
        return self.verdict

    def idle_seconds(self, now: float) -> float:
        """All time until now in which nothing was done; the window before it was noticed counts."""
        since = self.started_at if self._grew_at is None else self._grew_at
        return self._ended_idle_seconds + (max(0.0, now - since) if self.verdict.idle else 0.0)

    def metered(self, now: float) -> Reached:
        """Return the ledger's figures of an attempt that ends now: energy and idle time, as far as anybody looked."""
        seen = summarise(row for row in self.rows(self.stage_dir, self.started_at) if row.time <= now + 1)
        figures: Reached = {}
        if seen.samples:
            figures["idle_milliseconds"] = round(self.idle_seconds(now) * 1000)
        if seen.energy_joules is not None:
            figures["energy_joules"] = round(seen.energy_joules)
            figures["energy_source"] = ", ".join(seen.energy_sources)
        return figures


def evidence(seen: MeterSummary, *, seconds_without_progress: float) -> Evidence:
    """Samples of a window as evidence; no samples are no evidence."""
    return Evidence(
        seconds_without_progress=seconds_without_progress,
        gpu_activity=seen.gpu_activity,
        no_process=None if not seen.samples else seen.no_process_seconds >= seen.seconds > 0,
    )


def idle_words(stage: str, verdict: IdleVerdict, *, idle_seconds: float, usd_per_hour: float | None) -> str:
    """Return the message about an idle stage, with its cost."""
    cost = "" if usd_per_hour is None else f"; it costs ${usd_per_hour:,.2f} per hour"
    return f"stage {stage} is idle: {verdict.reason} (idle for {format_seconds(idle_seconds)}{cost})"


class Watched(Protocol):
    """Running attempt, as its idle clock sees it."""

    idle: IdleClock
    ledger_id: int | None

    @property
    def stage(self) -> PlannedStage:
        """Its stage."""

    @property
    def handle(self) -> StageHandle:
        """Its processes."""

    def progress(self) -> dict[str, Any]:
        """Return its last reported progress."""


class IdleWatch:
    """The running stages of a run: idle ones are told once, and given up where the file says `release`."""

    def __init__(self, policy: IdlePolicy, events: Events) -> None:
        self._policy = policy
        self._events = events
        self._told: set[int | None] = set()

    def look(self, active: Iterable["Watched"], *, usd_per_hour: float | None) -> InterruptedRunError | None:
        """Look at every running stage; the error when one is to be released."""
        released = None
        for attempt in active:
            if attempt.handle.waits:
                continue
            now = time.time()
            verdict = attempt.idle.look(attempt.progress(), now=now)
            if not verdict.idle:
                self._told.discard(attempt.ledger_id)
            elif attempt.ledger_id not in self._told:
                self._told.add(attempt.ledger_id)
                seconds = attempt.idle.idle_seconds(now)
                message = idle_words(attempt.stage.name, verdict, idle_seconds=seconds, usd_per_hour=usd_per_hour)
                self._events.emit("stage_idle", stage=attempt.stage.name, message=message, idle_seconds=seconds)
                if self._policy.action == "release":
                    released = InterruptedRunError(
                        f"{message}\n  it is stopped and its machines are given back, as idle.action: release asks; "
                        "the same command continues from its last checkpoint"
                    )
        return released
