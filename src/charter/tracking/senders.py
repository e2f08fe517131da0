"""The processes that tell the trackers of a run: one each, so that a tracker that hangs holds up no other."""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from charter.artifacts import durable
from charter.errors import DataError
from charter.tracking.facts import Followed
from charter.tracking.places import health_path, log_path
from charter.tracking.send import DRAIN

RESTART_SECONDS = 10.0
"""A sender that ended by itself is started again, but not sooner than this."""
POLL_SECONDS = 0.02


class Senders:
    """The senders of one run."""

    def __init__(self, run_dir: Path, followed: Followed) -> None:
        self._run_dir, self._followed = run_dir, followed
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._started: dict[str, float] = {}

    def start(self) -> None:
        """Start one per tracker."""
        for tracker in self._followed.trackers:
            health_path(self._run_dir, tracker).unlink(missing_ok=True)
            self._start(tracker)

    def keep_alive(self) -> None:
        """Start again what has ended."""
        for tracker, process in self._processes.items():
            if process.poll() is not None and time.monotonic() - self._started[tracker] > RESTART_SECONDS:
                self._start(tracker)

    def end(self, *, drain: bool) -> None:
        """Wait for what is still on its way, each tracker as long as its `drain` says; end them all then.

        A tracker whose last call failed is not waited for, and without `drain` none is.
        """
        started = time.monotonic()
        for process in self._processes.values() if drain else ():
            _say(process, DRAIN + b"\n")
        while drain and any(self._is_awaited(tracker, started) for tracker in self._processes):
            time.sleep(POLL_SECONDS)
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait()
            assert process.stdin is not None
            with contextlib.suppress(OSError):
                process.stdin.close()

    def _is_awaited(self, tracker: str, started: float) -> bool:
        waited = time.monotonic() - started
        if self._processes[tracker].poll() is not None or is_failing(self._run_dir, tracker):
            return False
        return waited < float(self._followed.trackers[tracker].get("drain_seconds", 0.0))

    def _start(self, tracker: str) -> None:
        command = [sys.executable, "-m", "charter.tracking.send", "--run-dir", str(self._run_dir)]
        with log_path(self._run_dir, tracker).open("ab") as log:
            self._processes[tracker] = subprocess.Popen(
                [*command, "--tracker", tracker],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            )
        self._started[tracker] = time.monotonic()


def health_of(run_dir: Path, tracker: str) -> dict[str, Any]:
    """How the delivery to a tracker went last; empty where nobody has tried."""
    try:
        found: dict[str, Any] = durable.read_json(health_path(run_dir, tracker))
    except DataError:
        return {}
    return found


def is_failing(run_dir: Path, tracker: str) -> bool:
    """Whether the last try to tell a tracker something went wrong."""
    return bool(health_of(run_dir, tracker).get("failures", 0))


def _say(process: "subprocess.Popen[bytes]", words: bytes) -> None:
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.write(words)
        process.stdin.flush()
