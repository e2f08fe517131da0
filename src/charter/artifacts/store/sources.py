"""What of a stage's directory is copied, and in which lists; everything is named with the hash it is recorded with."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from charter.artifacts.batch_files import BATCHES, batch_paths
from charter.artifacts.checkpoints import PINNED, STATE, files_of
from charter.artifacts.file_facts import FileFact, fact_of_chunks, facts_of
from charter.artifacts.job import JOB_FILE
from charter.artifacts.position import Position
from charter.artifacts.record import OUTPUTS, RECORD_FILE, read_record
from charter.artifacts.store.copy import Copy, CopyKind, batches_name
from charter.artifacts.whole_dir import MANIFEST
from charter.errors import DataError

ROLL_BACKS, METRICS, TIMINGS = "roll_backs.json", "metrics.jsonl", "timings.json"
SIDECARS = (JOB_FILE, ROLL_BACKS, METRICS, TIMINGS)
"""Beside a checkpoint or outputs: what a resume reads, and what reports are made of."""
MOST_BATCHES = 1000
"""Files in one list: about 150 KB of text."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """A list to be made, and where its files lie."""

    copy: Copy
    base: Path
    contents: Mapping[str, bytes] = field(default_factory=dict)
    """Files that may change meanwhile, as they were."""


def checkpoint_source(stage_dir: Path, position: Position, fingerprint: str) -> Source:
    """A checkpoint with what belongs to it; a DataError when its manifest is not whole."""
    path = stage_dir / STATE / position.directory
    prefix = f"{STATE}/{position.directory}"
    contents = _sidecars(stage_dir)
    contents[f"{prefix}/{MANIFEST}"] = (path / MANIFEST).read_bytes()
    if (path / PINNED).exists():
        contents[f"{prefix}/{PINNED}"] = b""
    files = {f"{prefix}/{name}": fact for name, fact in files_of(path).items()}
    return _source(stage_dir, position.directory, "checkpoint", fingerprint, files, contents)


def outputs_source(stage_dir: Path) -> Source | None:
    """Finished outputs with their record; None while there is none."""
    if (record := read_record(stage_dir)) is None:
        return None
    files = {}
    for relative, sha256 in record.outputs.items():
        path = stage_dir / OUTPUTS / relative
        if not path.is_file():
            raise DataError(f"{path} is missing, though {RECORD_FILE} lists it")
        files[f"{OUTPUTS}/{relative}"] = FileFact(bytes=path.stat().st_size, sha256=sha256)
    contents = {**_sidecars(stage_dir), RECORD_FILE: (stage_dir / RECORD_FILE).read_bytes()}
    return _source(stage_dir, OUTPUTS, "outputs", record.fingerprint, files, contents)


def batches_source(stage_dir: Path, fingerprint: str, *, copied: Collection[str]) -> Source | None:
    """Batches of records that no list has yet, the first thousand of them; None when there are none."""
    names = [f"{BATCHES}/{path.name}" for path in batch_paths(stage_dir)]
    new = [name for name in names if name not in copied][:MOST_BATCHES]
    if not new:
        return None
    files = dict(zip(new, facts_of([stage_dir / name for name in new]), strict=True))
    job = {name: content for name, content in _sidecars(stage_dir).items() if name == JOB_FILE}
    return _source(stage_dir, batches_name(new), "batches", fingerprint, files, job)


def file_source(base: Path, names: Collection[str], name: str, fingerprint: str) -> Source:
    """A list of sidecars: files that lie below `base` and do not change."""
    files = dict(zip(sorted(names), facts_of([base / item for item in sorted(names)]), strict=True))
    return Source(copy=Copy(name=name, kind="sidecars", fingerprint=fingerprint, files=files), base=base)


def _source(
    stage_dir: Path,
    name: str,
    kind: CopyKind,
    fingerprint: str,
    files: Mapping[str, FileFact],
    contents: Mapping[str, bytes],
) -> Source:
    facts = {**files, **{relative: fact_of_chunks([content]) for relative, content in contents.items()}}
    copy = Copy(name=name, kind=kind, fingerprint=fingerprint, files=facts)
    return Source(copy=copy, base=stage_dir, contents=contents)


def _sidecars(stage_dir: Path) -> dict[str, bytes]:
    return {name: (stage_dir / name).read_bytes() for name in SIDECARS if (stage_dir / name).exists()}
