"""The checkpoints of a stage: their names, manifests, verification, and which of them are kept.

A checkpoint is a directory that appeared whole under the name of its position and never changes. What is damaged or no
longer on the path is renamed, never deleted; what retention removes is older than enough verified ones.
"""

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from charter.artifacts import durable
from charter.artifacts.fence import token_of
from charter.artifacts.fingerprint import FileFact, describe, differences, facts_of, files_under
from charter.artifacts.job import Job
from charter.artifacts.whole_dir import MANIFEST, below, read_sealed, sealed_text
from charter.errors import DataError, UsageError

_NAME = re.compile(r"step-(\d{8,})(?:-([1-9]\d*))?")


@dataclass(frozen=True, order=True)
class Position:
    """Finished steps, and finished parts of the step after them.

    A step is an optimizer step, a rollout with its updates, a batch of records. Steps of one part are always at part 0.
    """

    step: int
    part: int = 0

    @property
    def directory(self) -> str:
        """The name of a checkpoint's directory.

        >>> Position(12).directory, Position(12, 2).directory
        ('step-00000012', 'step-00000012-2')
        """
        return f"step-{self.step:08d}" + (f"-{self.part}" if self.part else "")

    def __str__(self) -> str:
        """The shortest name: `12`, or `12-2` in the middle of a step."""
        return f"{self.step}-{self.part}" if self.part else str(self.step)


def position_of(directory: str) -> Position | None:
    """The position that a directory's name stands for; None for other names, so for what was set aside.

    >>> position_of("step-00000012-2"), position_of("step-00000012.damaged-1")
    (Position(step=12, part=2), None)
    """
    match = _NAME.fullmatch(directory)
    return Position(int(match[1]), int(match[2] or 0)) if match else None


@dataclass(frozen=True, kw_only=True)
class Held:
    """A checkpoint as retention sees it."""

    position: Position
    verified: bool
    """Written or checked by this very process."""
    metric: float | None = None
    """How good the model was, higher is better."""
    pinned: bool = False


@dataclass(frozen=True, kw_only=True)
class CheckpointRetention:
    """Kept checkpoints: the newest `keep_last`, every `keep_every`-th step, the best, those pinned or gone back to."""

    keep_last: int
    keep_every: int | None = None
    keep_best: bool = False
    go_back_steps: int | None = None
    """How far training may have to go back from the newest one (`guard: on_divergence: roll_back`)."""

    def removable(self, stored: Iterable[Held]) -> list[Position]:
        """The positions that may be removed, oldest first.

        Only what is older than `keep_last` verified checkpoints ever goes, and nothing while the newest is not
        verified: so at least one verified checkpoint is left by any sequence of saves and removals.
        """
        newest_first = sorted(stored, key=lambda item: item.position, reverse=True)
        if not newest_first or not newest_first[0].verified:
            return []
        retained = {item.position for item in newest_first if item.pinned or self._is_on_the_grid(item.position)}
        if self.keep_best and (best := _best(newest_first)) is not None:
            retained.add(best)
        retained |= self._to_go_back_to([item.position for item in reversed(newest_first)])
        verified, removable = 0, []
        for item in newest_first:
            if verified >= max(1, self.keep_last) and item.position not in retained:
                removable.append(item.position)
            verified += item.verified
        return removable[::-1]

    def _to_go_back_to(self, oldest_first: list[Position]) -> set[Position]:
        """The newest one that lies far enough back, and the one after it, which will lie far enough back next."""
        if self.go_back_steps is None:
            return set()
        limit = Position(max(0, oldest_first[-1].step - self.go_back_steps))
        early = [item for item in oldest_first if item <= limit]
        return {*early[-1:], *oldest_first[len(early) : len(early) + 1]}

    def _is_on_the_grid(self, position: Position) -> bool:
        return self.keep_every is not None and position.part == 0 and position.step % self.keep_every == 0


def _best(newest_first: Iterable[Held]) -> Position | None:
    """The newest of those with the highest metric."""
    best: Held | None = None
    for item in newest_first:
        if item.metric is not None and (best is None or best.metric is None or item.metric > best.metric):
            best = item
    return None if best is None else best.position


