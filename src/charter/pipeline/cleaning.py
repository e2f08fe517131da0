"""What `charter ckpt prune | gc` do: find what need not be kept, say how large it is, remove it when told to."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from charter.artifacts import durable
from charter.artifacts.checkpoint_list import ListedCheckpoint, listed
from charter.artifacts.checkpoints import retention_of
from charter.artifacts.garbage import find_garbage, remove_garbage
from charter.artifacts.job import JOB_FILE, read_job
from charter.artifacts.retention import Held
from charter.artifacts.store.collecting import abandoned_uploads, collect, prunable
from charter.artifacts.store.copy import Copies
from charter.artifacts.store.held import HeldByLists
from charter.pipeline.copies import copies_of, hold
from charter.pipeline.graph import Pipeline, build_pipeline
from charter.pipeline.paths import run_dir
from charter.pipeline.storage_meter import sample_now
from charter.spec.project import Project

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
    found = []
    for stage in build_pipeline(project, root).stages.values():
        if not (stage.directory / JOB_FILE).exists():
            continue
        retention = retention_of(read_job(stage.directory))
        here = {item.position: item for item in listed(stage.directory, verify=True)}
        for position in retention.removable(map(_held, here.values())):
            item = here[position]
            remove = partial(durable.discard_dir, item.path)
            found.append(Removable(name=str(item.path), why="older than what is kept", bytes=item.bytes, remove=remove))
        if place or project.storage.artifacts:
            copies = copies_of(project, root, place)
            group = stage.directory.name
            found += [_copy(copies, group, item.name, item.bytes) for item in prunable(copies, group, retention)]
    return found


def garbage(project: Project, root: Path, place: str | None, *, other_results: bool) -> list[Removable]:
    """What crashes have left and nothing uses, here and in the second place.

    Results under other fingerprints are found too, and go only with `other_results`: a file that is changed back uses
    them again.
    """
    pipeline = build_pipeline(project, root)
    found = [*_local_garbage(pipeline, other_results=other_results)]
    if place or project.storage.artifacts:
        found += _stored_garbage(copies_of(project, root, place))
    return found


def remove_all(
    root: Path, find: Callable[[], Iterable[Removable]], *, then: Callable[[], None] = lambda: None
) -> list[Removable]:
    """Find under the project's lease, so that nothing changes in between, and remove what may go; `then` the rest.

    Gives all that was found.
    """
    with hold(root):
        found = [*find()]
        for item in found:
            if item.remove is not None:
                item.remove()
        then()
    return found


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
