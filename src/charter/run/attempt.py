"""One attempt at one stage: its directory made ready; its process, its progress, its line in the ledger while it runs.

A directory is ready when no orphan is in it, nothing in it is damaged, and its job is written.
"""

import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from charter.artifacts import durable
from charter.artifacts.checkpoints import RESHARDED, Position
from charter.artifacts.group import FAILURE, failure_name, log_name, sweep_start
from charter.artifacts.job import JOB_FILE, job_to_json, read_job, write_job
from charter.artifacts.lease import announce, host_id, stop_orphan
from charter.artifacts.record import OUTPUTS, RECORD_FILE, damaged_output, read_record
from charter.artifacts.stage_dir import METRICS
from charter.artifacts.stage_process import DISK_FULL, INTERRUPTED_EXIT, OUT_OF_MEMORY, PEER_EXIT
from charter.artifacts.stage_state import checkpoint_position, checkpoint_step, read_progress
from charter.engines.installed import ENGINE
from charter.errors import BudgetError, CharterError, DataError, ExitCode, MissingExtraError, StageError
from charter.launch.launcher import HERE, Launcher, StageHandle
from charter.launch.machine import CPU, LAYOUT_DEFAULTS, asked_layout, processes_of
from charter.ledger import Ledger, Outcome
from charter.ledger.account import COUNTERS
from charter.ledger.attempt import Reached
from charter.models.engine_layout import CPU_VALUES
from charter.run.call_costs import CallCosts
from charter.run.graph import PlannedStage, job_of
from charter.run.restart import Ending, FailureClass
from charter.run.watches import Hang, HangWatch, IdleClock, read_signs
from charter.spec.project import BITS, EXACT, Project
from charter.spec.stage import MAKES_RECORDS
from charter.spec.stage_base import NATIVE
from charter.units import MICRO_USD_PER_USD

KEEPS_ITS_VALUE = frozenset({"threads"})
"""What a resume can reproduce on another machine: it uses the frozen value. The rest must be as it was."""

