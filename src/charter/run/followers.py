"""Starts the follower of a run, which meters and tells trackers, and ends it with the run.

The follower is a process of its own. Nothing that it meets reaches the run: it is started and ended here, and between
the run only writes its files.
"""

import contextlib
import importlib.util
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

from charter.artifacts import durable
from charter.errors import DataError, MissingExtraError, UsageError, how_to_install
from charter.run.paths import run_dir
from charter.spec.project import Project
from charter.spec.sections import MlflowSettings, Tracked, WandbSettings, trackers_of
from charter.spec.sweep import POINT_TAG, SWEEP_TAG
from charter.tracking.base import is_reference, read_secret
from charter.tracking.delivery import TrackerStatus, status_of_trackers
from charter.tracking.journal import PROMETHEUS, Collector, TrackingLock, live_path, log_path, tracking_dir
from charter.tracking.progress import EVENTS_FILE, RunProgress
from charter.tracking.run_facts import Followed, read_followed, write_followed
from charter.tracking.send import deliver_once

POLL_SECONDS = 0.02
MARGIN_SECONDS = 5.0
"""What the follower itself may take to end, beside what its trackers are given."""
LAST_SAMPLE_SECONDS = 1.0
"""How long a follower without trackers may take to end: no more than a sample can be lost."""
HURRY_SECONDS = 5.0
"""How long in all, where the run was asked to stop."""
PACKAGES: Mapping[str, str] = {"mlflow": "mlflow", "wandb": "wandb", "tensorboard": "tensorboard"}
"""What a tracker needs to be importable; the extras are called alike."""


class Followers:
    """The follower of one run; without trackers and metering it does nothing."""

    def __init__(
        self,
        project: Project,
        root: Path,
        *,
        work: bool = True,
        of_sweep: bool = False,
        metered_here: bool = True,
        hurry: Callable[[], bool] = lambda: False,
    ) -> None:
        """`work`: whether stages are to run; where none is, only what an earlier run left is delivered.

        `of_sweep`: whether the project is a point of a sweep, of which trackers hear even where its stages are done.
        `metered_here`: stages run on this machine; elsewhere node agents meter them. `hurry`: whether the run was asked
        to stop, say because the machine will be taken away.
        """
        self._project, self._run_dir = project, run_dir(root.resolve())
        self._trackers = trackers_of(project.tracking)
        self._followed = followed_of(project, root.resolve(), metered_here=metered_here, of_sweep=of_sweep)
        self._work, self._of_sweep, self._hurry = work, of_sweep, hurry
        self.tell: Callable[..., None] = lambda event, **details: None
        """Emits events; set by whoever has them."""
        self._process: subprocess.Popen[bytes] | None = None
        check_trackers(self._trackers)

    @property
    def is_needed(self) -> bool:
        """Return True if there is anything to do."""
        if not self._work:
            return bool(self._trackers) and (
                self._of_sweep or any(not status.is_up_to_date for status in status_of_trackers(self._run_dir))
            )
        metering = self._project.metering
        return bool(self._trackers or self._followed.meter_every_seconds or metering.prometheus_port is not None)

    def start(self) -> None:
        """Start the follower; what keeps it from starting is said in its log, and hurts nobody."""
        if not self.is_needed:
            return
        write_followed(self._run_dir, self._followed)
        command = [sys.executable, "-m", "charter.tracking.forward", "--run-dir", str(self._run_dir)]
        with contextlib.suppress(OSError), log_path(self._run_dir, "follower").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
                start_new_session=True,
            )

    def listen(self, event: Mapping[str, Any]) -> None:
        """Note what only the supervisor knows: what was spent."""
        if self._project.metering.prometheus_port is not None and event.get("cost_usd") is not None:
            durable.write_hint(live_path(self._run_dir), {"cost_usd": event["cost_usd"]})

    def end(self) -> None:
        """Let the follower deliver what is left, as long as `drain` allows, and end it."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.write(b"end\n")
            process.stdin.flush()
        longest = max(
            (tracked.drain_seconds + MARGIN_SECONDS for tracked in self._trackers), default=LAST_SAMPLE_SECONDS
        )
        started = time.monotonic()
        while process.poll() is None and time.monotonic() - started < (HURRY_SECONDS if self._hurry() else longest):
            time.sleep(POLL_SECONDS)
        process.kill()
        process.wait()
        with contextlib.suppress(OSError):
            process.stdin.close()
        # One that was killed has left it, and whoever comes to that port next is somebody else.
        (tracking_dir(self._run_dir) / PROMETHEUS).unlink(missing_ok=True)
        self._tell_what_is_left()

    def __enter__(self) -> "Followers":
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        self.end()

    def _tell_what_is_left(self) -> None:
        behind = [status for status in status_of_trackers(self._run_dir) if not status.is_up_to_date]
        if behind:
            names = ", ".join(status.tracker for status in behind)
            why = next((status.message for status in behind if status.message), "it was not done in time")
            self.tell(
                "tracking_behind",
                trackers=[status.tracker for status in behind],
                rows=sum(status.waiting_rows for status in behind),
                message=f"{names} was not told everything ({why}); the next run or `charter status track sync` does it",
            )


def followed_of(project: Project, root: Path, *, metered_here: bool, of_sweep: bool = False) -> Followed:
    """Return a follower's settings of a run; its key is that of the run directory, made for the first run in it.

    The tags of a point are left out: a stage has those of the point that ran it, which its events name.
    """
    where = run_dir(root)
    try:
        earlier = read_followed(where)
    except DataError:
        earlier = None
    settings = {
        tracked.name: {**asdict(tracked.settings), "drain_seconds": tracked.drain_seconds}
        for tracked in trackers_of(project.tracking)
    }
    return Followed(
        key=uuid.uuid4().hex[:16] if earlier is None else earlier.key,
        name=project.name,
        root=str(root),
        trackers=settings,
        owner=project.owner,
        tags={name: tag for name, tag in project.tags.items() if not (of_sweep and name in (SWEEP_TAG, POINT_TAG))},
        notes=dict(project.notes),
        meter_every_seconds=project.metering.every if metered_here else 0.0,
        prometheus_port=project.metering.prometheus_port,
        power_usage_effectiveness=project.metering.power_usage_effectiveness,
    )


def check_trackers(trackers: tuple[Tracked, ...]) -> None:
    """Raise when a tracker's package or a secret is missing; whether its server lives is no condition of a run."""
    missing = [tracked.name for tracked in trackers if importlib.util.find_spec(PACKAGES[tracked.name]) is None]
    if missing:
        raise MissingExtraError(
            f"tracking names {', '.join(missing)}, which is not installed: {how_to_install(*missing)}; "
            "or take it out of `tracking`"
        )
    for tracked in trackers:
        for reference, what in _references(tracked):
            read_secret(reference, of=what)


def _references(tracked: Tracked) -> list[tuple[str, str]]:
    settings = tracked.settings
    secrets: list[tuple[str | None, str]] = []
    if isinstance(settings, MlflowSettings):
        secrets = [(settings.password, "the password of MLflow"), (settings.token, "the token of MLflow")]
        if settings.uri is not None and is_reference(settings.uri):
            secrets.append((settings.uri, "the address of MLflow"))
    elif isinstance(settings, WandbSettings):
        secrets = [(settings.api_key, "the key of W&B")]
    return [(reference, what) for reference, what in secrets if reference is not None]


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
    statuses = status_of_trackers(where)
    return tuple(item for item in statuses if not only or item.tracker in only)