STATE, PINNED = "state", "pinned"
SCHEMA = "charter.checkpoint/2"
RESHARDED = "resharded"
"""Frozen value that says that a stage may go on in another layout, and where it did."""
_MOST_SHOWN = 6


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A verified checkpoint."""

    position: Position
    path: Path
    manifest: Mapping[str, Any]

    @property
    def step(self) -> int:
        """Finished steps."""
        return self.position.step


class Checkpoints:
    """The checkpoints in one stage directory, as the process that works there sees them."""

    def __init__(self, stage_dir: Path, job: Job) -> None:
        self.directory = stage_dir / STATE
        self.job = job
        self.retention = retention_of(job)
        self._verified: set[Position] = set()

    def positions(self) -> list[Position]:
        """List the positions that are there, oldest first, verified or not."""
        return positions_in(self.directory)

    def path_of(self, position: Position) -> Path:
        """Return the path of a checkpoint, there or not."""
        return self.directory / position.directory

    def sweep(self) -> None:
        """Remove what a crash left half-written."""
        durable.sweep(self.directory)

    def newest(self, *, world_size: int = 1) -> Checkpoint | None:
        """The newest one whose every file has its recorded hash; damaged ones are set aside on the way."""
        for position in reversed(self.positions()):
            wrong = damage(self.path_of(position))
            if wrong is None:
                return self.accept(position, world_size=world_size)
            self.set_damaged_aside(position, wrong)
        return None

    def accept(self, position: Position, *, world_size: int = 1) -> Checkpoint:
        """A checkpoint that was found undamaged, when it belongs to this job."""
        path = self.path_of(position)
        manifest = read_sealed(path / MANIFEST)
        if manifest["fingerprint"] != self.job.fingerprint:
            raise DataError(_of_another_run(path, manifest, self.job))
        if manifest["world_size"] != world_size and RESHARDED not in self.job.frozen:
            raise DataError(
                f"{path} was written by {manifest['world_size']} processes, and this stage has {world_size}\n"
                "  give it as many, or go on with --reshard (the record will say that it is no longer bit-identical)"
            )
        self._verified.add(position)
        return Checkpoint(position=position, path=path, manifest=manifest)

    def set_damaged_aside(self, position: Position, wrong: str) -> None:
        """Rename a damaged checkpoint and say so in one line."""
        aside = durable.move_aside(self.path_of(position), "damaged")
        print(
            f"checkpoint {position.directory} is damaged ({wrong}); kept as {aside.name}, taking the one before",
            file=sys.stderr,
        )

    def set_aside_after(self, position: Position) -> None:
        """Rename every checkpoint that is younger, newest first, so that a crash in between leaves no gap."""
        for younger in reversed(self.positions()):
            if younger > position:
                durable.move_aside(self.path_of(younger), "undone")

    def manifest_text(
        self,
        position: Position,
        files: Mapping[str, FileFact],
        *,
        world_size: int = 1,
        metric: float | None = None,
    ) -> str:
        """The text of the manifest of a new checkpoint."""
        return sealed_text(
            {
                "schema": SCHEMA,
                "stage": self.job.stage,
                "fingerprint": self.job.fingerprint,
                "identity": dict(self.job.identity),
                "step": position.step,
                "part": position.part,
                "metric": metric,
                "frozen": dict(self.job.frozen),
                "world_size": world_size,
                "fence": token_of(self.directory),
                "files": {relative: asdict(fact) for relative, fact in files.items()},
            }
        )

    def expected_bytes(self) -> int:
        """The size of the newest one: about what the next will need."""
        return sum(
            (path / name).stat().st_size
            for path in map(self.path_of, self.positions()[-1:])
            for name in files_under(path)
        )

    def published(self, position: Position) -> None:
        """Count a new checkpoint as verified, and remove what it makes superfluous."""
        self._verified.add(position)
        for old in self.retention.removable([self._held(item) for item in self.positions()]):
            durable.discard_dir(self.path_of(old))

    def _held(self, position: Position) -> Held:
        path = self.path_of(position)
        return Held(
            position=position,
            verified=position in self._verified,
            metric=_metric(path) if self.retention.keep_best else None,
            pinned=(path / PINNED).exists(),
        )


def retention_of(job: Job) -> CheckpointRetention:
    """Return the retention of checkpoints that a job asks for."""
    guard = getattr(job.spec, "guard", None)
    ahead = getattr(job.spec, "ahead", 0)  # data that were read ahead are gone back behind too
    return CheckpointRetention(
        keep_last=job.keep_last,
        keep_every=job.keep_every,
        keep_best=job.keep_best,
        go_back_steps=guard.roll_back_steps + ahead if guard and guard.on_divergence == "roll_back" else None,
    )


def positions_in(directory: Path) -> list[Position]:
    """The positions of the checkpoints in a `state` directory, oldest first."""
    if not directory.is_dir():
        return []
    positions = (position_of(path.name) for path in directory.iterdir() if path.is_dir())
    return sorted(position for position in positions if position is not None)


def damage(path: Path, *, share: int = 0, shares: int = 1) -> str | None:
    """Return the damage of a checkpoint in words, or None.

    With `shares` processes each hashes every so-many-th file; the manifest is checked by all.
    """
    try:
        manifest = read_sealed(path / MANIFEST)
        files = {relative: FileFact(**fact) for relative, fact in manifest["files"].items()}
        if position_of(path.name) != Position(manifest["step"], manifest["part"]):
            return f"it is the checkpoint of position {Position(manifest['step'], manifest['part'])}"
        _ = manifest["fingerprint"], manifest["stage"], manifest["world_size"]
        for name in files:
            below(path, name)
    except DataError as error:
        return str(error)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return f"its manifest is incomplete: {error}"
    own = sorted(files)[share::shares]
    if missing := [relative for relative in own if not (path / relative).is_file()]:
        return f"{missing[0]} is missing"
    for relative, actual in zip(own, facts_of([path / relative for relative in own]), strict=True):
        if actual.bytes != files[relative].bytes:
            return f"{relative} has {actual.bytes} bytes, recorded {files[relative].bytes}"
        if actual.sha256 != files[relative].sha256:
            return f"{relative} does not have its recorded sha256"
    return None


def files_of(path: Path) -> dict[str, FileFact]:
    """Return the facts of the files in a checkpoint's manifest."""
    files = read_sealed(path / MANIFEST)["files"]
    for name in files:
        below(path, name)
    return {name: FileFact(**fact) for name, fact in files.items()}


