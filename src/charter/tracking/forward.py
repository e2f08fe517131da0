"""The follower of a run: `python -m charter.tracking.forward --run-dir R`, a child of the supervisor.

It reads what stages and supervisor write anyway, collects it into journals, meters the stages of this machine, serves
the last figures to Prometheus, and keeps one sender per tracker. Stages know nothing of it, and the supervisor never
waits for it while the run lasts. Standard input says when the run ends: `end`, or its end when the supervisor died.
"""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from charter.metering.sampler import LocalMeters
from charter.tracking.destinations.prometheus import Endpoint
from charter.tracking.journal import Collector, TrackingLock, health_of, health_path, log_path
from charter.tracking.progress import RunProgress
from charter.tracking.run_facts import Followed, read_followed
from charter.tracking.send import DRAIN, Orders, said

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


def is_failing(run_dir: Path, tracker: str) -> bool:
    """Return True if the latest delivery to a tracker went wrong."""
    return bool(health_of(run_dir, tracker).get("failures", 0))


def _say(process: "subprocess.Popen[bytes]", words: bytes) -> None:
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.write(words)
        process.stdin.flush()


LOOK_EVERY_SECONDS = 1.0
NICENESS = 10
LOCK_SECONDS = 30.0
"""How long the follower of a run before this one may take to leave."""


class RunFollower:
    """One run, followed until it ends."""

    def __init__(self, run_dir: Path, followed: Followed) -> None:
        self._run_dir = run_dir
        self._progress = RunProgress(run_dir=run_dir)
        self._collector = Collector(run_dir)
        self._meters = LocalMeters(run_dir, every_seconds=followed.meter_every_seconds)
        self._senders = Senders(run_dir, followed)
        self._endpoint = Endpoint.open(run_dir, followed)
        self._collects = bool(followed.trackers)
        self._behind = True

    def run(self, orders: Orders) -> None:
        """Follow until the run ends."""
        self._senders.start()
        while not (orders.leave or orders.draining):
            self._look()
            orders.wait(self._meters.seconds_to_next(LOOK_EVERY_SECONDS))
        self._meters.look(self._progress.running(), last=True)
        self._look()
        self._endpoint.close()
        self._senders.end(drain=orders.draining)
        self._meters.close()

    def _look(self) -> None:
        """Collect new rows; an error here is logged, and hurts nobody else."""
        try:
            self._progress.look()
            self._meters.look(self._progress.running())
            self._endpoint.show(self._progress)
            if self._collects:
                # Stages of earlier runs may have rows that nobody collected, so the first look is at all of them.
                stages = self._progress.stages if self._behind else self._progress.recent()
                self._collector.collect(tuple(stages))
                self._behind = False
                self._senders.keep_alive()
        except Exception as error:
            print(f"{time.time():.1f} {said(error)}", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Follow until standard input says that the run has ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True)
    options = parser.parse_args(arguments)
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    followed = read_followed(options.run_dir)
    if followed is None:
        return
    with TrackingLock(options.run_dir, wait_seconds=LOCK_SECONDS):
        RunFollower(options.run_dir, followed).run(Orders(sys.stdin.fileno(), end=b"end"))


if __name__ == "__main__":
    main()
