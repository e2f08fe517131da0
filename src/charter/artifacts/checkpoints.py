"""The checkpoints of a stage: their names, manifests, verification, and which of them are kept.

A checkpoint is a directory that appeared whole under the name of its position and never changes. What is damaged or no
longer on the path is renamed, never deleted; what retention removes is older than enough verified ones.
"""

import fnmatch
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from charter.artifacts import durable
from charter.artifacts.fence import token_of
from charter.artifacts.file_facts import FileFact, facts_of, files_under
from charter.artifacts.fingerprint import differences
from charter.artifacts.job import Job
from charter.artifacts.position import Position, position_of
from charter.artifacts.retention import Held, Retention
from charter.artifacts.safe_path import below
from charter.artifacts.sealed import read_sealed, sealed_text
from charter.artifacts.whole_dir import MANIFEST
from charter.errors import DataError

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
        """What is there, oldest first, verified or not."""
        return positions_in(self.directory)

    def path_of(self, position: Position) -> Path:
        """Where a checkpoint lies, or would."""
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


def retention_of(job: Job) -> Retention:
    """What a job says of which checkpoints are kept."""
    guard = getattr(job.spec, "guard", None)
    return Retention(
        keep_last=job.keep_last,
        keep_every=job.keep_every,
        keep_best=job.keep_best,
        go_back_steps=guard.roll_back_steps if guard and guard.on_divergence == "roll_back" else None,
    )


def positions_in(directory: Path) -> list[Position]:
    """The positions of the checkpoints in a `state` directory, oldest first."""
    if not directory.is_dir():
        return []
    found = (position_of(path.name) for path in directory.iterdir() if path.is_dir())
    return sorted(position for position in found if position is not None)


def damage(path: Path, *, share: int = 0, shares: int = 1) -> str | None:
    """What is wrong with a checkpoint, in words; None when nothing is.

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
    for relative, found in zip(own, facts_of([path / relative for relative in own]), strict=True):
        if found.bytes != files[relative].bytes:
            return f"{relative} has {found.bytes} bytes, recorded {files[relative].bytes}"
        if found.sha256 != files[relative].sha256:
            return f"{relative} does not have its recorded sha256"
    return None


def files_of(path: Path, pattern: str = "*") -> dict[str, FileFact]:
    """What a checkpoint's manifest says of the files whose names match."""
    files = read_sealed(path / MANIFEST)["files"]
    for name in files:
        below(path, name)
    return {name: FileFact(**fact) for name, fact in files.items() if fnmatch.fnmatchcase(name, pattern)}


def _metric(path: Path) -> float | None:
    try:
        value = read_sealed(path / MANIFEST).get("metric")
    except DataError:
        return None
    return None if value is None else float(value)


def _of_another_run(path: Path, manifest: Mapping[str, Any], job: Job) -> str:
    identity = manifest.get("identity") or {}
    found = differences(identity, job.identity) if identity and job.identity else []
    lines = [_difference(*item) for item in found[:_MOST_SHOWN]]
    if len(found) > _MOST_SHOWN:
        lines.append(f"  and {len(found) - _MOST_SHOWN} more")
    return "\n".join(
        [
            f"{path} is a checkpoint of another run: stage {manifest['stage']} with fingerprint "
            f"{manifest['fingerprint'][:8]}, where stage {job.stage} with {job.fingerprint[:8]} is expected",
            *lines,
            "  move it away to start this stage without it; nothing was changed",
        ]
    )


def _difference(name: str, old: Any, new: Any) -> str:
    section, _, rest = name.partition(".")
    if section == "inputs":
        return f"  input {rest} (a model, a stage's outputs or data) is another"
    if section == "constitution":
        return "  the constitution is another"
    return f"  {rest or section}: {_shown(old)} in the checkpoint, {_shown(new)} now"


def _shown(value: Any) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
