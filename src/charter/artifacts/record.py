"""The record of a finished stage: written last, so a stage directory that has one is complete."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from charter.artifacts import durable
from charter.artifacts.fingerprint import sha256_file
from charter.artifacts.job import Job
from charter.artifacts.whole_dir import broken_seal, write_sealed, wrong_name
from charter.errors import DataError

RECORD_FILE, OUTPUTS = "record.json", "outputs"
SCHEMA = "charter.record/2"
UNSEALED = "charter.record/1"
"""Records of this schema have no seal."""
_SEEN_FILE = "outputs.seen.json"
"""Sidecar: size and modification time of the outputs when their hashes were last checked."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """Record of a stage: the computation, its inputs and the software.

    No time, cost or path: those are in sidecars and in the ledger.
    """

    stage: str
    kind: str
    fingerprint: str
    identity: Mapping[str, Any]
    inputs: Mapping[str, Any]
    """Role -> list of {name, source, fingerprint}."""
    outputs: Mapping[str, str]
    """Path relative to `outputs/` -> SHA-256."""
    frozen: Mapping[str, str | int]
    versions: Mapping[str, str]
    step: int
    target_step: int
    notes: tuple[str, ...] = field(default=())
    """What a reader must know: `resharded at step 40: no longer bit-identical`."""

    def to_json(self) -> dict[str, Any]:
        """The record as plain JSON types."""
        return {"schema": SCHEMA, **{item.name: getattr(self, item.name) for item in fields(self)}}


def record_of(
    job: Job, *, outputs: Mapping[str, str], step: int, target_step: int, notes: tuple[str, ...] = ()
) -> Record:
    """The record of a job whose outputs are published."""
    inputs = {
        role: [{"name": item.name, "source": item.source, "fingerprint": item.fingerprint} for item in items]
        for role, items in job.inputs.items()
    }
    return Record(
        stage=job.stage,
        kind=job.kind,
        fingerprint=job.fingerprint,
        identity=dict(job.identity),
        inputs=inputs,
        outputs=dict(outputs),
        frozen=dict(job.frozen),
        versions=versions(),
        step=step,
        target_step=target_step,
        notes=notes,
    )


def versions() -> dict[str, str]:
    """Versions of what computes: Python, Charter, and the numerical libraries this process has loaded."""
    from charter import __version__

    by_name = {"charter": __version__, "python": ".".join(map(str, sys.version_info[:3]))}
    for name in ("torch", "transformers", "tokenizers", "safetensors", "numpy"):
        if (module := sys.modules.get(name)) is not None and hasattr(module, "__version__"):
            by_name[name] = str(module.__version__)
    return by_name


DAMAGED = [-1, 0, 0]
"""In place of size, time and inode of a file that was last read and found not to be as recorded."""


def write_record(stage_dir: Path, record: Record) -> None:
    """Write `record.json`, and remember the outputs as seen."""
    write_sealed(stage_dir / RECORD_FILE, record.to_json())
    _remember(stage_dir, record)


def read_record(stage_dir: Path) -> Record | None:
    """The record of a stage directory, None when the stage is not finished.

    A DataError when it cannot be read.
    """
    path = stage_dir / RECORD_FILE
    if not path.exists():
        return None
    advice = f"to compute the stage again from its last checkpoint, move the file away: mv {path} {path}.damaged"
    try:
        content = durable.read_json(path)
    except DataError as error:
        raise DataError(f"{error}\n  {advice}") from None
    names = {item.name for item in fields(Record)}
    if not isinstance(content, dict) or not names - {"notes"} <= set(content):
        missing = sorted(names - {"notes"} - set(content)) if isinstance(content, dict) else ["everything"]
        raise DataError(f"{path} is not a complete record: {', '.join(missing)} missing\n  {advice}")
    if (wrong := broken_seal(path, content)) is not None and content.get("schema") != UNSEALED:
        raise DataError(f"{path} {wrong}\n  {advice}")
    values = {name: content[name] for name in names if name in content}
    return Record(**{**values, "notes": tuple(values.get("notes", ()))})


def damaged_output(stage_dir: Path, record: Record, *, thorough: bool = False) -> str | None:
    """Return the damage of the outputs in words; None when every file is as recorded.

    Files whose size and modification time are those of the last check are not hashed again unless `thorough`.
    """
    verified = {} if thorough else _seen(stage_dir)
    for relative, expected in sorted(record.outputs.items()):
        if (refused := wrong_name(relative)) is not None:
            return f"the record names a file that is refused: {refused}"
        path = stage_dir / OUTPUTS / relative
        if not path.is_file():
            return f"file {relative} is missing"
        if verified.get(relative) == _stat(path):
            continue
        if (digest := sha256_file(path)) != expected:
            # Kept for views that compare sizes alone: no file has this size, so that they say so too.
            durable.write_hint(stage_dir / _SEEN_FILE, {**_seen(stage_dir), relative: DAMAGED})
            return f"file {relative} has sha256 {digest[:12]}..., recorded {expected[:12]}..."
    if not record.outputs:
        return "the record lists no outputs"
    if any(verified.get(relative) != _stat(stage_dir / OUTPUTS / relative) for relative in record.outputs):
        _remember(stage_dir, record)
    return None


def changed_output(stage_dir: Path, record: Record) -> str | None:
    """Return what is wrong with the outputs by their sizes alone; None when none has changed its size since verified.

    Reads no file and writes none. A file that was never verified here is only looked for.
    """
    verified = _seen(stage_dir)
    for relative in sorted(record.outputs):
        if (refused := wrong_name(relative)) is not None:
            return f"the record names a file that is refused: {refused}"
        path = stage_dir / OUTPUTS / relative
        if not path.is_file():
            return f"file {relative} is missing"
        size = path.stat().st_size
        if verified.get(relative) == DAMAGED:
            return f"file {relative} was not as recorded when it was last read"
        if relative in verified and verified[relative][0] != size:
            return f"file {relative} has {size:,} bytes, {verified[relative][0]:,} when it was verified"
    return None if record.outputs else "the record lists no outputs"


def _stat(path: Path) -> list[int]:
    status = os.stat(path)
    return [status.st_size, status.st_mtime_ns, status.st_ino]


def _seen(stage_dir: Path) -> dict[str, list[int]]:
    try:
        content = durable.read_json(stage_dir / _SEEN_FILE)
    except DataError:
        return {}
    return content if isinstance(content, dict) else {}


def _remember(stage_dir: Path, record: Record) -> None:
    verified = {relative: _stat(stage_dir / OUTPUTS / relative) for relative in record.outputs}
    # Who verifies what was verified before leaves the directory as it is.
    if verified != _seen(stage_dir):
        durable.write_hint(stage_dir / _SEEN_FILE, verified)
