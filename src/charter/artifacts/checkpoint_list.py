"""The checkpoints of a stage as seen from outside its process: listed, pinned, verified. Nothing is renamed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from charter.artifacts import durable
from charter.artifacts.checkpoints import PINNED, STATE, damage, positions_in
from charter.artifacts.file_facts import files_under
from charter.artifacts.position import Position, position_of
from charter.artifacts.sealed import read_sealed
from charter.artifacts.whole_dir import MANIFEST
from charter.errors import DataError, UsageError


@dataclass(frozen=True, kw_only=True)
class ListedCheckpoint:
    """What is known of a checkpoint."""

    position: Position
    path: Path
    bytes: int
    """What its files hold; hard links count for each that has them."""
    metric: float | None
    world_size: int | None
    pinned: bool
    written_at: float
    """Seconds since 1970."""
    verified: bool
    """Whether every file was read and has its recorded hash; else only manifest and sizes were looked at."""
    damage: str | None
    """What is wrong with it, in words."""


def listed(stage_dir: Path, *, verify: bool = False) -> list[ListedCheckpoint]:
    """The checkpoints of a stage, oldest first; what is removed meanwhile by the stage is left out."""
    found = []
    for position in positions_in(stage_dir / STATE):
        try:
            found.append(_look_at(stage_dir / STATE / position.directory, position, verify=verify))
        except FileNotFoundError:
            continue
    return found


def pin(stage_dir: Path, position: Position) -> Path:
    """Keep a checkpoint whatever retention says; refused where it is not there."""
    path = _existing(stage_dir, position)
    try:
        durable.write_file(path / PINNED, "")
    except FileNotFoundError:
        raise UsageError(f"{path} was removed by retention meanwhile; pin a newer one") from None
    return path


def unpin(stage_dir: Path, position: Position) -> Path:
    """Let retention decide again; the next save may remove it."""
    path = _existing(stage_dir, position)
    (path / PINNED).unlink(missing_ok=True)
    durable.sync_dir(path)
    return path


def parse_position(text: str) -> Position:
    """A position as it is printed: `12`, `12-2`, or the name of the directory.

    >>> parse_position("12"), parse_position("12-2"), parse_position("step-00000012")
    (Position(step=12, part=0), Position(step=12, part=2), Position(step=12, part=0))
    """
    step, dash, part = text.partition("-")
    named = f"step-{int(step):08d}{dash}{part}" if step.isascii() and step.isdigit() else text
    if (position := position_of(named)) is None:
        raise UsageError(f"{text!r} is no checkpoint; give finished steps, as 12, or with parts, as 12-2")
    return position


def _existing(stage_dir: Path, position: Position) -> Path:
    path, there = stage_dir / STATE / position.directory, positions_in(stage_dir / STATE)
    if position not in there:
        known = ", ".join(map(str, there)) or "none"
        raise UsageError(f"{stage_dir.name} has no checkpoint {position}; it has {known}")
    return path


def _look_at(path: Path, position: Position, *, verify: bool) -> ListedCheckpoint:
    manifest: Mapping[str, object] = {}
    try:
        manifest = read_sealed(path / MANIFEST)
        wrong = damage(path) if verify else _wrong_sizes(path, manifest)
    except DataError as error:
        wrong = str(error)
    written = path.stat()
    metric, world_size = manifest.get("metric"), manifest.get("world_size")
    return ListedCheckpoint(
        position=position,
        path=path,
        bytes=sum((path / name).stat().st_size for name in files_under(path)),
        metric=float(metric) if isinstance(metric, (int, float)) else None,
        world_size=world_size if isinstance(world_size, int) else None,
        pinned=(path / PINNED).exists(),
        written_at=_written_at(path, written.st_mtime),
        verified=verify and wrong is None,
        damage=wrong,
    )


def _written_at(path: Path, otherwise: float) -> float:
    manifest = path / MANIFEST
    return manifest.stat().st_mtime if manifest.exists() else otherwise


def _wrong_sizes(path: Path, manifest: Mapping[str, object]) -> str | None:
    """The first file whose size is not as recorded, in words."""
    files = manifest.get("files")
    if not isinstance(files, Mapping):
        return "its manifest lists no files"
    return next(
        (wrong for name, fact in sorted(files.items()) if (wrong := _wrong_size(path / name, name, fact))), None
    )


def _wrong_size(file: Path, name: str, fact: Mapping[str, int]) -> str | None:
    if not file.is_file():
        return f"{name} is missing"
    found = file.stat().st_size
    return None if found == fact["bytes"] else f"{name} has {found} bytes, recorded {fact['bytes']}"


def names_of_damaged(found: Sequence[ListedCheckpoint]) -> list[str]:
    """The damaged ones, each with what is wrong."""
    return [f"{item.path}: {item.damage}" for item in found if item.damage is not None]
