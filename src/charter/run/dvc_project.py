"""A project's pipeline as DVC sees it: `dvc.yaml` with its stages, `dvc.lock` with what finished ones read and made.

So `dvc status`, `dvc push` and `dvc pull` work on Charter's results. Stages that others wrote into the same files stay.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from charter.artifacts.data_versions import CACHE, dvc_fact, fill_cache, read_yaml, write_yaml
from charter.artifacts.record import OUTPUTS, damaged_output, read_record
from charter.errors import DataError, UsageError
from charter.run.graph import Pipeline, PlannedStage, build_pipeline
from charter.spec.project import Project

PIPELINE_FILE, LOCK_FILE = "dvc.yaml", "dvc.lock"
LOCK_SCHEMA = "2.0"
OURS = "charter"
"""Key in a stage's `meta` that says that Charter wrote it; its value is the fingerprint."""


@dataclass(frozen=True, kw_only=True)
class DvcWritten:
    """Stages in the files that were written."""

    stages: tuple[str, ...]
    locked: tuple[str, ...]
    """Those that are finished, so that DVC knows their outputs."""


def write_dvc(project: Project, root: Path) -> DvcWritten:
    """Write both files at the root of a project; its finished outputs go into DVC's cache where there is one."""
    pipeline = build_pipeline(project, root)
    described, locked = read_yaml(pipeline.root / PIPELINE_FILE), read_yaml(pipeline.root / LOCK_FILE)
    foreign = {
        name: stage
        for name, stage in (described.get("stages") or {}).items()
        if not isinstance(stage, dict) or OURS not in (stage.get("meta") or {})
    }
    if clash := sorted(foreign.keys() & pipeline.stages.keys()):
        raise UsageError(
            f"{pipeline.root / PIPELINE_FILE} has a stage {clash[0]!r} that Charter did not write; rename one of them"
        )
    stages = {name: _stage(pipeline, stage) for name, stage in pipeline.stages.items()}
    finished = {name: _lock(pipeline, stage) for name, stage in pipeline.stages.items() if _is_finished(stage)}
    foreign_locks = {name: stage for name, stage in (locked.get("stages") or {}).items() if name in foreign}
    write_yaml(pipeline.root / PIPELINE_FILE, {**described, "stages": {**foreign, **stages}})
    write_yaml(pipeline.root / LOCK_FILE, {"schema": LOCK_SCHEMA, "stages": {**foreign_locks, **finished}})
    return DvcWritten(stages=tuple(stages), locked=tuple(finished))


def _stage(pipeline: Pipeline, stage: PlannedStage) -> dict[str, Any]:
    """Outputs are `persist`, since DVC would remove them before it ran a stage, and Charter knows they are done."""
    return {
        "cmd": _command(stage),
        "deps": [path for path, _ in _inputs(pipeline, stage)],
        "outs": [{_output(pipeline, stage): {"persist": True}}],
        "meta": {OURS: stage.fingerprint},
    }


def _lock(pipeline: Pipeline, stage: PlannedStage) -> dict[str, Any]:
    outputs, cache = dvc_fact(stage.directory / OUTPUTS), pipeline.root / CACHE
    if cache.parents[2].is_dir():
        fill_cache(cache, stage.directory / OUTPUTS, outputs)
    return {
        "cmd": _command(stage),
        "deps": [{"path": path, **dvc_fact(where).entry()} for path, where in _inputs(pipeline, stage)],
        "outs": [{"path": _output(pipeline, stage), **outputs.entry()}],
    }


def _inputs(pipeline: Pipeline, stage: PlannedStage) -> list[tuple[str, Path]]:
    """Return the files that a stage reads, as DVC names them, sorted; patterns and catalog names are no files."""
    return sorted({_named(pipeline, path) for path in _paths(stage)})


def _paths(stage: PlannedStage) -> Iterator[Path]:
    for items in stage.inputs.values():
        for item in items:
            if item.path is not None and (item.source == "stage" or Path(item.path).exists()):
                yield Path(item.path)
    if stage.constitution:
        yield Path(stage.constitution)


def _named(pipeline: Pipeline, path: Path) -> tuple[str, Path]:
    inside = path.is_relative_to(pipeline.root)
    return (path.relative_to(pipeline.root) if inside else path).as_posix(), path


def _output(pipeline: Pipeline, stage: PlannedStage) -> str:
    return (stage.directory / OUTPUTS).relative_to(pipeline.root).as_posix()


def _command(stage: PlannedStage) -> str:
    return f"charter run --only {stage.name} --yes"


def _is_finished(stage: PlannedStage) -> bool:
    record = read_record(stage.directory)
    if record is None:
        return False
    if (wrong := damaged_output(stage.directory, record)) is not None:
        raise DataError(f"{stage.directory}: {wrong}; `charter artifacts checkpoints verify` tells all that is damaged")
    return True
