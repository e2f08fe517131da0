"""Commands `charter artifacts checkpoints backup | restore | scrub`; damage in a run, and remains of crashes.

What a stage has written is checked against its records. Remains are listed with their size, so that they can be
removed: nothing is among them that a run would use, only what no name of a finished thing has.
"""

import queue
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from charter.artifacts import durable
from charter.artifacts.batch_files import batch_paths
from charter.artifacts.batch_files import damage as batch_damage
from charter.artifacts.checkpoints import Held, ListedCheckpoint, listed, retention_of
from charter.artifacts.fingerprint import files_under
from charter.artifacts.job import JOB_FILE, read_job
from charter.artifacts.lease import Lease
from charter.artifacts.record import damaged_output, read_record
from charter.artifacts.store.copy import Copies, damage_of, open_copies
from charter.artifacts.store.maintenance import (
    RUN_DATABASE,
    RUN_GROUP,
    STAGE_DATABASE,
    HeldByLists,
    Repair,
    Replicator,
    Restorer,
    abandoned_uploads,
    collect,
    prunable,
    scrub_group,
)
from charter.artifacts.store.place import BUCKET
from charter.errors import CharterError, DataError, UsageError
from charter.launch.tags import ObjectTags, object_tags, tags_of
from charter.run.events import Events
from charter.run.graph import Pipeline, build_pipeline
from charter.run.paths import hold_of, run_dir
from charter.run.watches import sample_now
from charter.spec.project import Project

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


def tagged_copies(where: str, *, project: Project, root: Path, tell: Callable[[str], None]) -> Copies:
    """The copies of a project in a place; what goes to a bucket has the tags of its stage and of the project.

    `tell` hears what a bucket cannot have of them: at once where they are not as S3 takes them, later where the store
    refuses them.
    """
    if not where.startswith(BUCKET):
        return open_copies(where, root=root, project=project.name)

    def tags(group: str) -> ObjectTags:
        stage = None if group == RUN_GROUP else group.rpartition("-")[0]
        return object_tags(tags_of(project, run=project.name, stage=stage))

    if changed := dict.fromkeys(line for stage in project.pipeline for line in tags(f"{stage}-").changed):
        tell("tags in the bucket are not all as charter.yaml has them\n  " + "\n  ".join(changed))
    return open_copies(where, root=root, project=project.name, tags=lambda group: tags(group).tags, tell=tell)


def copies_of(
    project: Project, root: Path, place: str | None = None, tell: Callable[[str], None] = lambda _: None
) -> Copies:
    """The copies of a project in the place given, or in that of `storage.artifacts`."""
    where = place or project.storage.artifacts
    if where is None:
        raise UsageError(
            "there is no second place for copies: name one with --place DIR or --place s3://bucket/path, or set "
            "storage.artifacts in charter.yaml"
        )
    return tagged_copies(where, project=project, root=root, tell=tell)


def hold(root: Path) -> Lease:
    """The project for this process alone; refused while a run is active."""
    return hold_of(run_dir(root.resolve()))


def back_up(project: Project, root: Path, place: str | None, tell: Callable[[str], None]) -> Iterator[str]:
    """Copy everything that is not in the place yet, and name it; a run may be active meanwhile."""
    pipeline = build_pipeline(project, root)
    copies = copies_of(project, root, place, tell)
    replicator = Replicator(
        copies,
        run_dir=run_dir(pipeline.root),
        stages={stage.directory: stage.fingerprint for stage in pipeline.stages.values()},
    )
    replicator.meter = partial(sample_now, project, root, "copied", tell, copies.objects.place.where)
    yield from replicator.copy_new(flush=True, all_checkpoints=True)


def restore(
    project: Project, root: Path, place: str | None, tell: Callable[[str], None]
) -> Iterator[tuple[str, list[str]]]:
    """Bring back what the place has and this machine has not: the run's files, then stage by stage.

    The acceptances of the run come first, since they decide which fingerprint a stage has.
    """
    restorer = Restorer(copies_of(project, root, place), tell)
    with hold(root):
        yield RUN_GROUP, restorer.restore_run(RUN_GROUP, run_dir(root.resolve()))
        for stage in build_pipeline(project, root).stages.values():
            group = stage.directory.name
            yield group, restorer.restore_stage(group, stage.directory, stage.fingerprint)
        sample_now(project, root, "restored", tell)


