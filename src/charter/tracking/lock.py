"""Only one process collects for a run, and one tells each tracker: locks that end with their holders."""

import time
from pathlib import Path
from types import TracebackType

from charter.errors import UsageError
from charter.tracking.places import LOCK, tracking_dir


class TrackingLock:
    """Held from `__enter__` on; waits for another holder so long, then refuses."""

    def __init__(self, run_dir: Path, *, of: str = "follower", wait_seconds: float = 0.0) -> None:
        """`of`: the tracker that is told; the collection itself unless given."""
        from filelock import FileLock

        tracking_dir(run_dir).mkdir(parents=True, exist_ok=True)
        self._run_dir, self._wait_seconds = run_dir, wait_seconds
        self._lock = FileLock(tracking_dir(run_dir) / f".{of}{LOCK}", is_singleton=False, thread_local=False)

    def __enter__(self) -> "TrackingLock":
        from filelock import Timeout

        started = time.monotonic()
        try:
            self._lock.acquire(timeout=self._wait_seconds, poll_interval=0.05)
        except Timeout:
            raise UsageError(
                f"{self._run_dir} is being followed by a run or by another `charter track sync` "
                f"(waited {time.monotonic() - started:.0f} s); let it end, it delivers by itself"
            ) from None
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        self._lock.release()
