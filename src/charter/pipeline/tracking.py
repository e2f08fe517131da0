"""Tells trackers what a run has left untold, with the settings that `charter.yaml` has now."""

from collections.abc import Sequence
from pathlib import Path

from charter.errors import UsageError
from charter.pipeline.followers import check_trackers, followed_of
from charter.pipeline.paths import run_dir
from charter.spec.project import Project
from charter.spec.tracking import trackers_of
from charter.tracking.collector import Collector
from charter.tracking.facts import write_followed
from charter.tracking.lock import TrackingLock
from charter.tracking.progress import EVENTS_FILE, RunProgress
from charter.tracking.send import deliver_once
from charter.tracking.status import TrackerStatus, status_of_trackers

WAIT_SECONDS = 5.0
"""How long another process that delivers may take to end."""


def sync_trackers(project: Project, root: Path, *, only: Sequence[str] = ()) -> tuple[TrackerStatus, ...]:
    """Tell every tracker, or those of `only`, all that is there; how far each is then."""
    where = run_dir(root.resolve())
    trackers = tuple(tracked for tracked in trackers_of(project.tracking) if not only or tracked.name in only)
    named = [tracked.name for tracked in trackers_of(project.tracking)]
    if unknown := [name for name in only if name not in named]:
        raise UsageError(f"`tracking` does not name {unknown[0]!r}; it names {', '.join(named) or 'none'}")
    if not trackers:
        raise UsageError("`tracking` names no tracker; write for example  tracking: [mlflow]  into charter.yaml")
    if not (where / EVENTS_FILE).exists():
        raise UsageError(f"there is no run in {root}; `charter run` makes one")
    check_trackers(trackers)
    with TrackingLock(where, wait_seconds=WAIT_SECONDS):
        followed = followed_of(project, root.resolve(), metered_here=False)
        write_followed(where, followed)
        progress = RunProgress(run_dir=where)
        progress.look()
        Collector(where).collect(tuple(progress.stages))
        for tracked in trackers:
            with TrackingLock(where, of=tracked.name, wait_seconds=WAIT_SECONDS):
                deliver_once(where, tracked.name, followed)
    found = status_of_trackers(where)
    return tuple(item for item in found if not only or item.tracker in only)