def scrub(
    project: Project, root: Path, place: str | None, tell: Callable[[str], None], *, repair: bool
) -> Iterator[Repair]:
    """Read every copy here and there, and repair each from the other where one is good."""
    copies = copies_of(project, root, place, tell)
    with hold(root):
        for stage in build_pipeline(project, root).stages.values():
            yield from scrub_group(copies, stage.directory.name, stage.directory, repair=repair)


def damaged_results(project: Project, root: Path, stage: str | None) -> list[str]:
    """Return what is wrong with what stages have written beside checkpoints, and with the ledger, in words."""
    pipeline = build_pipeline(project, root)
    wanted = [pipeline.stage(stage)] if stage is not None else pipeline.stages.values()
    damages = [wrong for item in wanted for wrong in damaged_in(item.directory, database=STAGE_DATABASE)]
    return [*damages, *damaged_database(run_dir(pipeline.root) / RUN_DATABASE)]


LOOK_EVERY_SECONDS = 2.0
FLUSH_EVERY_SECONDS = 600.0
"""How often the databases are copied, and checkpoints and batches whose turn has not come."""
LONGEST_PAUSE_SECONDS = 60.0
FINISH_SECONDS, LEAVE_SECONDS = 3600.0, 20.0
"""How long the end of a run waits for the last copies: when it is done; when it was stopped, say because the machine
will be taken away (providers give 30 to 120 s, and stages have used some of it)."""
Told = tuple[str, Mapping[str, Any]]


class Replicas:
    """The background copies of one run; without `storage.artifacts` it does nothing."""

    def __init__(
        self,
        pipeline: Pipeline,
        events: Events,
        *,
        tick: Callable[[], None] = lambda: None,
        hurry: Callable[[], bool] = lambda: False,
        meter: Callable[[int, int], None] | None = None,
    ) -> None:
        """`meter` hears, in the thread that copies, how many bytes the place holds and how many were sent to it."""
        self._events = events
        self._tick = tick
        self._hurry = hurry
        self._told: queue.SimpleQueue[Told] = queue.SimpleQueue()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        if pipeline.project.storage.artifacts is not None:
            replicator = _replicator_of(pipeline, self._tell)
            replicator.meter, replicator.meters_every_flush = meter, True
            self._thread = threading.Thread(target=self._work, args=(replicator,), name="copies", daemon=True)
            self._thread.start()

    def tick(self) -> None:
        """Do what is to be done every few seconds, and pass on what has happened; for the thread that emits events."""
        self._tick()
        while not self._told.empty():
            event, details = self._told.get()
            self._events.emit(event, **details)

    def close(self, *, wait_seconds: float) -> None:
        """Copy what is left, as far as that is possible in this time; less of it once the run is asked to stop."""
        if self._thread is None:
            return
        self._over.set()
        started = time.monotonic()
        while self._thread.is_alive():
            waited = time.monotonic() - started
            if waited > wait_seconds or (self._hurry() and waited > LEAVE_SECONDS):
                message = (
                    f"not all was copied in {waited:.0f} s; `charter artifacts checkpoints backup` copies the rest"
                )
                self._events.emit("replica_failed", message=message)
                return
            self._thread.join(LOOK_EVERY_SECONDS)
            self.tick()
        self.tick()

    def __enter__(self) -> "Replicas":
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        self.close(wait_seconds=FINISH_SECONDS if kind is None else LEAVE_SECONDS)

    def _tell(self, message: str) -> None:
        self._told.put(("replica_note", {"message": message}))

    def _work(self, replicator: Replicator) -> None:
        failures, since_flush = 0, 0.0
        while True:
            last = self._over.is_set()
            flush = last or since_flush >= FLUSH_EVERY_SECONDS
            try:
                for name in replicator.copy_new(flush=flush):
                    self._told.put(("replica_copied", {"name": name}))
                failures = 0
            except Exception as error:  # whatever goes wrong with copies, the run goes on
                failures += 1
                self._told.put(("replica_failed", {"message": _said(error), "failures": failures}))
            if last:
                return
            pause = min(LOOK_EVERY_SECONDS * 2**failures, LONGEST_PAUSE_SECONDS)
            since_flush = 0.0 if flush and not failures else since_flush + pause
            self._over.wait(pause)


def _replicator_of(pipeline: Pipeline, tell: Callable[[str], None]) -> Replicator:
    """Nothing is asked of the place here; only what could never work is refused, before anything is started."""
    project, root = pipeline.project, pipeline.root
    assert project.storage.artifacts is not None
    return Replicator(
        tagged_copies(project.storage.artifacts, project=project, root=root, tell=tell),
        run_dir=run_dir(root),
        stages={stage.directory: stage.fingerprint for stage in pipeline.stages.values()},
        every=project.storage.replicate_every,
    )


