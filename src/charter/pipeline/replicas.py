"""Copies of a run in a second place, made in the background: training never waits for them, nor fails with them.

One thread looks every few seconds for what is new and copies it. What goes wrong is told, and tried again with growing
pauses; what is not copied stays on the disk. It starts no process, so the rule that children end with the thread that
made them does not concern it.
"""

import queue
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from charter.artifacts.store.replicator import Replicator
from charter.errors import CharterError
from charter.pipeline.copies import tagged_copies
from charter.pipeline.events import Events
from charter.pipeline.graph import Pipeline
from charter.pipeline.paths import run_dir

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
                message = f"not everything was copied in {waited:.0f} s; `charter ckpt backup` copies the rest"
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