Frozen = Mapping[str, str | int]


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A stage directory that an attempt may start in, and what is worth telling."""

    first_step: int
    frozen: Frozen
    notes: tuple[str, ...]

    @property
    def processes(self) -> int:
        """Processes that the stage is started with."""
        return processes_of(self.frozen)


def prepare(
    stage: PlannedStage,
    project: Project,
    here: Frozen,
    *,
    reshard: bool,
    elsewhere: bool = False,
) -> Prepared:
    """Write the job of a stage; the values that its bits depend on stay as frozen at its first start.

    What still runs of an earlier start is ended; not where it is a job of a scheduler (`elsewhere`), whose successor
    locks it out.
    """
    directory = stage.directory
    durable.make_dir(directory)
    notes = []
    if not elsewhere and (orphan := stop_orphan(directory)) is not None:
        notes.append(f"stopped the orphan {orphan}")
    sweep_start(directory)
    notes += _set_damage_aside(directory)
    started = checkpoint_position(directory)
    frozen = _frozen(stage, project, here, started=started != Position(0), reshard=reshard)
    write_job(directory, job_of(stage, project, frozen))
    announce(directory)
    return Prepared(first_step=started.step, frozen=frozen, notes=tuple(notes))


def prepared_before(stage: PlannedStage, project: Project, here: Frozen, *, reshard: bool) -> Prepared | None:
    """Return the preparation of a start that is under way; None where it was prepared for something else."""
    try:
        job = read_job(stage.directory)
    except DataError:
        return None
    frozen = {**job.frozen, **_shards(here)} if stage.spec.kind in MAKES_RECORDS else job.frozen
    if reshard or drift(stage, project, here) or job_to_json(job_of(stage, project, frozen)) != job_to_json(job):
        return None
    return Prepared(first_step=checkpoint_position(stage.directory).step, frozen=job.frozen, notes=())


def drift(stage: PlannedStage, project: Project, here: Frozen) -> list[str]:
    """Return how this machine and the file differ from what a stage with a checkpoint was started on, in words.

    Empty when it may go on. A layout that the file no longer says stays as it was.
    """
    if not (stage.directory / JOB_FILE).exists() or checkpoint_position(stage.directory) == Position(0):
        return []
    frozen = read_job(stage.directory).frozen
    values = {
        name: (frozen[name], value)
        for name, value in here.items()
        if name in frozen and name not in KEEPS_ITS_VALUE and name not in LAYOUT_DEFAULTS
    }
    values[EXACT] = (frozen.get(EXACT, BITS), here.get(EXACT, BITS))
    values[ENGINE] = (frozen.get(ENGINE, NATIVE), here.get(ENGINE, NATIVE))
    if stage.spec.kind in MAKES_RECORDS:
        return [f"{name} {old} -> {new}" for name, (old, new) in values.items() if old != new]
    # How many processes the file asks for depends on the accelerators of the node that computes, not on this machine's.
    processes = {"world_size": here.get("world_size", LAYOUT_DEFAULTS["world_size"])}
    for name, value in {**asked_layout(project, stage.spec), **processes}.items():
        values[name] = (frozen.get(name, LAYOUT_DEFAULTS[name]), value)
    return [f"{name} {old} -> {new}" for name, (old, new) in values.items() if old != new]


def _frozen(stage: PlannedStage, project: Project, here: Frozen, *, started: bool, reshard: bool) -> Frozen:
    if not started:
        return here
    changed = drift(stage, project, here)
    frozen = read_job(stage.directory).frozen
    if not changed and not reshard:
        taken = {name: value for name, value in here.items() if name not in {*LAYOUT_DEFAULTS, *CPU_VALUES}}
        same = {**taken, **frozen}
        return {**same, **_shards(here)} if stage.spec.kind in MAKES_RECORDS else same
    if not reshard:
        raise drift_error(stage, changed)
    if (old := frozen.get(ENGINE, NATIVE)) != (new := here.get(ENGINE, NATIVE)):
        raise DataError(
            f"stage {stage.name} was started by the engine {old}, whose checkpoints {new} cannot read\n"
            f"  set `engine: {old}` again, or move {stage.directory} away to start it anew"
        )
    reason = f"at step {checkpoint_position(stage.directory)}: {', '.join(changed) or 'resources of the file'}; "
    earlier = [str(frozen[RESHARDED])] if RESHARDED in frozen else []
    return {**here, RESHARDED: "; ".join([*earlier, f"{reason}no longer bit-identical"])}


def _shards(here: Frozen) -> Frozen:
    """Return the number of processes that make records: as the file says now, since no bit depends on it."""
    return {"world_size": here.get("world_size", 1)}


def drift_error(stage: PlannedStage, changed: list[str]) -> DataError:
    """The refusal to go on with a started stage where its bits would change."""
    return DataError(
        f"stage {stage.name} was started under other conditions: {', '.join(changed)}\n"
        "  going on would not give the bits of an undisturbed run; restore them, or go on with --reshard "
        "(the record will say that it is no longer bit-identical)"
    )


def _set_damage_aside(directory: Path) -> list[str]:
    """Move a record whose outputs are damaged out of the way, so that the stage can publish again."""
    record = read_record(directory)
    if record is None:
        return []
    damage = damaged_output(directory, record, thorough=True)
    if damage is None:
        return []
    moved = [durable.move_aside(directory / RECORD_FILE, "damaged").name]
    if (directory / OUTPUTS).exists():
        moved.append(durable.move_aside(directory / OUTPUTS, "damaged").name)
    return [f"outputs damaged ({damage}); kept as {', '.join(moved)}"]


DUMP_SECONDS = 3.0
"""Time for a process that hangs to print its stacks; a busy machine may not come round to it for a second or two."""
RENEW_SECONDS = 10.0
"""A killed process that is not reported as ended by then: whoever should report it does not answer either."""


class MachineShares:
    """Wall clock of one machine, split evenly among the attempts that are alive in each interval.

    So what a machine costs is its price times its wall clock, whatever runs beside what; times are monotonic seconds.

    >>> shares = MachineShares()
    >>> shares.begin(1, 0.0), shares.begin(2, 60.0), shares.end(1, 100.0)
    (None, None, None)
    >>> shares.mean(1, 100.0), shares.mean(2, 140.0)
    (0.8, 0.75)
    """

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}
        self._began: dict[int, float] = {}
        self._alive: set[int] = set()
        self._until = 0.0

    def begin(self, attempt_id: int, now: float) -> None:
        """An attempt has begun."""
        self._split(now)
        self._seconds[attempt_id], self._began[attempt_id] = 0.0, now
        self._alive.add(attempt_id)

    def end(self, attempt_id: int, now: float) -> None:
        """An attempt has ended; nothing where it was not begun here."""
        self._split(now)
        self._alive.discard(attempt_id)

    def mean(self, attempt_id: int, now: float) -> float | None:
        """Mean share of an attempt until now, or until it ended; None where it was not begun here, or just now."""
        self._split(now)
        since = now - self._began.get(attempt_id, now)
        return self._seconds[attempt_id] / since if since > 0 else None

    def _split(self, now: float) -> None:
        for attempt_id in self._alive:
            self._seconds[attempt_id] += (now - self._until) / len(self._alive)
        self._until = now


@dataclass(kw_only=True)
class RunningAttempt:
    """State of an attempt, as the supervisor remembers it."""

    stage: PlannedStage
    handle: StageHandle
    number: int
    ledger_id: int | None
    """None while it waits in a queue of its scheduler, and spends nothing."""
    first_step: int
    calls: CallCosts
    idle: IdleClock
    shares: MachineShares = field(default_factory=MachineShares)
    """Of the machine that the attempts of a run share."""
    machine_price: int | None = None
    """Micro-USD per hour of that machine; None where it has no price, and of a job of a scheduler."""
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
    last_shown: Mapping[str, Any] = field(default_factory=dict)
    is_own_clock: bool = True
    """Whether its line in the ledger was begun by this process, so that its monotonic clock counts."""

    @property
    def seconds(self) -> float:
        """Return the seconds for which it has run."""
        return time.monotonic() - self.started

    @property
    def is_here(self) -> bool:
        """Return True if it computes on this machine, whose kernel counts what it kills for memory."""
        job = self.handle.job
        return not self.handle.where or (job is not None and job.scheduler in HERE)

    @property
    def is_overdue(self) -> bool:
        """Return True if it has run longer than its stage may; time in a queue does not count."""
        limit = self.stage.spec.timeout
        return limit is not None and self.ledger_id is not None and limit < self.seconds

    def progress(self) -> dict[str, Any]:
        """Return what this attempt has reported; what an earlier one has left behind does not count."""
        latest = read_progress(self.stage.directory)
        return latest if latest.get("updated_at", 0) >= self.began_at and latest.get("pid") == self.handle.pid else {}

    @property
    def began_at(self) -> float:
        """Return when it began, by the clock of the machine that computes."""
        job = self.handle.job
        return self.started_at if job is None else job.started_at

    def end_if_hung(self, launcher: Launcher) -> None:
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
            launcher.renew()

    def ask_to_stop(self) -> None:
        """SIGTERM, once."""
        if self.stop_asked is None:
            self.stop_asked = time.monotonic()
            self.saved_when_asked = checkpoint_step(self.stage.directory)
            self.handle.stop()

    @property
    def saved_since_asked(self) -> bool:
        """Return True if a checkpoint has been completed since it was asked to stop."""
        return checkpoint_step(self.stage.directory) > self.saved_when_asked


def begin_attempt(
    ledger: Ledger,
    project: Project,
    stage: PlannedStage,
    *,
    first_step: int,
    frozen: Mapping[str, str | int],
    shares: MachineShares,
) -> int:
    """Write the intent into the ledger before the attempt spends anything."""
    price, now = price_micro_usd_per_hour(project), time.monotonic()
    attempt_id = ledger.begin(
        run=project.name,
        stage=stage.name,
        kind=stage.spec.kind,
        fingerprint=stage.asked_fingerprint,
        at=time.time(),
        monotonic=now,
        accelerator=str(frozen["device"]),
        count=1 if frozen["device"] == CPU else int(frozen.get("world_size", 1)),
        first_step=first_step,
        price_micro_usd_per_hour=price,
        price_source=None if price is None else "resources.price in charter.yaml",
        host=host_id().partition("/")[0],
        pid=os.getpid(),
        owner=project.owner,
        tags=project.tags,
    )
    if frozen["device"] == CPU:  # accelerators are each stage's own, and priced one by one
        shares.begin(attempt_id, now)
    return attempt_id


def heartbeat(ledger: Ledger, attempt: RunningAttempt) -> None:
    """Write into the ledger that an attempt lives, how far it is, what it and its calls have cost."""
    if attempt.ledger_id is None:
        return
    now = _monotonic(attempt)
    ledger.heartbeat(attempt.ledger_id, at=time.time(), monotonic=now, **_so_far(attempt), **_priced(attempt, now))
    ledger.record_usage(attempt.calls.look())


def end_attempt(ledger: Ledger, attempt: RunningAttempt, outcome: Outcome, *, note: str = "") -> None:
    """Write into the ledger how an attempt ended and what its calls have cost; one that never started is not there."""
    try:
        if attempt.ledger_id is None:
            return
        now = _monotonic(attempt)
        spent: Reached = {**attempt.idle.metered(time.time()), **_priced(attempt, now)}
        ledger.end(
            attempt.ledger_id,
            at=time.time(),
            monotonic=now,
            outcome=outcome,
            note=note,
            **_in_all(attempt),
            **spent,
        )
        if now is not None:
            attempt.shares.end(attempt.ledger_id, now)
        ledger.record_usage(attempt.calls.look(at_end=True))
    finally:
        attempt.calls.close()


def _monotonic(attempt: RunningAttempt) -> float | None:
    """The clock that the ledger measures the attempt by; of an array it runs as fast as its tasks spend together."""
    job = attempt.handle.job
    if not attempt.is_own_clock:
        return None
    return attempt.started + job.busy_seconds if job and job.busy_seconds is not None else time.monotonic()


def _priced(attempt: RunningAttempt, now: float | None) -> Reached:
    """The price of an attempt so far: that of the machine times the share of it that the attempt had."""
    if attempt.machine_price is None or attempt.ledger_id is None or now is None:
        return {}
    share = attempt.shares.mean(attempt.ledger_id, now)
    return {} if share is None else {"price_micro_usd_per_hour": round(attempt.machine_price * share)}


def price_micro_usd_per_hour(project: Project) -> int | None:
    """Price of one billed unit per hour, None where the file gives none: this machine, a job's accelerator or node.

    Attempts that run side by side on this machine share it (`MachineShares`).
    """
    return None if project.resources.price is None else round(project.resources.price * MICRO_USD_PER_USD)


def last_step(attempt: RunningAttempt) -> int:
    """The last step that an ended attempt reported; its first step when it reported none."""
    return max((int(line.get("step", 0)) for line in _metrics(attempt)), default=attempt.first_step)


def _metrics(attempt: RunningAttempt) -> list[dict[str, Any]]:
    """The metrics lines of an attempt; every step has one, where `progress.json` is written twice a second."""
    lines = durable.objects_in(attempt.stage.directory / METRICS)
    return [line for line in lines if line.get("time", 0) >= attempt.began_at]


def _in_all(attempt: RunningAttempt) -> dict[str, Any]:
    """Return what an ended attempt did, to the last step that it reported."""
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


_ERRORS: Mapping[int, type[CharterError]] = {4: BudgetError, 7: MissingExtraError, 8: DataError}
"""Exit codes of a stage that the run passes on; every other failure is a stage failure (5)."""
PERMANENT = frozenset({2, 3, 4, 7, 8})
"""Exit codes that another attempt would only repeat: configuration, budget, a missing tool, bad data."""
BY_CAUSE: Mapping[str, FailureClass] = {
    "preempted": "preempted",
    "time_limit": "time_limit",
    "node_lost": "lost",
    "out_of_memory": "out_of_memory",
    "cancelled": "stopped",
}
"""What a scheduler's word for the end of a job says, where the stage did not fail by itself."""
BY_LABEL: Mapping[str, FailureClass] = {
    OUT_OF_MEMORY: "out_of_memory",
    DISK_FULL: "disk_full",
    "diverged": "not_finite",
    "begin_again": "begin_again",
}
"""What the label in a stage's own `failure.json` says."""
_BY_ENGINE = {
    "preempted": "was preempted by its scheduler",
    "time_limit": "came to the time limit of its job",
}
OWN_SIGNALS = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL})
"""What a process brings upon itself."""


