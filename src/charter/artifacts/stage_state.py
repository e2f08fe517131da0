"""State of a stage: one enum, one reader of its directory, one pure reducer. No view derives a state by itself.

`read_stage` collects what a directory says, `stage_state` decides. What stands elsewhere (the ledger's last sign of an
attempt, an approval that is missing, a budget that holds, what changed since an earlier run) is added to the evidence
by whoever knows it, as values.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from charter.artifacts import durable
from charter.artifacts.batch_files import finished_batches
from charter.artifacts.checkpoints import STATE, Position, positions_in
from charter.artifacts.group import FAILURE, heartbeat_path
from charter.artifacts.job import JOB_FILE
from charter.artifacts.job_files import JobFiles, NodeRecord, Submission, numbers, read_submission
from charter.artifacts.lease import LEASE, read_holder
from charter.artifacts.record import Record, changed_output, damaged_output, read_record
from charter.artifacts.stage_dir import PROGRESS
from charter.errors import DataError, ExitCode
from charter.units import format_seconds

State = Literal["pending", "running", "interrupted", "failed", "done"]
"""The five words that machines read (`charter status --json`); `Phase` is finer, and what people see."""
TrackerState = Literal["running", "finished", "failed", "killed"]
"""The four words that trackers know; `killed` is stopped before its end, by hand or by a loss, and can go on."""
Proof = Literal["sizes", "hashes", "thorough"]
"""How outputs are checked: sizes for pages; hashes of what has changed since the last check; all hashes anew."""
ALIVE_SECONDS = 120.0
"""A process elsewhere that has given no sign of life for so long is not said to run."""
OFFER_SECONDS = 600.0
"""A job of several nodes that has waited for so long may wait for one that is lost: fewer nodes are offered."""
VERIFIED = "outputs verified"


class Phase(StrEnum):
    """Phase of a stage."""

    PENDING = "pending"
    QUEUED = "queued"
    WAITING = "waiting for approval"
    HELD = "held by budget"
    STALE = "stale"
    STARTING = "starting"
    RUNNING = "running"
    INTERRUPTED = "interrupted"
    STOPPED = "stopped"
    DAMAGED = "damaged"
    FAILED = "failed"
    DONE = "done"


STATES: Mapping[Phase, State] = {
    Phase.PENDING: "pending",
    Phase.QUEUED: "pending",
    Phase.WAITING: "pending",
    Phase.HELD: "pending",
    Phase.STALE: "pending",
    Phase.STARTING: "running",
    Phase.RUNNING: "running",
    Phase.INTERRUPTED: "interrupted",
    Phase.STOPPED: "interrupted",
    Phase.DAMAGED: "interrupted",
    Phase.FAILED: "failed",
    Phase.DONE: "done",
}
"""The machine's word for each phase; a stage that a budget holds is interrupted where it has a checkpoint."""
TRACKER_STATES: Mapping[State, TrackerState | None] = {
    "pending": None,
    "running": "running",
    "interrupted": "killed",
    "failed": "failed",
    "done": "finished",
}
"""The trackers' word for each state; they are not told of a stage that has not begun."""
URGENCY = (
    Phase.RUNNING,
    Phase.STARTING,
    Phase.FAILED,
    Phase.DAMAGED,
    Phase.WAITING,
    Phase.HELD,
    Phase.QUEUED,
    Phase.INTERRUPTED,
    Phase.STOPPED,
)
"""Phases of stages that a whole run is said to be in, the first that occurs."""


