"""The state of every stage, in the shape that machines read (`charter status --json`)."""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from charter.artifacts.job import read_hosted_facts
from charter.artifacts.job_files import JobFiles, numbers
from charter.artifacts.lease import LEASE, STALE_AFTER_SECONDS, read_holder
from charter.artifacts.stage_state import Phase, read_progress
from charter.errors import CharterError
from charter.run.approval import waiting_words, waits_for_approval
from charter.run.events import EVENT_BYTES, last_events
from charter.run.graph import PlannedStage, build_pipeline
from charter.run.paths import run_dir
from charter.run.staleness import states_of
from charter.spec.project import Project
from charter.spec.stage import is_hosted
from charter.tracking.progress import EVENTS_FILE

if TYPE_CHECKING:
    from charter.artifacts.job_files import Submission
    from charter.evaluate.outcome import EvaluationOutcome
    from charter.launch.scheduler import JobState


SUPERVISOR_DIR = "supervisor"
OF_RUNS = frozenset({"run_started", "run_stopped", "run_done"})


@dataclass(frozen=True, kw_only=True)
class SentSupervisor:
    """The supervisor that was sent last."""

    engine: str
    job: str | None
    """None where the scheduler's answer was lost with the sender: whether it has the job is not known."""
    sent_at: float
    """Unix seconds, as all times here."""
    state: Literal["queued", "running", "ended", "lost"]
    """`lost`: it began, has not ended, and is not heard of any more."""
    reason: str
    """The scheduler's word, or how the run ended."""
    known_at: float
    asked: bool
    """Whether the scheduler has said so just now; otherwise it is what the files of the run said last."""


def sent_supervisor(root: Path, *, environ: Mapping[str, str] = os.environ) -> dict[str, Any] | None:
    """Return its state in the shape that machines read; None where none was sent from here."""
    directory = run_dir(root) / SUPERVISOR_DIR
    submitted = numbers(directory)
    if not submitted:
        return None
    from charter.artifacts.job_files import read_submission

    submission = read_submission(JobFiles(directory, submitted[-1]))
    if submission is None:
        return None
    state = _asked(submission, environ)
    if state is None:
        return asdict(_by_files(submission, root))
    if state.phase == "unknown":
        return asdict(_forgotten(submission, root))
    now = time.time()
    return asdict(_sent(submission, state=state.phase, reason=state.reason, known_at=now, asked=True))


def _asked(submission: "Submission", environ: Mapping[str, str]) -> "JobState | None":
    """The scheduler's word, of schedulers that give it at once; Ray and Kubernetes take seconds to be reached."""
    if submission.job_id is None:
        return None
    try:
        if submission.scheduler == "slurm":
            from charter.launch.slurm.queue import glance

            return glance(submission.job_id, environ)
        if submission.scheduler == "subprocess":
            from charter.launch.scheduler import SubprocessScheduler

            return SubprocessScheduler().poll([submission.job_id])[submission.job_id]
    except CharterError:
        return None
    return None


def _forgotten(submission: "Submission", root: Path) -> SentSupervisor:
    """A scheduler forgets jobs that have ended, and no others."""
    last = _by_files(submission, root)
    reason = last.reason if last.state == "ended" else f"{submission.scheduler} does not know the job any more"
    return _sent(submission, state="ended", reason=reason, known_at=last.known_at, asked=True)


def _by_files(submission: "Submission", root: Path) -> SentSupervisor:
    lease = run_dir(root) / LEASE
    holder = read_holder(lease)
    if holder is not None and holder.since >= submission.submitted_at:
        touched = _touched_at(lease)
        if holder.is_alive or (not holder.is_here and time.time() - touched < STALE_AFTER_SECONDS):
            return _sent(submission, state="running", reason=str(holder), known_at=time.time())
        return _sent(submission, state="lost", reason=str(holder), known_at=touched)
    last = _last_word(run_dir(root) / EVENTS_FILE, since=submission.submitted_at)
    if last is None:
        return _sent(submission, state="queued", reason="", known_at=submission.submitted_at)
    if last["event"] == "run_started":
        return _sent(submission, state="lost", reason="", known_at=last["time"])
    how = "all is done" if last["event"] == "run_done" else str(last.get("label", "stopped"))
    return _sent(submission, state="ended", reason=how, known_at=last["time"])


