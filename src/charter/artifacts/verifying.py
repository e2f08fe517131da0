"""Check of all that a stage has written against its records, and remains of crashes that may be removed.

Remains are listed with their size. Nothing is among them that a run would use: only what no name of a finished thing
has.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from charter.artifacts import durable
from charter.artifacts.batch_files import batch_paths
from charter.artifacts.batch_files import damage as batch_damage
from charter.artifacts.file_facts import files_under
from charter.artifacts.job import JOB_FILE, read_job
from charter.artifacts.record import damaged_output, read_record
from charter.artifacts.store.copy import damage_of
from charter.errors import DataError

GarbageKind = Literal["half-written", "half-removed", "damaged", "undone", "other results"]


@dataclass(frozen=True, kw_only=True)
class Garbage:
    """One file or directory that nothing uses."""

    path: Path
    kind: GarbageKind
    bytes: int


def find_garbage(run_dir: Path, *, stages: Collection[Path]) -> list[Garbage]:
    """List the unused files below a run's directory; `stages` are the directories that the project's stages have now.

    Directories of stages under other fingerprints are `other results`: a file that is changed back uses them again.
    """
    return sorted(_found(run_dir, {path.resolve() for path in stages}), key=lambda item: item.path)


def remove_garbage(item: Garbage) -> None:
    """Remove one of them; for whoever holds the run's lease."""
    if item.path.is_dir():
        durable.discard_dir(item.path)
    else:
        durable.remove_file(item.path)


def _found(directory: Path, stages: Collection[Path]) -> Iterator[Garbage]:
    if not directory.is_dir():
        return
    for path in sorted(directory.iterdir()):
        if (kind := _kind(path, stages)) is not None:
            yield Garbage(path=path, kind=kind, bytes=_size(path))
        elif path.is_dir() and not path.is_symlink():
            yield from _found(path, stages)


def _kind(path: Path, stages: Collection[Path]) -> GarbageKind | None:
    if path.name.startswith(durable.TEMPORARY):
        return "half-written"
    if path.name.startswith(durable.DISCARDED):
        return "half-removed"
    if aside := durable.ASIDE.fullmatch(path.name):
        return "damaged" if aside[1] == "damaged" else "undone"
    is_stage = path.parent.name == "stages" and path.is_dir()
    return "other results" if is_stage and path.resolve() not in stages else None


def _size(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum((path / name).stat().st_size for name in files_under(path))


def damaged_in(directory: Path, *, database: str) -> Iterator[str]:
    """Yield the damage of a stage's job, record, outputs, batches and database, in words; its checkpoints are apart."""
    yield from _sealed(directory)
    for path in batch_paths(directory):
        if (wrong := batch_damage(path)) is not None:
            yield wrong
    yield from damaged_database(directory / database)


def damaged_database(path: Path) -> Iterator[str]:
    """Yield the damage of a database, if it is there."""
    if path.exists() and (wrong := damage_of(path)) is not None:
        yield f"{path} is damaged: {wrong}"


def _sealed(directory: Path) -> Iterator[str]:
    try:
        if (directory / JOB_FILE).exists():
            read_job(directory)
        record = read_record(directory)
        if record is not None and (wrong := damaged_output(directory, record, thorough=True)) is not None:
            yield f"{directory}: outputs: {wrong}"
    except DataError as error:
        yield str(error).partition("\n")[0]