def is_finished(stage: PlannedStage) -> bool:
    """Step target reached, record written, outputs verified: the only meaning of done."""
    record = read_record(stage.directory)
    if record is None or record.fingerprint != stage.asked_fingerprint:
        return False
    return record.step == record.target_step and damaged_output(stage.directory, record) is None


def ending_of(attempt: RunningAttempt, exit_code: int, *, out_of_memory: bool) -> Ending:
    """Return how an attempt ended, for the restart policy; `out_of_memory`: the kernel killed a process for memory."""
    label = _failure(attempt).get("label", "")
    failure = classify(
        exit_code, label=str(label), hung=attempt.hang is not None, timed_out=attempt.timed_out, oom=out_of_memory
    )
    by_engine = BY_CAUSE.get(attempt.handle.cause)
    return Ending(
        failure=by_engine if by_engine and failure in ("lost", "stopped") else failure,
        exit_code=exit_code,
        step=last_step(attempt),
        checkpoint=checkpoint_position(attempt.stage.directory),
    )


def classify(exit_code: int, *, label: str, hung: bool, timed_out: bool, oom: bool) -> FailureClass:
    """The class of a failure.

    >>> classify(-9, label="", hung=False, timed_out=False, oom=True)
    'out_of_memory'
    >>> classify(5, label="diverged", hung=False, timed_out=False, oom=False)
    'not_finite'
    """
    if timed_out or hung:
        return "timeout" if timed_out else "hung"
    if exit_code in (-signal.SIGKILL, 137):
        return "out_of_memory" if oom else "lost"
    if exit_code < 0:
        return "crashed" if -exit_code in OWN_SIGNALS else "lost"
    if exit_code == INTERRUPTED_EXIT:
        return "stopped"
    if exit_code in (PEER_EXIT, 143):
        return "lost"
    if label in BY_LABEL and exit_code:
        return BY_LABEL[label]
    return "permanent" if exit_code in PERMANENT else "error"


