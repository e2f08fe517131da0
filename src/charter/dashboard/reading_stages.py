"""The stages of a project from their directories: nothing is hashed, nothing is written but the cache of hashes."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from charter.artifacts.checkpoints import STATE, positions_in
from charter.artifacts.job import JOB_FILE
from charter.artifacts.stage_dir import PROGRESS
from charter.artifacts.stage_state import Phase, StageState, read_stage, stage_state
from charter.artifacts.whole_dir import MANIFEST
from charter.dashboard.snapshot import Json, LedgerNow, StageNow
from charter.dashboard.stamped import JsonFiles, stamp_of
from charter.run.graph import Pipeline, PlannedStage
from charter.run.paths import stages_dir
from charter.run.staleness import states_of
from charter.tracking.jsonl import IMPORTED_METRICS


@dataclass(frozen=True, kw_only=True)
class Looked:
    """What stages are judged by beside their directories."""

    root: Path
    ledger: LedgerNow
    planned: Mapping[str, Json]
    now: float
    holds: Mapping[str, str] = field(default_factory=dict)
    """Why a budget holds stages, by name; under "" what holds all."""

    @property
    def signs(self) -> dict[str, float]:
        """Newest heartbeat of running attempts by stage."""
        newest: dict[str, float] = {}
        for attempt in self.ledger.running:
            newest[attempt.stage] = max(attempt.last_heartbeat, newest.get(attempt.stage, 0.0))
        return newest


def planned_stages(plan: Json | None) -> dict[str, Json]:
    """The stages of a plan by name."""
    stages = (plan or {}).get("stages")
    return {str(item["name"]): item for item in stages if "name" in item} if isinstance(stages, list) else {}


def stages_of(pipeline: Pipeline, looked: Looked, files: JsonFiles) -> tuple[StageNow, ...]:
    """Return every stage of the file, in execution order."""
    states = states_of(pipeline, proof="sizes", signs=looked.signs, holds=looked.holds, read=files.read, now=looked.now)
    return tuple(_stage(pipeline.stages[name], state, looked, files) for name, state in states.items())


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
            _left(name, kind, path, fingerprint, looked, files, inputs=tuple(name for name in reads if name in newest))
        )
    return tuple(found)


def _started(path: Path) -> int:
    return (stamp_of(path / JOB_FILE) or (0, 0, 0))[0]


def _stage(stage: PlannedStage, state: StageState, looked: Looked, files: JsonFiles) -> StageNow:
    has_files = any((stage.directory / name).exists() for name in (JOB_FILE, IMPORTED_METRICS))
    return _shown(
        stage.name, stage.spec.kind, stage.fingerprint, state, stage.directory if has_files else None, looked, files,
        inputs=stage.stage_inputs, outside=stage.outside_inputs, needs_approval=stage.spec.needs_approval,
    )  # fmt: skip


def _left(
    name: str,
    kind: str,
    directory: Path,
    fingerprint: str,
    looked: Looked,
    files: JsonFiles,
    *,
    inputs: tuple[str, ...],
) -> StageNow:
    evidence = read_stage(directory, proof="sizes", read=files.read, now=looked.now)
    found = stage_state(replace(evidence, last_sign=looked.signs.get(name)), now=looked.now)
    return _shown(name, kind, fingerprint, found, directory, looked, files, inputs=inputs)


def _shown(
    name: str,
    kind: str,
    fingerprint: str,
    found: StageState,
    directory: Path | None,
    looked: Looked,
    files: JsonFiles,
    *,
    inputs: tuple[str, ...],
    outside: tuple[str, ...] = (),
    needs_approval: bool = False,
) -> StageNow:
    progress = files.read(directory / PROGRESS) if directory else {}
    return StageNow(
        name=name,
        kind=kind,
        phase=found.phase,
        why="" if found.phase is Phase.RUNNING else found.why,
        step=found.step,
        target_step=found.target_step,
        unit=str(progress.get("unit") or "step"),
        inputs=inputs,
        outside_inputs=outside,
        needs_approval=needs_approval,
        directory=directory,
        fingerprint=fingerprint,
        progress=progress,
        failure=found.why if found.phase is Phase.FAILED else "",
        checkpoint_at=_saved_at(directory) if directory else None,
        updated_at=_number(progress.get("updated_at")),
        outputs=len(found.outputs),
        planned=looked.planned.get(name, {}),
    )


def _saved_at(directory: Path) -> float | None:
    positions = positions_in(directory / STATE)
    stamp = stamp_of(directory / STATE / positions[-1].directory / MANIFEST) if positions else None
    return None if stamp is None else stamp[0] / 1e9


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None