@dataclass(frozen=True, kw_only=True)
class JobNow:
    """A job of a scheduler that was submitted, as far as the files of the stage say."""

    stands: Literal["queued", "running", "ended"]
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class StageEvidence:
    """All that the phase of a stage follows from."""

    has_job: bool = False
    """A stage process was prepared here at least once."""
    record: Record | None = None
    unreadable: str = ""
    """Why the record cannot be read, or is not of this stage."""
    damage: str = ""
    """What is wrong with the recorded outputs."""
    proof: str = VERIFIED
    """What the outputs were checked by, in words."""
    difference: str = ""
    """What has changed since an earlier run of the stage, where there was one."""
    holder: str = ""
    """The living process on this machine that holds the directory."""
    has_reported: bool = True
    """The holder has written progress since it began."""
    is_ended_here: bool = False
    """The last holder was on this machine and lives no more: no word from elsewhere counts."""
    job: JobNow | None = None
    last_sign: float | None = None
    """Newest heartbeat of a running attempt in the ledger, unix seconds."""
    failure_code: int | None = None
    failure: str = ""
    checkpoint: int = 0
    """Finished steps of the newest checkpoint, or finished batches of records."""
    progress: Mapping[str, Any] = field(default_factory=dict)
    approval: str = ""
    """Why the stage waits for somebody, where it does and could start otherwise."""
    budget: str = ""
    """Why a budget holds the stage, where one does."""


@dataclass(frozen=True, kw_only=True)
class StageState:
    """Phase of one stage with its reason, and how far it is."""

    phase: Phase
    why: str
    step: int
    target_step: int | None
    outputs: Mapping[str, str] = field(default_factory=dict)
    is_unreadable: bool = False
    """Its record cannot be read: nothing may be computed over it until somebody has moved it away."""

    @property
    def state(self) -> State:
        """The word that machines read."""
        return "interrupted" if self.phase is Phase.HELD and self.step else STATES[self.phase]

    @property
    def done(self) -> bool:
        """Return True if the stage need not run."""
        return self.phase is Phase.DONE


def stage_state(evidence: StageEvidence, *, now: float) -> StageState:
    """Return the phase of a stage and the reason, from values alone."""
    phase, why = _phase(evidence, now)
    if phase is Phase.DONE and evidence.record is not None:
        record = evidence.record
        return StageState(
            phase=phase, why=why, step=record.step, target_step=record.target_step, outputs=record.outputs
        )
    target = whole_number(evidence.progress.get("target_step"))
    step = step_so_far(evidence.progress, is_running=STATES[phase] == "running", checkpoint=evidence.checkpoint)
    return StageState(phase=phase, why=why, step=step, target_step=target, is_unreadable=bool(evidence.unreadable))


def step_so_far(progress: Mapping[str, Any], *, is_running: bool, checkpoint: int) -> int:
    """Return how far a stage is that is not done: by its own word while it runs, else what its checkpoint has.

    >>> [step_so_far({"step": 40}, is_running=is_running, checkpoint=20) for is_running in (True, False)]
    [40, 20]
    """
    return (whole_number(progress.get("step")) or 0) if is_running else checkpoint


def _phase(evidence: StageEvidence, now: float) -> tuple[Phase, str]:
    if evidence.unreadable:
        return Phase.DAMAGED, evidence.unreadable
    if evidence.record is not None:
        return (
            (Phase.DAMAGED, f"outputs damaged: {evidence.damage}") if evidence.damage else (Phase.DONE, evidence.proof)
        )
    if evidence.has_job:
        if evidence.holder:
            return (Phase.RUNNING if evidence.has_reported else Phase.STARTING), evidence.holder
        job = evidence.job
        if job is not None and job.stands != "ended":
            return (Phase.QUEUED if job.stands == "queued" else Phase.RUNNING), job.why
        # The ledger's last sign may be a moment old: files that tell of an end are newer.
        has_ended = evidence.is_ended_here or job is not None or evidence.failure_code is not None
        is_heard = evidence.last_sign is not None and now - evidence.last_sign <= ALIVE_SECONDS
        if is_heard and not has_ended:
            return Phase.RUNNING, "on another machine, by the ledger"
        if evidence.failure_code == ExitCode.BUDGET:
            # Its requests to servers would pass a limit: nothing is wrong with it but the money.
            return Phase.HELD, evidence.failure
        # A process that stopped at a safe point leaves a failure of its own with the code for "can be resumed".
        if evidence.failure_code is not None and evidence.failure_code != ExitCode.INTERRUPTED:
            return Phase.FAILED, evidence.failure
    if evidence.budget:
        return Phase.HELD, evidence.budget
    if evidence.has_job:
        where = (
            f"stopped; continues from its checkpoint at step {evidence.checkpoint}"
            if evidence.checkpoint
            else "stopped before its first checkpoint"
        )
        return (Phase.INTERRUPTED if evidence.failure_code is None else Phase.STOPPED), where
    if evidence.approval:
        return Phase.WAITING, evidence.approval
    return (Phase.STALE, evidence.difference) if evidence.difference else (Phase.PENDING, "never run")