def outcome_of(ending: Ending) -> Outcome:
    """The ledger's word for an ending that did not finish the stage."""
    if ending.exit_code == ExitCode.BUDGET:
        return Outcome.INTERRUPTED
    match ending.failure:
        case "stopped" | "time_limit" | "preempted":
            return Outcome.INTERRUPTED if ending.exit_code == INTERRUPTED_EXIT else Outcome.KILLED
        case "hung":
            return Outcome.HUNG
        case "lost" | "crashed" | "timeout":
            return Outcome.KILLED
        case "out_of_memory":
            return Outcome.KILLED if ending.exit_code in (-signal.SIGKILL, 137) else Outcome.FAILED
    return Outcome.FAILED


def describe_ending(attempt: RunningAttempt, ending: Ending) -> str:
    """Return a description of the ending, in words."""
    who = f"process {attempt.handle.failed_rank} of {attempt.handle.processes} " if attempt.handle.processes > 1 else ""
    code, message = ending.exit_code, str(_failure(attempt).get("message", ""))
    if ending.failure == "timeout":
        return f"ran longer than its timeout of {attempt.stage.spec.timeout:g} s"
    if attempt.hang is not None:
        return attempt.hang.words(attempt.handle.processes)
    if ending.failure in _BY_ENGINE:
        return f"{_BY_ENGINE[ending.failure]}{' at a checkpoint' if code == INTERRUPTED_EXIT else ''}"
    if attempt.handle.cause == "node_lost":
        return f"its node was lost{f' ({attempt.handle.note})' if attempt.handle.note else ''}"
    if ending.failure == "out_of_memory" and not message:
        advice = "use a smaller resources.micro_batch, recompute: full, or a machine with more memory"
        return f"{who}was killed by the kernel for lack of memory; {advice}"
    if code < 0:
        return f"{who}was killed by {_signal_name(-code)}"
    if code == 0:
        return "ended with exit code 0 without reaching its target and publishing verified outputs"
    if ending.failure == "stopped":
        return "was stopped from outside at a safe point"
    if message and attempt.handle.failed_rank:
        return f"{who.strip()}: {message}"
    return message or f"{who}ended with exit code {code}"


