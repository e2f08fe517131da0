"""The loop of a run: starts ready stages, watches running ones, decides about ended ones."""

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from charter.artifacts import durable
from charter.artifacts.job import EXECUTION_FILE
from charter.artifacts.job_files import JobFiles, numbers, read_submission
from charter.artifacts.sample_prompts import was_answering, write_sample_prompts
from charter.artifacts.stage_state import VERIFIED
from charter.errors import BudgetError, CharterError, ExitCode, InterruptedRunError
from charter.launch.job import module_of
from charter.launch.launcher import Launcher, StageStart
from charter.launch.machine import devices_of, frozen_values
from charter.ledger import Ledger, Outcome
from charter.run.accounts import SchedulerRecords, begin_job_attempt, end_dropped, shard_of, start_key
from charter.run.approval import Gate
from charter.run.attempt import (
    MachineShares,
    Prepared,
    RunningAttempt,
    begin_attempt,
    describe_ending,
    end_attempt,
    ending_of,
    failure_of,
    heartbeat,
    is_finished,
    keep_failure,
    outcome_of,
    prepare,
    prepared_before,
    price_micro_usd_per_hour,
)
from charter.run.budget import BudgetWatch
from charter.run.call_costs import CallCosts, write_timings
from charter.run.events import Events
from charter.run.graph import Pipeline, PlannedStage
from charter.run.restart import ITS_OWN_FAULT, Ending, decide
from charter.run.served import accelerators_of_node, stage_pools
from charter.run.watches import HangWatch, IdleClock, IdleWatch, oom_kills
from charter.spec.execution import Execution
from charter.spec.project import Project
from charter.tracking.overoptimisation import OVEROPTIMISATION

NOTICE_FILE = "preempt-notice"
"""In the run directory: whoever learns that the machine will be taken away creates it; the run stops as on SIGTERM."""