def run_phase(phases: Iterable[Phase]) -> Phase:
    """Return the phase of a whole run: the most urgent one of its stages.

    >>> run_phase([Phase.DONE, Phase.QUEUED, Phase.PENDING]), run_phase([Phase.DONE, Phase.PENDING])
    (<Phase.QUEUED: 'queued'>, <Phase.INTERRUPTED: 'interrupted'>)
    """
    present = set(phases)
    if present == {Phase.DONE}:
        return Phase.DONE
    for phase in URGENCY:
        if phase in present:
            return phase
    return Phase.INTERRUPTED if Phase.DONE in present else Phase.PENDING


def read_json_or_empty(path: Path) -> Mapping[str, Any]:
    """Return a JSON object; an empty one where the file is missing, torn or not an object."""
    try:
        content = durable.read_json(path)
    except DataError:
        return {}
    return content if isinstance(content, dict) else {}


def read_stage(
    directory: Path,
    *,
    fingerprint: str | None = None,
    proof: Proof = "hashes",
    read: Callable[[Path], Mapping[str, Any]] = read_json_or_empty,
    now: float | None = None,
) -> StageEvidence:
    """Collect the evidence in a stage's directory.

    `fingerprint` is the one that the project asks for. `read` reads JSON files, and may keep those that have not
    changed.
    """
    # Signs of life first: a process that ends meanwhile has written its last files by the time they are read.
    lease = directory / LEASE
    holder = read_holder(lease)
    is_held = holder is not None and (holder.is_alive if holder.is_here else _touched_lately(lease, now))
    alive = holder if is_held else None
    job = job_now(directory, now=now)
    record, unreadable = None, ""
    try:
        record = read_record(directory)
    except DataError as error:
        unreadable = str(error)
    if record is not None and fingerprint not in (None, record.fingerprint):
        unreadable = (
            f"{directory} holds the record of fingerprint {record.fingerprint[:16]}, "
            f"where {str(fingerprint)[:16]} is expected; move the directory away"
        )
    damage, proven = "", VERIFIED
    if record is not None:
        if proof == "sizes":
            damage = changed_output(directory, record) or ""
            proven = "outputs have the verified sizes"
        else:
            damage = damaged_output(directory, record, thorough=proof == "thorough") or ""
    failure, progress = read(directory / FAILURE), read(directory / PROGRESS)
    updated_at = progress.get("updated_at")
    has_reported = alive is None or (isinstance(updated_at, int | float) and updated_at >= alive.since)
    return StageEvidence(
        has_job=(directory / JOB_FILE).exists(),
        record=record,
        unreadable=unreadable,
        damage=damage,
        proof=proven,
        holder="" if alive is None else str(alive),
        has_reported=has_reported,
        is_ended_here=holder is not None and holder.is_here and alive is None,
        job=job,
        failure_code=(whole_number(failure.get("exit_code")) or ExitCode.STAGE) if failure else None,
        failure=str(failure.get("message", "")),
        checkpoint=checkpoint_position(directory).step,
        progress=progress,
    )