def failure_of(attempt: RunningAttempt, what: str, ending: Ending, reason: str) -> CharterError:
    """The error that ends the run because of a stage."""
    kind = _ERRORS.get(ending.exit_code, StageError)
    log = attempt.stage.directory / log_name(attempt.handle.failed_rank)
    return kind(f"stage {attempt.stage.name}: {what}\n  given up: {reason}; the log is {log}")


def keep_failure(attempt: RunningAttempt, ending: Ending, what: str, error: CharterError) -> None:
    """Leave the first cause in `failure.json`, where the failed process could not write it or was not rank 0."""
    own = _failure(attempt)
    cause = own if own and ending.exit_code > 0 and ending.failure != "timeout" else {}
    content = {
        "exit_code": cause.get("exit_code", error.exit_code),
        "label": cause.get("label", error.label),
        "message": what,
        "failure": ending.failure,
    }
    durable.write_hint(attempt.stage.directory / FAILURE, content)


def _failure(attempt: RunningAttempt) -> Mapping[str, Any]:
    """Return what the process that failed first has written about it; empty when it could not."""
    try:
        content: Any = durable.read_json(attempt.stage.directory / failure_name(attempt.handle.failed_rank))
    except DataError:
        return {}
    return content if isinstance(content, dict) else {}


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
