"""One attempt at one stage while it runs: its process, its progress, its line in the ledger."""

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from charter.artifacts.lease import host_id
from charter.artifacts.stage_dir import METRICS
from charter.launch.engine import Engine, StageHandle
from charter.ledger import Ledger, Outcome
from charter.pipeline.call_costs import CallCosts
from charter.pipeline.graph import PlannedStage
from charter.pipeline.hang_watch import Hang, HangWatch, read_signs
from charter.pipeline.idle import IdleClock
from charter.pipeline.staleness import checkpoint_step, read_progress
from charter.spec.project import Project
from charter.units import MICRO_USD_PER_USD

DUMP_SECONDS = 3.0
"""Time for a process that hangs to print its stacks; a busy machine may not come round to it for a second or two."""
RENEW_SECONDS = 10.0
"""A killed process that is not reported as ended by then: whoever should report it does not answer either."""
COUNTERS = ("tokens", "pairs", "episodes", "records")


@dataclass(kw_only=True)
class RunningAttempt:
    """What the supervisor remembers of an attempt."""

    stage: PlannedStage
    handle: StageHandle
    number: int
    ledger_id: int | None
    """None while it waits in a queue of its engine, and spends nothing."""
    first_step: int
    calls: CallCosts
    idle: IdleClock
    started: float = field(default_factory=time.monotonic)
    started_at: float = field(default_factory=time.time)
    stop_asked: float | None = None
    """Monotonic time of the request to stop."""
    saved_when_asked: int = 0
    """Step of the newest checkpoint at that moment."""
    timed_out: bool = False
    watch: HangWatch = field(default_factory=lambda: HangWatch(limit_seconds=None))
    hang: Hang | None = None
    hung_at: float = 0.0
    """Monotonic time when the hang was noticed."""
    last_heartbeat: float = 0.0
    last_shown: Mapping[str, Any] = field(default_factory=dict)
    is_own_clock: bool = True
    """Whether its line in the ledger was begun by this process, so that its monotonic clock counts."""

    @property
    def seconds(self) -> float:
        """How long it has run."""
        return time.monotonic() - self.started

    def progress(self) -> dict[str, Any]:
        """What this attempt has reported; what an earlier one has left behind does not count."""
        found = read_progress(self.stage.directory)
        return found if found.get("updated_at", 0) >= self.began_at and found.get("pid") == self.handle.pid else {}

    @property
    def began_at(self) -> float:
        """When it began, by the clock of the machine that computes."""
        job = self.handle.job
        return self.started_at if job is None else job.started_at

    def end_if_hung(self, engine: Engine) -> None:
        """Look for signs of life; a stage without any prints its stacks and is ended a little later."""
        now = time.monotonic()
        if self.handle.waits:
            return
        if self.hang is None:
            watched = self.handle.watched
            if self.watch.is_due(now, len(watched)):
                self.hang = self.watch.look(now, read_signs(self.stage.directory, watched))
                if self.hang is not None:
                    self.hung_at = now
                    self.handle.dump_stacks()
            return
        if now - self.hung_at >= DUMP_SECONDS:
            self.handle.kill()
        if now - self.hung_at >= RENEW_SECONDS:
            self.hung_at = now
            engine.renew()

    def ask_to_stop(self) -> None:
        """SIGTERM, once."""
        if self.stop_asked is None:
            self.stop_asked = time.monotonic()
            self.saved_when_asked = checkpoint_step(self.stage.directory)
            self.handle.stop()

    @property
    def saved_since_asked(self) -> bool:
        """Whether a checkpoint has been completed since it was asked to stop."""
        return checkpoint_step(self.stage.directory) > self.saved_when_asked


