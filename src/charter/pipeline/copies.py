"""What `charter ckpt backup | restore | scrub` do: a project's results to and from a second place."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from charter.artifacts.lease import Lease
from charter.artifacts.store.copy import Copies, open_copies
from charter.artifacts.store.place import BUCKET
from charter.artifacts.store.replicator import RUN_DATABASE, RUN_GROUP, STAGE_DATABASE, Replicator
from charter.artifacts.store.restoring import Restorer
from charter.artifacts.store.scrub import Repair, scrub_group
from charter.artifacts.verifying import damaged_database, damaged_in
from charter.errors import UsageError
from charter.launch.tags import ObjectTags, object_tags, tags_of
from charter.pipeline.graph import build_pipeline
from charter.pipeline.paths import run_dir
from charter.pipeline.storage_meter import sample_now
from charter.spec.project import Project

RUN_LOCK = "run.lock"


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
    return Lease(run_dir(root.resolve()), lock_name=RUN_LOCK, what="the project")


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
    """What is wrong with what stages have written beside checkpoints, and with the ledger, in words."""
    pipeline = build_pipeline(project, root)
    wanted = [pipeline.stage(stage)] if stage is not None else pipeline.stages.values()
    found = [wrong for item in wanted for wrong in damaged_in(item.directory, database=STAGE_DATABASE)]
    return [*found, *damaged_database(run_dir(pipeline.root) / RUN_DATABASE)]
