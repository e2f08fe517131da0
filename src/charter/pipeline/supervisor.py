"""The loop of a run: starts ready stages, watches running ones, decides about ended ones."""

import time
from collections.abc import Callable, Mapping, Sequence

from charter.errors import CharterError, InterruptedRunError
from charter.launch.engine import Engine, StageStart
from charter.launch.machine import frozen_values
from charter.ledger import Ledger
from charter.pipeline.approval import Gate
from charter.pipeline.attempt import RunningAttempt, begin_attempt, end_attempt, heartbeat
from charter.pipeline.budget import budget_error, limit_passed, share_warning, spent_usd, stops_at_limit
from charter.pipeline.call_costs import CallCosts
from charter.pipeline.endings import describe_ending, ending_of, failure_of, is_finished, keep_failure, outcome_of
from charter.pipeline.events import Events
from charter.pipeline.graph import Pipeline, PlannedStage
from charter.pipeline.hang_watch import LEAST_SECONDS, START_SECONDS, HangWatch
from charter.pipeline.oom import oom_kills
from charter.pipeline.prepare import prepare
from charter.pipeline.restart import Ending, decide
from charter.pipeline.signals import StopSignals
from charter.pipeline.timings import write_timings
from charter.spec.stage_kinds import TRAINS

POLL_SECONDS = 0.02
ENDED_BY_STOPPING = frozenset({"stopped", "lost", "hung", "timeout"})
"""What a stage that was asked to stop may end as without anything being wrong."""
HEARTBEAT_SECONDS = 2.0
"""How often the ledger hears of a running attempt: what a kill can cost its accuracy."""
CTRL_C_EXIT = 130
STOPPED = "stopped at a safe point; the same command continues from the last checkpoints"