def _said(error: Exception) -> str:
    if isinstance(error, CharterError):
        return str(error)
    return f"{type(error).__name__}: {error}"


OTHER_RESULTS = "other results"


@dataclass(frozen=True, kw_only=True)
class Removable:
    """One thing that may go."""

    name: str
    why: str
    bytes: int
    remove: Callable[[], object] | None
    """None where it is only told."""


def prunable_checkpoints(project: Project, root: Path, place: str | None) -> list[Removable]:
    """Checkpoints that retention does not keep, here and in the second place, after reading those that stay."""
    checkpoints = []
    for stage in build_pipeline(project, root).stages.values():
        if not (stage.directory / JOB_FILE).exists():
            continue
        retention = retention_of(read_job(stage.directory))
        here = {item.position: item for item in listed(stage.directory, verify=True)}
        for position in retention.removable(map(_held, here.values())):
            item = here[position]
            remove = partial(durable.discard_dir, item.path)
            checkpoints.append(
                Removable(name=str(item.path), why="older than what is kept", bytes=item.bytes, remove=remove)
            )
        if place or project.storage.artifacts:
            copies = copies_of(project, root, place)
            group = stage.directory.name
            checkpoints += [_copy(copies, group, item.name, item.bytes) for item in prunable(copies, group, retention)]
    return checkpoints


def garbage(project: Project, root: Path, place: str | None, *, other_results: bool) -> list[Removable]:
    """Return what crashes have left and nothing uses, here and in the second place.

    Results under other fingerprints are found too, and go only with `other_results`: a file that is changed back uses
    them again.
    """
    pipeline = build_pipeline(project, root)
    leftovers = [*_local_garbage(pipeline, other_results=other_results)]
    if place or project.storage.artifacts:
        leftovers += _stored_garbage(copies_of(project, root, place))
    return leftovers


def remove_all(
    root: Path, find: Callable[[], Iterable[Removable]], *, then: Callable[[], None] = lambda: None
) -> list[Removable]:
    """Find under the project's lease, so that nothing changes in between, and remove what may go; `then` the rest.

    Gives all that was found.
    """
    with hold(root):
        items = [*find()]
        for item in items:
            if item.remove is not None:
                item.remove()
        then()
    return items


def sample_cleaned(project: Project, root: Path, place: str | None, tell: Callable[[str], None]) -> None:
    """Write into the ledger what is stored after something was removed."""
    if not place and project.storage.artifacts is None:
        sample_now(project, root, "cleaned", tell)
        return
    copies = copies_of(project, root, place, tell)
    sample_now(project, root, "cleaned", tell, copies.objects.place.where, HeldByLists(copies).bytes())


def _local_garbage(pipeline: Pipeline, *, other_results: bool) -> Iterator[Removable]:
    stages = [stage.directory for stage in pipeline.stages.values()]
    for item in find_garbage(run_dir(pipeline.root), stages=stages):
        goes = other_results or item.kind != OTHER_RESULTS
        remove = partial(remove_garbage, item) if goes else None
        yield Removable(name=str(item.path), why=item.kind, bytes=item.bytes, remove=remove)


def _stored_garbage(copies: Copies) -> Iterator[Removable]:
    place = copies.objects.place
    seen = collect(place, act=False)
    for items, why in ((seen.removed, "named by no list"), (seen.doomed, "named by no list; go a day after this call")):
        if items:
            name, size_bytes = f"{place.where}: {len(items)} objects", sum(item.bytes for item in items)
            yield Removable(name=name, why=why, bytes=size_bytes, remove=partial(collect, place))
    for item in abandoned_uploads(place):
        remove = partial(place.abandon, item)
        yield Removable(name=f"{place.where}/{item.key}", why="unfinished upload", bytes=item.bytes, remove=remove)


def _held(item: ListedCheckpoint) -> Held:
    return Held(position=item.position, verified=item.verified, metric=item.metric, pinned=item.pinned)


def _copy(copies: Copies, group: str, name: str, size_bytes: int) -> Removable:
    remove = partial(copies.forget, group, [name])
    where = f"{copies.objects.place.where}: {group}/{name}"
    return Removable(name=where, why="older than what is kept", bytes=size_bytes, remove=remove)
