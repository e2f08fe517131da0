"""The stages of a project from their directories: nothing is hashed, nothing is written but the cache of hashes."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from charter.artifacts.checkpoints import STATE, positions_in
from charter.artifacts.group import FAILURE
from charter.artifacts.job import JOB_FILE
from charter.artifacts.lease import LEASE, read_holder
from charter.artifacts.record import RECORD_FILE
from charter.artifacts.stage_dir import PROGRESS
from charter.artifacts.whole_dir import MANIFEST
from charter.dashboard.snapshot import Json, LedgerNow, StageNow, State
from charter.dashboard.stamped import JsonFiles, stamp_of
from charter.run.approval import read_approval, waiting_words
from charter.run.graph import Pipeline, PlannedStage
from charter.run.paths import earlier_stage_dirs, stages_dir
from charter.run.staleness import describe_all
from charter.tracking.jsonl import IMPORTED_METRICS

SIGN_OF_LIFE_SECONDS = 60.0
"""An attempt of another machine whose ledger line is younger is taken to be running."""


@dataclass(frozen=True, kw_only=True)
class Looked:
    """What stages are judged by beside their directories."""

    root: Path
    ledger: LedgerNow
    planned: Mapping[str, Json]
    now: float


def planned_stages(plan: Json | None) -> dict[str, Json]:
    """The stages of a plan by name."""
    stages = (plan or {}).get("stages")
    return {str(item["name"]): item for item in stages if "name" in item} if isinstance(stages, list) else {}


def stages_of(pipeline: Pipeline, looked: Looked, files: JsonFiles) -> tuple[StageNow, ...]:
    """Every stage of the file, in execution order."""
    found: list[StageNow] = []
    for stage in pipeline.stages.values():
        done = {item.name for item in found if item.state == "done"}
        found.append(_stage(stage, looked, files, ready=done.issuperset(stage.stage_inputs)))
    return tuple(found)


def left_stages(looked: Looked, files: JsonFiles) -> tuple[StageNow, ...]:
    """The stages that a run has left, where there is no file that says which there are: the newest of each name."""
    newest: dict[str, Path] = {}
    directory = stages_dir(looked.root)
    for path in sorted(directory.iterdir()) if directory.is_dir() else ():
        name = path.name.rpartition("-")[0]
        if name and (path / JOB_FILE).exists():
            other = newest.get(name)
            if other is None or _started(path) > _started(other):
                newest[name] = path
    found = []
    for name, path in sorted(newest.items(), key=lambda item: _started(item[1])):
        job = files.read(path / JOB_FILE)
        inputs = [item for items in (job.get("inputs") or {}).values() for item in items if isinstance(item, dict)]
        reads = tuple(dict.fromkeys(str(item.get("name")) for item in inputs if item.get("source") == "stage"))
        fingerprint = str(job.get("fingerprint", ""))
        kind = str(job.get("kind", ""))
        found.append(
            _look(name, kind, path, fingerprint, looked, files, inputs=tuple(name for name in reads if name in newest))
        )
    return tuple(found)


def _started(path: Path) -> int:
    return (stamp_of(path / JOB_FILE) or (0, 0, 0))[0]


def _stage(stage: PlannedStage, looked: Looked, files: JsonFiles, *, ready: bool) -> StageNow:
    inputs, outside = stage.stage_inputs, stage.outside_inputs
    if not (stage.directory / JOB_FILE).exists():
        gate = stage.spec.needs_approval and read_approval(stage, looked.root) is None
        return StageNow(
            name=stage.name,
            kind=stage.spec.kind,
            state="waiting" if gate and ready else "pending",
            directory=stage.directory if (stage.directory / IMPORTED_METRICS).exists() else None,
            why=waiting_words(stage) if gate and ready else _why_new(stage, looked.root, files),
            inputs=inputs,
            outside_inputs=outside,
            needs_approval=stage.spec.needs_approval,
            fingerprint=stage.fingerprint,
            planned=looked.planned.get(stage.name, {}),
        )
    return _look(
        stage.name, stage.spec.kind, stage.directory, stage.fingerprint, looked, files,
        inputs=inputs, outside=outside, needs_approval=stage.spec.needs_approval,
    )  # fmt: skip


def _look(
    name: str,
    kind: str,
    directory: Path,
    fingerprint: str,
    looked: Looked,
    files: JsonFiles,
    *,
    inputs: tuple[str, ...],
    outside: tuple[str, ...] = (),
    needs_approval: bool = False,
) -> StageNow:
    alive = _is_alive(name, directory, looked)  # before the files: what has ended by then has left its last ones
    record, progress = files.read(directory / RECORD_FILE), files.read(directory / PROGRESS)
    failure = files.read(directory / FAILURE)
    checkpoint, saved_at = _newest_checkpoint(directory)
    step, target = _whole(progress.get("step")) or 0, _whole(progress.get("target_step"))
    state: State
    if record and record.get("fingerprint") == fingerprint:
        state, why = "done", "finished"
        step, target = _whole(record.get("step")) or step, _whole(record.get("target_step")) or target
    elif alive:
        state, why = "running", ""
    elif failure and failure.get("exit_code") != 6:
        state, why = "failed", str(failure.get("message", ""))
    else:
        state, step = "interrupted", checkpoint
        why = (
            f"stopped; goes on from its checkpoint at step {checkpoint}"
            if checkpoint
            else "stopped before a checkpoint"
        )
    return StageNow(
        name=name,
        kind=kind,
        state=state,
        why=why,
        step=step,
        target_step=target,
        unit=str(progress.get("unit") or "step"),
        inputs=inputs,
        outside_inputs=outside,
        needs_approval=needs_approval,
        directory=directory,
        fingerprint=fingerprint,
        progress=progress,
        failure=str(failure.get("message", "")) if state == "failed" else "",
        checkpoint_at=saved_at,
        updated_at=_number(progress.get("updated_at")),
        outputs=len(record.get("outputs") or ()),
        planned=looked.planned.get(name, {}),
    )


def _is_alive(name: str, directory: Path, looked: Looked) -> bool:
    """Whether its process lives here, or the ledger has heard of it a moment ago from elsewhere."""
    holder = read_holder(directory / LEASE)
    if holder is not None and holder.is_alive:
        return True
    if holder is not None and holder.is_here:
        return False
    heard = [attempt.last_heartbeat for attempt in looked.ledger.running if attempt.stage == name]
    return bool(heard) and looked.now - max(heard) < SIGN_OF_LIFE_SECONDS


def _newest_checkpoint(directory: Path) -> tuple[int, float | None]:
    positions = positions_in(directory / STATE)
    if not positions:
        return 0, None
    stamp = stamp_of(directory / STATE / positions[-1].directory / MANIFEST)
    return positions[-1].step, None if stamp is None else stamp[0] / 1e9


def _why_new(stage: PlannedStage, root: Path, files: JsonFiles) -> str:
    for directory in earlier_stage_dirs(root, stage.name):
        old = files.read(directory / JOB_FILE).get("identity")
        if isinstance(old, dict) and (words := describe_all(stage, old)):
            return "changed since it last ran: " + "; ".join(words)
    return "has not run yet"


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _whole(value: Any) -> int | None:
    """A whole number where a file has one: it may be half-written, or another's."""
    return int(value) if isinstance(value, int | float) and value == value else None