def begin_attempt(
    ledger: Ledger, project: Project, stage: PlannedStage, *, first_step: int, frozen: Mapping[str, str | int]
) -> int:
    """Write the intent into the ledger before the attempt spends anything."""
    price = price_micro_usd_per_hour(project)
    return ledger.begin(
        run=project.name,
        stage=stage.name,
        kind=stage.spec.kind,
        fingerprint=stage.asked_fingerprint,
        at=time.time(),
        monotonic=time.monotonic(),
        accelerator=str(frozen["device"]),
        count=1 if frozen["device"] == "cpu" else int(frozen.get("world_size", 1)),
        first_step=first_step,
        price_micro_usd_per_hour=price,
        price_source=None if price is None else "resources.price in charter.yaml",
        host=host_id().partition("/")[0],
        pid=os.getpid(),
        owner=project.owner,
        tags=project.tags,
    )


def heartbeat(ledger: Ledger, attempt: RunningAttempt) -> None:
    """Write into the ledger that an attempt lives, how far it is, and what its calls have cost."""
    if attempt.ledger_id is None:
        return
    ledger.heartbeat(attempt.ledger_id, at=time.time(), monotonic=_monotonic(attempt), **_so_far(attempt))
    ledger.record_usage(attempt.calls.look())


def end_attempt(ledger: Ledger, attempt: RunningAttempt, outcome: Outcome, *, note: str = "") -> None:
    """Write into the ledger how an attempt ended and what its calls have cost; one that never started is not there."""
    try:
        if attempt.ledger_id is None:
            return
        ledger.end(
            attempt.ledger_id,
            at=time.time(),
            monotonic=_monotonic(attempt),
            outcome=outcome,
            note=note,
            **_in_all(attempt),
            **attempt.idle.metered(time.time()),
        )
        ledger.record_usage(attempt.calls.look(at_end=True))
    finally:
        attempt.calls.close()


def _monotonic(attempt: RunningAttempt) -> float | None:
    """The clock that the ledger measures the attempt by; of an array it runs as fast as its tasks spend together."""
    job = attempt.handle.job
    if not attempt.is_own_clock:
        return None
    return attempt.started + job.busy_seconds if job and job.busy_seconds is not None else time.monotonic()


def price_micro_usd_per_hour(project: Project, *, shared: bool = True) -> int | None:
    """Price of one stage slot of this machine per hour, None where the file gives none.

    The machine's price is shared evenly by the stages that may run side by side, so that two at once do not
    bill the machine twice. On an engine it is that of one accelerator, or of one node, which is not `shared`.
    """
    if project.resources.price is None:
        return None
    slots = max(1, project.resources.max_parallel_stages) if shared else 1
    return round(project.resources.price * MICRO_USD_PER_USD / slots)


def price_usd_per_hour(project: Project) -> float | None:
    """The same in dollars."""
    price = price_micro_usd_per_hour(project)
    return None if price is None else price / MICRO_USD_PER_USD


def last_step(attempt: RunningAttempt) -> int:
    """The last step that an ended attempt reported; its first step when it reported none."""
    return max((int(line.get("step", 0)) for line in _metrics(attempt)), default=attempt.first_step)


def _metrics(attempt: RunningAttempt) -> list[dict[str, Any]]:
    """The metrics lines of an attempt; every step has one, where `progress.json` is written twice a second."""
    found = []
    path = attempt.stage.directory / METRICS
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            line = json.loads(text)
        except json.JSONDecodeError:
            continue
        if isinstance(line, dict) and line.get("time", 0) >= attempt.began_at:
            found.append(line)
    return found


def _in_all(attempt: RunningAttempt) -> dict[str, Any]:
    """What an ended attempt did, to the last step that it reported."""
    lines = _metrics(attempt)
    counted = {name for line in lines for name in COUNTERS if name in line}
    return {
        "step": last_step(attempt),
        "kept_step": checkpoint_step(attempt.stage.directory),
        **{name: sum(int(line.get(name, 0)) for line in lines) for name in sorted(counted)},
    }


def _so_far(attempt: RunningAttempt) -> dict[str, Any]:
    progress = attempt.progress()
    counters = progress.get("counters", {})
    return {
        "step": max(int(progress.get("step", 0)), attempt.first_step),
        "kept_step": checkpoint_step(attempt.stage.directory),
        **{name: int(counters[name]) for name in COUNTERS if name in counters},
    }