class Supervisor:
    """Carries out the stages of one run.

    Single-threaded, since children die with the thread that made them.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        ledger: Ledger,
        engine: Engine,
        events: Events,
        modules: Mapping[str, str],
        reshard: bool,
        slots: int,
        stop_grace_seconds: float,
    ) -> None:
        self._pipeline = pipeline
        self._ledger = ledger
        self._engine = engine
        self._events = events
        self._modules = modules
        self._reshard = reshard
        self._slots = slots
        self._stop_grace_seconds = stop_grace_seconds
        self._active: list[RunningAttempt] = []
        self._endings: dict[str, list[Ending]] = {}
        self._not_before: dict[str, float] = {}
        self._failure: CharterError | None = None
        self._gate = Gate(pipeline.root, lambda stage, why: events.emit("stage_note", stage=stage.name, message=why))
        self._oom_kills = oom_kills()
        self._last_heartbeat = 0.0
        self._warned = False
        self._told_share = 0.0
        self.layouts: Mapping[str, Mapping[str, str | int]] = {}
        """By stage: what the plan decides of its layout where the file does not."""

    def run(
        self, todo: Sequence[PlannedStage], *, done: set[str], signals: StopSignals, tick: Callable[[], None]
    ) -> None:
        """Run until all is done.

        Raises why it stopped otherwise, with every running stage at a safe point.
        """
        waiting = list(todo)
        while waiting or self._active:
            self._heed(signals)
            if self._failure is None:
                self._start_ready(waiting, done)
            elif not self._active:
                break
            self._watch(waiting, done)
            if time.monotonic() - self._last_heartbeat >= HEARTBEAT_SECONDS:
                self._heartbeat()
                tick()
            time.sleep(POLL_SECONDS)
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Settle what is still open in the ledger; the engine has ended its processes by now."""
        for attempt in self._active:
            end_attempt(self._ledger, attempt, "killed", note="the supervisor ended")
        self._active.clear()

    def _heed(self, signals: StopSignals) -> None:
        if signals.wanted and self._failure is None:
            why = "a notice says that this machine will be taken away; " if signals.noticed else ""
            self._failure = InterruptedRunError(f"{why}{STOPPED}")
            if signals.interrupts:
                self._failure.exit_code = CTRL_C_EXIT
            self._events.emit("stopping", stages=[attempt.stage.name for attempt in self._active])
        if self._failure is None:
            return
        for attempt in self._active:
            attempt.ask_to_stop()
            waited = time.monotonic() - (attempt.stop_asked or 0.0)
            if signals.impatient or waited > self._stop_grace_seconds:
                attempt.handle.kill()

    def _start_ready(self, waiting: list[PlannedStage], done: set[str]) -> None:
        now = time.monotonic()
        for stage in list(waiting):
            if len(self._active) >= self._slots:
                return
            ready = done.issuperset(stage.stage_inputs) and now >= self._not_before.get(stage.name, 0.0)
            if ready and not self._gate.holds(stage):
                self._start(stage)
                waiting.remove(stage)
        if not self._active:
            self._failure = self._gate.standstill(waiting, done)

    def _start(self, stage: PlannedStage) -> None:
        project = self._pipeline.project
        prepared = prepare(
            stage,
            project,
            frozen_values(project, stage.spec),
            reshard=self._reshard,
            planned=self.layouts.get(stage.name),
        )
        number = len(self._endings.get(stage.name, ())) + 1
        ledger_id = begin_attempt(self._ledger, project, stage, first_step=prepared.first_step, frozen=prepared.frozen)
        handle = self._engine.start(
            StageStart(
                stage=stage.name,
                module=self._modules[stage.spec.kind],
                stage_dir=stage.directory,
                attempt=number,
                processes=prepared.processes,
            )
        )
        # An answer of a judge may be long in coming, and a stage that asks for one has no steps to go by.
        least = LEAST_SECONDS if stage.spec.kind in TRAINS else START_SECONDS
        self._active.append(
            RunningAttempt(
                stage=stage,
                handle=handle,
                number=number,
                ledger_id=ledger_id,
                first_step=prepared.first_step,
                calls=CallCosts(project=project, stage=stage),
                watch=HangWatch(limit_seconds=stage.spec.hang_timeout, least_seconds=least),
            )
        )
        for note in prepared.notes:
            self._events.emit("stage_note", stage=stage.name, message=note)
        self._events.emit(
            "stage_started",
            stage=stage.name,
            kind=stage.spec.kind,
            number=number,
            first_step=prepared.first_step,
            directory=str(stage.directory),
        )

    def _watch(self, waiting: list[PlannedStage], done: set[str]) -> None:
        for attempt in list(self._active):
            exit_code = attempt.handle.poll()
            if exit_code is not None:
                self._active.remove(attempt)
                self._settle(attempt, exit_code, waiting, done)
            elif attempt.stage.spec.timeout is not None and attempt.seconds > attempt.stage.spec.timeout:
                attempt.timed_out = True
                attempt.handle.kill()
            else:
                attempt.end_if_hung(self._engine)

    def _settle(self, attempt: RunningAttempt, exit_code: int, waiting: list[PlannedStage], done: set[str]) -> None:
        """Decide about an ended attempt; what its directory holds counts, not what its exit code says."""
        stage = attempt.stage
        if is_finished(stage):
            end_attempt(self._ledger, attempt, "done")
            write_timings(self._ledger, self._pipeline.project, stage)
            done.add(stage.name)
            self._show(attempt)
            self._events.emit("stage_done", stage=stage.name, seconds=attempt.seconds, number=attempt.number)
            return
        kills = oom_kills()
        ending = ending_of(attempt, exit_code, out_of_memory=kills > self._oom_kills)
        self._oom_kills = kills
        what = describe_ending(attempt, ending)
        end_attempt(self._ledger, attempt, outcome_of(ending), note=what)
        asked = attempt.stop_asked is not None and (ending.failure in ENDED_BY_STOPPING or exit_code == 0)
        if not asked and ending.failure != "stopped":
            self._restart_or_give_up(attempt, ending, what, waiting)
            return
        self._failure = self._failure or InterruptedRunError(f"stage {stage.name} was asked to stop; {STOPPED}")
        self._events.emit("stage_interrupted", stage=stage.name, step=ending.step)

    def _restart_or_give_up(
        self, attempt: RunningAttempt, ending: Ending, what: str, waiting: list[PlannedStage]
    ) -> None:
        stage = attempt.stage
        endings = self._endings.setdefault(stage.name, [])
        endings.append(ending)
        decision = decide(endings)
        details = {
            "stage": stage.name,
            "message": what,
            "number": attempt.number,
            "step": ending.step,
            "failure": ending.failure,
            "rank": attempt.handle.failed_rank,
        }
        if decision.restart and self._failure is None:
            self._not_before[stage.name] = time.monotonic() + decision.wait_seconds
            waiting.insert(0, stage)
            self._events.emit("stage_restart", **details, reason=decision.reason, wait_seconds=decision.wait_seconds)
            return
        error = failure_of(attempt, what, ending, decision.reason)
        keep_failure(attempt, ending, what, error)
        self._failure = self._failure or error
        self._events.emit("stage_failed", **details, reason=decision.reason)

    def _heartbeat(self) -> None:
        self._last_heartbeat = time.monotonic()
        for attempt in self._active:
            heartbeat(self._ledger, attempt)
            self._show(attempt)
        spent = spent_usd(self._pipeline.project, self._ledger) if self._active else None
        if not limit_passed(self._pipeline.project, spent):
            if warning := share_warning(self._pipeline.project, spent, self._told_share):
                self._told_share, message = warning
                self._events.emit("budget_warning", message=message)
            return
        error = budget_error(self._pipeline.project, spent)
        if stops_at_limit(self._pipeline.project):
            self._failure = self._failure or error
        elif not self._warned:
            self._warned = True
            self._events.emit("budget_warning", message=str(error))

    def _show(self, attempt: RunningAttempt) -> None:
        progress = attempt.progress()
        if progress and progress != attempt.last_shown:
            attempt.last_shown = progress
            spent = spent_usd(self._pipeline.project, self._ledger)
            shown = {key: value for key, value in progress.items() if key not in ("pid", "updated_at")}
            self._events.emit(
                "stage_progress", stage=attempt.stage.name, seconds=attempt.seconds, cost_usd=spent, **shown
            )