class StopSignals:
    """Counts requests to stop while the context is open; the handlers of before come back after it."""

    def __init__(self, notice: Path | None = None, *, is_started_again: Callable[[], bool] = lambda: False) -> None:
        """`is_started_again`: whether whoever sends SIGTERM will start this process again, to go on where it was."""
        self._notice, self._is_started_again = notice, is_started_again
        self.interrupts = 0
        self.terminations = 0
        self._is_meant: bool | None = None
        self._before: dict[int, Any] = {}

    @property
    def wanted(self) -> bool:
        """Return True if anybody has asked to stop."""
        return bool(self.interrupts or self._terminated or self.noticed)

    @property
    def _terminated(self) -> bool:
        """Return True if SIGTERM is meant for the run: judged once, and not in the handler.

        Who takes a machine away sends several, and gives other answers while it does.
        """
        if self.terminations and self._is_meant is None:
            self._is_meant = not self._is_started_again()
        return bool(self._is_meant)

    @property
    def noticed(self) -> bool:
        """Return True if somebody has left a notice that this machine will be taken away."""
        return self._notice is not None and self._notice.exists()

    def forget_notice(self) -> None:
        """Remove a notice that an earlier run was meant by."""
        if self._notice is not None:
            self._notice.unlink(missing_ok=True)

    @property
    def impatient(self) -> bool:
        """Return True if Ctrl-C came twice: do not wait for a checkpoint."""
        return self.interrupts > 1

    def __enter__(self) -> "StopSignals":
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._seen)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _seen(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            self.interrupts += 1
        else:
            self.terminations += 1


def start_attempt(
    project: Project,
    stage: PlannedStage,
    *,
    launcher: Launcher,
    ledger: Ledger,
    module: str,
    number: int,
    reshard: bool,
    execution: Execution | None,
    shares: MachineShares,
) -> tuple[RunningAttempt, tuple[str, ...]] | None:
    """Start one attempt, or go on with one that is under way; returns it, and what is worth telling.

    None where the stage is finished by now: a job that a dead supervisor had left may have ended after the stage was
    found unfinished. Its record is read last, when no job of the stage is under way any more.
    """
    here = frozen_values(project, stage.spec, launcher.facts_of(stage.name))
    pools = stage_pools(project, stage)

    def request(prepared: Prepared) -> StageStart:
        return StageStart(
            stage=stage.name,
            module=module,
            stage_dir=stage.directory,
            attempt=number,
            processes=prepared.processes,
            pools=pools,
            accelerators=accelerators_of_node(project, stage) if pools else 0,
            devices=devices_of(prepared.frozen),
        )

    prepared = prepared_before(stage, project, here, reshard=reshard) if launcher.elsewhere else None
    if prepared is None or not launcher.under_way(request(prepared)):
        launcher.end_left(stage.directory)
        if launcher.elsewhere:
            end_dropped(ledger, stage, run=project.run_in_ledger)
        if is_finished(stage):
            return None
        prepared = prepare(stage, project, here, reshard=reshard, elsewhere=launcher.elsewhere)
        if execution is not None:
            durable.write_json(stage.directory / EXECUTION_FILE, execution.to_json())
    ledger_id = None
    if not launcher.elsewhere:
        ledger_id = begin_attempt(
            ledger, project, stage, first_step=prepared.first_step, frozen=prepared.frozen, shares=shares
        )
    handle = launcher.start(request(prepared))
    attempt = RunningAttempt(
        stage=stage,
        handle=handle,
        number=number,
        ledger_id=ledger_id,
        first_step=prepared.first_step,
        calls=CallCosts(project=project, stage=stage),
        idle=IdleClock(policy=project.idle, stage_dir=stage.directory, started_at=time.time()),
        shares=shares,
        machine_price=None if launcher.elsewhere else price_micro_usd_per_hour(project),
        watch=HangWatch.of(stage.spec),
    )
    return attempt, prepared.notes


def begin_job(attempt: RunningAttempt, ledger: Ledger, project: Project) -> bool:
    """Write into the ledger that a job runs, once it does; one that a dead supervisor has begun is gone on with."""
    job, stage = attempt.handle.job, attempt.stage
    number = max(numbers(stage.directory), default=0)
    submission = read_submission(JobFiles(stage.directory, number)) if job is not None else None
    if job is None or submission is None:
        return False
    attempt.started, attempt.started_at = time.monotonic(), time.time()
    attempt.idle.started_at = attempt.started_at
    # The job has run for a moment when it is seen to, or for hours under an earlier supervisor: the clock of here
    # counts on from there.
    before = max(0.0, time.time() - job.started_at) if job.busy_seconds is None else 0.0
    attempt.started -= before
    key = start_key(job.job_id, restart=job.restart)
    rows = [row for row in ledger.running(run=project.run_in_ledger) if row.stage == stage.name and row.job_id == key]
    if rows:
        attempt.ledger_id, attempt.is_own_clock = rows[0].attempt_id, False
        return True
    attempt.ledger_id = begin_job_attempt(
        ledger,
        project,
        stage,
        submission=submission,
        first_step=attempt.first_step,
        at=job.started_at,
        monotonic=attempt.started,
        key=key,
        shard=shard_of(submission, 0) if submission.shards else None,
        host=job.nodes[0] if job.nodes else "",
        nodes=",".join(job.nodes) or None,
        pid=attempt.handle.pid or 0,
    )
    return True


POLL_SECONDS = 0.02
ENDED_BY_STOPPING = frozenset({"stopped", "lost", "hung", "timeout"})
"""What a stage that was asked to stop may end as without anything being wrong."""
HEARTBEAT_SECONDS = 2.0
"""How often the ledger hears of a running attempt: what a kill can cost its accuracy."""
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
        launcher: Launcher,
        events: Events,
        modules: Mapping[str, str],
        reshard: bool,
        slots: int,
        stop_grace_seconds: float,
        records: SchedulerRecords | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._ledger = ledger
        self._launcher = launcher
        self._events = events
        self._modules = modules
        self._reshard = reshard
        self._slots = slots
        self._stop_grace_seconds = stop_grace_seconds
        self._records = records
        self._active: list[RunningAttempt] = []
        self._shares = MachineShares()
        self._endings: dict[str, list[Ending]] = {}
        self._not_before: dict[str, float] = {}
        self._failure: CharterError | None = None
        self._gate = Gate(pipeline.root, lambda stage, why: events.emit("stage_note", stage=stage.name, message=why))
        self._oom_kills = oom_kills()
        self._last_heartbeat = 0.0
        self._budget = BudgetWatch(pipeline, events)
        self._idle = IdleWatch(pipeline.project.idle, events)
        self._alarms: set[Path] = set()
        self._done: set[str] = set()
        self.executions: Mapping[str, Execution] = {}
        """By stage: what runs, where the plan decides it."""

    def run(
        self, todo: Sequence[PlannedStage], *, done: set[str], signals: StopSignals, tick: Callable[[], None]
    ) -> None:
        """Run until all is done.

        Raises why it stopped otherwise, with every running stage at a safe point.
        """
        waiting = list(todo)
        self._done = done
        self._budget.start(self._ledger, done=done)
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
        """Settle what is still open in the ledger; the launcher has ended its processes by now."""
        for attempt in self._active:
            end_attempt(self._ledger, attempt, Outcome.KILLED, note="the supervisor ended")
        self._active.clear()
        self._budget.end(self._ledger)

    def _heed(self, signals: StopSignals) -> None:
        if signals.wanted and self._failure is None:
            why = "a notice says that this machine will be taken away; " if signals.noticed else ""
            self._failure = InterruptedRunError(f"{why}{STOPPED}")
            if signals.interrupts:
                self._failure.exit_code = ExitCode.CTRL_C
            self._events.emit("stopping", stages=[attempt.stage.name for attempt in self._active])
        if self._failure is None:
            return
        for attempt in self._active:
            attempt.ask_to_stop()
            waited = time.monotonic() - (attempt.stop_asked or 0.0)
            # A budget never costs more than it saves: what has no checkpoint since it was asked to stop goes on to one.
            patient = isinstance(self._failure, BudgetError) and not attempt.saved_since_asked
            if signals.impatient or (waited > self._stop_grace_seconds and not patient):
                attempt.handle.kill()

    def _start_ready(self, waiting: list[PlannedStage], done: set[str]) -> None:
        now = time.monotonic()
        for stage in list(waiting):
            if len(self._active) >= self._slots or self._failure is not None:
                return
            ready = done.issuperset(stage.stage_inputs) and now >= self._not_before.get(stage.name, 0.0)
            if ready and not self._gate.holds(stage) and not self._budget.holds(stage.name) and self._begin(stage):
                waiting.remove(stage)
        if not self._active:
            self._failure = self._gate.standstill(waiting, done) or self._budget.standstill(self._ledger, done=done)

    def _begin(self, stage: PlannedStage) -> bool:
        """Start a stage unless the budget, looked at once more, lets it wait for what was started before it."""
        active = [attempt.stage.name for attempt in self._active]
        if not self._budget.before(stage, self._ledger, running=active, done=self._done):
            return False
        try:
            self._start(stage)
        except CharterError as error:
            if not self._active:
                raise
            # What runs beside it is not to blame: it stops at a safe point before the run ends.
            self._failure = error
            message = f"did not start: {str(error).splitlines()[0]}"
            self._events.emit("stage_note", stage=stage.name, message=message)
        return True

    def _start(self, stage: PlannedStage) -> None:
        begun = start_attempt(
            self._pipeline.project,
            stage,
            launcher=self._launcher,
            ledger=self._ledger,
            module=module_of(stage.spec, self._modules),
            number=len(self._endings.get(stage.name, ())) + 1,
            reshard=self._reshard,
            execution=self.executions.get(stage.name),
            shares=self._shares,
        )
        if begun is None:
            self._done.add(stage.name)
            self._events.emit("stage_skipped", stage=stage.name, kind=stage.spec.kind, why=VERIFIED)
            return
        attempt, notes = begun
        self._active.append(attempt)
        for note in notes:
            self._events.emit("stage_note", stage=stage.name, message=note)
        if attempt.handle.where:
            self._events.emit("stage_queued", stage=stage.name, number=attempt.number, where=attempt.handle.where)
        else:
            self._tell_started(attempt)

    def _tell_started(self, attempt: RunningAttempt) -> None:
        job = attempt.handle.job
        placed = {} if job is None else {"job": job.job_id, "nodes": list(job.nodes)}
        self._events.emit(
            "stage_started",
            stage=attempt.stage.name,
            kind=attempt.stage.spec.kind,
            number=attempt.number,
            first_step=attempt.first_step,
            directory=str(attempt.stage.directory),
            **placed,
        )

    def _begin_late(self, attempt: RunningAttempt) -> None:
        """A job has left its queue: from now on it spends."""
        if attempt.ledger_id is None and begin_job(attempt, self._ledger, self._pipeline.project):
            self._tell_started(attempt)

    def _watch(self, waiting: list[PlannedStage], done: set[str]) -> None:
        for attempt in list(self._active):
            exit_code = attempt.handle.poll()
            self._begin_late(attempt)
            if exit_code is not None:
                self._active.remove(attempt)
                self._settle(attempt, exit_code, waiting, done)
            elif attempt.is_overdue:
                attempt.timed_out = True
                attempt.handle.kill()
            else:
                attempt.end_if_hung(self._launcher)

    def _settle(self, attempt: RunningAttempt, exit_code: int, waiting: list[PlannedStage], done: set[str]) -> None:
        """Decide about an ended attempt; what its directory holds counts, not what its exit code says."""
        stage = attempt.stage
        if self._records is not None:
            self._records.ended(stage)
        if is_finished(stage):
            end_attempt(self._ledger, attempt, Outcome.DONE)
            write_timings(self._ledger, self._pipeline.project, stage)
            done.add(stage.name)
            self._show(attempt)
            self._events.emit("stage_done", stage=stage.name, seconds=attempt.seconds, number=attempt.number)
            return
        kills = oom_kills()
        ending = ending_of(attempt, exit_code, out_of_memory=attempt.is_here and kills > self._oom_kills)
        self._oom_kills = kills
        what = describe_ending(attempt, ending)
        end_attempt(self._ledger, attempt, outcome_of(ending), note=what)
        was_stopped = attempt.stop_asked is not None and (ending.failure in ENDED_BY_STOPPING or exit_code == 0)
        if not was_stopped and ending.failure != "stopped":
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
            if ending.failure in ITS_OWN_FAULT and was_answering(stage.directory):
                write_sample_prompts(stage.directory, None)
                message = "it fell over while it answered prompts for people to read; it goes on without them"
                self._events.emit("stage_note", stage=stage.name, message=message)
            return
        error = failure_of(attempt, what, ending, decision.reason)
        keep_failure(attempt, ending, what, error)
        self._failure = self._failure or error
        is_held = isinstance(error, BudgetError)
        self._events.emit("stage_interrupted" if is_held else "stage_failed", **details, reason=decision.reason)

    def _heartbeat(self) -> None:
        self._last_heartbeat = time.monotonic()
        for attempt in self._active:
            heartbeat(self._ledger, attempt)
            self._show(attempt)
        if self._records is not None:
            self._records.settle()
        if self._active:
            running = [attempt.stage.name for attempt in self._active]
            over = self._budget.look(self._ledger, running=running, done=self._done)
            released = self._idle.look(self._active, usd_per_hour=self._pipeline.project.resources.price)
            self._failure = self._failure or over or released

    def _show(self, attempt: RunningAttempt) -> None:
        alarm = attempt.stage.directory / OVEROPTIMISATION
        if alarm not in self._alarms and alarm.exists():
            self._alarms.add(alarm)
            note = durable.read_json(alarm)
            message = f"stage {attempt.stage.name}: {note['message']}"
            self._events.emit("overoptimisation", stage=attempt.stage.name, message=message, at=note["at"])
        progress = attempt.progress()
        if progress and progress != attempt.last_shown:
            attempt.last_shown = progress
            spent = self._budget.spent
            money = {"cost_usd": spent.usd, "cost_usd_most": spent.most_usd} if spent.is_priced else {"cost_usd": None}
            shown = {key: value for key, value in progress.items() if key not in ("pid", "updated_at")}
            self._events.emit("stage_progress", stage=attempt.stage.name, seconds=attempt.seconds, **money, **shown)
