"""The follower of a run: `python -m charter.tracking.forward --run-dir R`, a child of the supervisor.

It reads what stages and supervisor write anyway, collects it into journals, meters the stages of this machine, serves
the last figures to Prometheus, and keeps one sender per tracker. Stages know nothing of it, and the supervisor never
waits for it while the run lasts. Standard input says when the run ends: `end`, or its end when the supervisor died.
"""

import argparse
import contextlib
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from charter.tracking.collector import Collector
from charter.tracking.facts import Followed, read_followed
from charter.tracking.lock import TrackingLock
from charter.tracking.metering.local import LocalMeters
from charter.tracking.progress import RunProgress
from charter.tracking.prometheus import Endpoint
from charter.tracking.send import Orders, said
from charter.tracking.senders import Senders

LOOK_EVERY_SECONDS = 1.0
NICENESS = 10
LOCK_SECONDS = 30.0
"""How long the follower of a run before this one may take to leave."""


class Follower:
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
        """What goes wrong here is said in the log, and hurts nobody else."""
        try:
            self._progress.look()
            self._meters.look(self._progress.running())
            self._endpoint.show(self._progress)
            if self._collects:
                # Stages of earlier runs may have rows that nobody collected, so the first look is at all of them.
                found = self._progress.stages if self._behind else self._progress.recent()
                self._collector.collect(tuple(found))
                self._behind = False
                self._senders.keep_alive()
        except Exception as error:
            print(f"{time.time():.1f} {said(error)}", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Follow until standard input says that the run has ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True)
    given = parser.parse_args(arguments)
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    followed = read_followed(given.run_dir)
    if followed is None:
        return
    with TrackingLock(given.run_dir, wait_seconds=LOCK_SECONDS):
        Follower(given.run_dir, followed).run(Orders(sys.stdin.fileno(), end=b"end"))


if __name__ == "__main__":
    main()