def _sent(
    submission: "Submission",
    *,
    state: Literal["queued", "running", "ended", "lost"],
    reason: str,
    known_at: float,
    asked: bool = False,
) -> SentSupervisor:
    return SentSupervisor(
        engine=submission.scheduler,
        job=submission.job_id,
        sent_at=submission.submitted_at,
        state=state,
        reason=reason,
        known_at=known_at,
        asked=asked,
    )


def _touched_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _last_word(path: Path, *, since: float) -> dict[str, Any] | None:
    """Return the last event of a whole run since a time."""
    for event in reversed(last_events(path, most=EVENT_BYTES)):
        if event.get("event") in OF_RUNS:
            return event if float(event.get("time", 0.0)) >= since else None
    return None


EXACT = "bit_exact"
"""Of the native engine, in one layout on one machine type."""


def status_of(project: Project, root: Path, *, thorough: bool = False) -> dict[str, Any]:
    """The run's name, and how far every stage is, why it is so, and how it goes beside its plan.

    `supervisor` is the one that `charter submit` has sent, None where none was. `outputs` maps paths relative to the
    stage's `outputs` directory to their SHA-256, and is empty until the stage is done.
    """
    pipeline = build_pipeline(project, root)
    attempts, signs = _attempts(project, pipeline.root)
    stages = []
    for name, verdict in states_of(pipeline, proof="thorough" if thorough else "hashes", signs=signs).items():
        stage = pipeline.stages[name]
        why = verdict.why
        if not verdict.done and verdict.phase is not Phase.WAITING and waits_for_approval(stage, pipeline.root):
            why = f"{why}; {waiting_words(stage)}"
        if missing := pipeline.inputs.problems_of(stage.outside_inputs):
            why = "; ".join([why, *(f"{problem.path}: {problem.message}" for problem in missing)])
        stages.append(
            {
                "name": name,
                "kind": stage.spec.kind,
                "state": verdict.state,
                "phase": verdict.phase.value,
                "step": verdict.step,
                "target_step": verdict.target_step,
                "attempts": attempts.get(stage.fingerprint + name, 0),
                "fingerprint": stage.fingerprint,
                "outputs": dict(verdict.outputs),
                "why": why,
                "directory": str(stage.directory),
                "engine": stage.spec.engine,
                "resume_guarantee": _guarantee(stage),
                "actual_over_planned": actual_over_planned(read_progress(stage.directory)),
            }
        )
    return {
        "run": project.name,
        "supervisor": sent_supervisor(pipeline.root),
        "stages": stages,
        "outcomes": [outcome.to_json() for outcome in _outcomes(stages)],
    }


def _outcomes(stages: Sequence[Mapping[str, Any]]) -> "list[EvaluationOutcome]":
    """Return the outcomes of the finished evaluations."""
    done = [stage for stage in stages if stage["kind"] == "eval" and stage["state"] == "done"]
    if not done:
        return []
    from charter.evaluate.outcome import outcome_of, read_results

    read = [(stage["name"], read_results(Path(stage["directory"]))) for stage in done]
    return [outcome_of(name, results) for name, results in read if results is not None]


def actual_over_planned(progress: Mapping[str, Any]) -> dict[str, float]:
    """Measured over planned seconds of a step and peak bytes, as a stage last said them; without those it has not.

    >>> actual_over_planned({"metrics": {"loss": 2.0, "actual_over_planned_seconds": 1.25}})
    {'seconds': 1.25}
    """
    metrics = progress.get("metrics") or {}
    ratios = {name: metrics.get(f"actual_over_planned_{name}") for name in ("seconds", "bytes")}
    return {name: float(value) for name, value in ratios.items() if isinstance(value, int | float)}


def _guarantee(stage: PlannedStage) -> str | None:
    """Return the guarantee of a killed stage that goes on; None where another engine has not started it."""
    if not is_hosted(stage.spec):
        return EXACT
    facts = read_hosted_facts(stage.directory)
    return None if facts is None else facts.guarantee


def _attempts(project: Project, root: Path) -> tuple[dict[str, int], dict[str, float]]:
    """Return attempts by fingerprint and stage, and the last heartbeat by stage; none when there is no ledger yet."""
    from charter.ledger.attempt_counts import attempt_counts, last_signs
    from charter.ledger.place import has_ledger, ledger_place

    place = ledger_place(run_dir(root), project.storage.ledger)
    if not has_ledger(place):
        return {}, {}
    counts = attempt_counts(place, run=project.run_in_ledger)
    return {fingerprint + stage: count for (stage, fingerprint), count in counts.items()}, last_signs(
        place, run=project.run_in_ledger
    )