def _touched_lately(lease: Path, now: float | None) -> bool:
    """Return True while a holder on another host renews its lease; two hosts' clocks may differ by some seconds."""
    try:
        return (time.time() if now is None else now) - lease.stat().st_mtime <= ALIVE_SECONDS
    except OSError:
        return False


def checkpoint_position(directory: Path) -> Position:
    """Return where the newest checkpoint stands, or how many batches of records there are; nothing is verified."""
    return max(positions_in(directory / STATE), default=Position(finished_batches(directory)))


def checkpoint_step(directory: Path) -> int:
    """Return the finished steps of the newest checkpoint, 0 when there is none."""
    return checkpoint_position(directory).step


def read_progress(directory: Path) -> dict[str, Any]:
    """Return what the stage process has last said about itself, empty when nothing yet."""
    return dict(read_json_or_empty(directory / PROGRESS))


def whole_number(value: Any) -> int | None:
    """Return a whole number where a file has one: it may be half-written, or another's."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and value == value
    return int(value) if is_number and abs(value) < float("inf") else None


def job_now(stage_dir: Path, *, now: float | None = None) -> JobNow | None:
    """Return the newest job of a stage, by what its agents and its supervisor have written; None where nobody knows."""
    submissions = numbers(stage_dir)
    if not submissions:
        return None
    submission = read_submission(JobFiles(stage_dir, submissions[-1]))
    if submission is None or submission.ended or submission.job_id is None:
        return None
    records = [*JobFiles(stage_dir, submission.number).nodes()]
    name = f"{submission.scheduler} job {submission.job_id}"
    if not records:
        return JobNow(stands="queued", why=f"waits in the queue as {name}{_offer(stage_dir, submission, now)}")
    latest = max(record.restart for record in records)
    return _running_job(stage_dir, submission, [record for record in records if record.restart == latest], name, now)


def _offer(stage_dir: Path, submission: Submission, now: float | None) -> str:
    """Return the way on with fewer nodes, of a begun stage whose job has waited long; no run takes it by itself.

    Other ranks add numbers in another order, so that the result has other bits: people decide that.
    """
    waited = (time.time() if now is None else now) - submission.submitted_at
    stage, step = read_json_or_empty(stage_dir / JOB_FILE).get("stage"), checkpoint_step(stage_dir)
    if submission.nodes == 1 or waited < OFFER_SECONDS or not step or not stage:
        return ""
    fewer = submission.nodes - 1
    command = f"charter run --reshard --set pipeline.{stage}.resources.num_nodes={fewer}"
    return (
        f" for {format_seconds(waited)}; `{command}` would go on from step {step} with {fewer} of its "
        f"{submission.nodes} nodes, but not with the same bits"
    )


def _running_job(
    stage_dir: Path, submission: Submission, records: list[NodeRecord], name: str, now: float | None
) -> JobNow | None:
    running = [record for record in records if record.ended_at is None]
    if not running:
        return JobNow(stands="ended")
    at = time.time() if now is None else now
    signs = [heartbeat_path(stage_dir, record.first_rank) for record in running]
    seen_at = [path.stat().st_mtime for path in signs if path.exists()] + [record.started_at for record in running]
    if at - max(seen_at) > ALIVE_SECONDS:
        return None
    hosts = ", ".join(sorted({record.host for record in running})[:4])
    what = f"{len(running)} of {len(submission.shards)} tasks" if submission.shards else "it"
    return JobNow(stands="running", why=f"{what} on {hosts} as {name}")


def budget_holds(events: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return why a budget holds stages, by stage name; under "" what holds all of them.

    A run that begins, or ends, holds nothing any more: what it did not start is pending again.
    """
    holds: dict[str, str] = {}
    for event in events:
        name = event.get("event")
        if name in ("run_started", "run_done") or (name == "run_stopped" and event.get("label") != "budget"):
            holds.clear()
        elif name == "budget_hold":
            holds[str(event.get("name", "")) if event.get("scope") == "stage" else ""] = str(event.get("message", ""))
    return holds