def _metric(path: Path) -> float | None:
    try:
        value = read_sealed(path / MANIFEST).get("metric")
    except DataError:
        return None
    return None if value is None else float(value)


def _of_another_run(path: Path, manifest: Mapping[str, Any], job: Job) -> str:
    identity = manifest.get("identity") or {}
    changes = differences(identity, job.identity) if identity and job.identity else []
    lines = [f"  {describe(*item)}" for item in changes[:_MOST_SHOWN]]
    if len(changes) > _MOST_SHOWN:
        lines.append(f"  and {len(changes) - _MOST_SHOWN} more")
    return "\n".join(
        [
            f"{path} is a checkpoint of another run: stage {manifest['stage']} with fingerprint "
            f"{manifest['fingerprint'][:8]}, where stage {job.stage} with {job.fingerprint[:8]} is expected",
            *lines,
            "  move it away to start this stage without it; nothing was changed",
        ]
    )


@dataclass(frozen=True, kw_only=True)
class ListedCheckpoint:
    """Listing of a checkpoint: position, size and damage."""

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
    checkpoints = []
    for position in positions_in(stage_dir / STATE):
        try:
            checkpoints.append(_look_at(stage_dir / STATE / position.directory, position, verify=verify))
        except FileNotFoundError:
            continue
    return checkpoints


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
        available = ", ".join(map(str, there)) or "none"
        raise UsageError(f"{stage_dir.name} has no checkpoint {position}; it has {available}")
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
    size = file.stat().st_size
    return None if size == fact["bytes"] else f"{name} has {size} bytes, recorded {fact['bytes']}"


def names_of_damaged(checkpoints: Sequence[ListedCheckpoint]) -> list[str]:
    """The damaged ones, each with what is wrong."""
    return [f"{item.path}: {item.damage}" for item in checkpoints if item.damage is not None]
