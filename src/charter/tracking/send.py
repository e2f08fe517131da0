"""A process that tells one tracker of a run: `python -m charter.tracking.send --run-dir R --tracker mlflow`.

It is a child of the follower (`forward`). Standard input tells it what to do: `drain`: nothing more will come;
the end of input: leave at once. So whatever its tracker does, nobody ever waits for it longer than wanted.
"""

import argparse
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from charter.artifacts import durable
from charter.errors import CharterError, DataError, UsageError
from charter.spec.sections import PLAIN, MlflowSettings, TensorboardSettings, WandbSettings
from charter.tracking.base import Destination, Secrets
from charter.tracking.delivery import Delivery, backoff_seconds
from charter.tracking.journal import TrackingLock, health_path, tracking_dir
from charter.tracking.run_facts import Followed, read_followed

TENSORBOARD = "tensorboard"


def open_destination(run_dir: Path, followed: Followed, tracker: str, secrets: Secrets) -> Destination:
    """The destination of one tracker of a run; raises where its package or a secret is missing. Nothing is sent yet."""
    settings = settings_of(followed, tracker)
    root = Path(followed.root)
    directory = tracking_dir(run_dir)
    if isinstance(settings, MlflowSettings):
        from charter.tracking.trackers import open_mlflow

        opened: Destination = open_mlflow(
            settings, run_name=followed.name, root=root, directory=directory, secrets=secrets
        )
        return opened
    if isinstance(settings, WandbSettings):
        from charter.tracking.trackers import open_wandb

        return open_wandb(settings, run_name=followed.name, directory=directory / "wandb", secrets=secrets)
    from charter.tracking.trackers import TensorboardDestination

    where = run_dir / TENSORBOARD if settings.directory is None else root / settings.directory
    return TensorboardDestination(where)


def settings_of(followed: Followed, tracker: str) -> MlflowSettings | WandbSettings | TensorboardSettings:
    """The settings of one tracker, as they were written down when the run started."""
    values: Mapping[str, Any] = followed.trackers[tracker]
    try:
        return PLAIN[tracker](**{name: value for name, value in values.items() if name != "drain_seconds"})
    except (KeyError, TypeError) as error:
        raise DataError(f"the settings of {tracker} are not of this version of Charter: {error}") from None


LOOK_EVERY_SECONDS = 1.0
LOCK_SECONDS = 60.0
"""How long a sender whose follower was killed may take to notice."""
DRAIN = b"drain"
LONGEST_MESSAGE = 500


class Sender:
    """Delivers again and again; failures only make it wait."""

    def __init__(self, run_dir: Path, tracker: str, followed: Followed, orders: "Orders") -> None:
        self._run_dir, self._tracker, self._followed, self._orders = run_dir, tracker, followed, orders
        self._secrets = Secrets()
        self._delivery: Delivery | None = None
        self._failures = 0
        self._since = time.time()
        self._destination_close: Callable[[], None] = lambda: None

    def run(self) -> bool:
        """Until it is told to leave, or all is delivered after `drain`; True when all was."""
        while True:
            draining = self._orders.draining
            done = self._try()
            if self._orders.leave or (draining and (done or self._failures)):
                self._destination_close()
                return done
            pause = backoff_seconds(self._failures) if self._failures else LOOK_EVERY_SECONDS
            self._orders.wait(pause)

    def _try(self) -> bool:
        try:
            if self._delivery is None:
                destination = open_destination(self._run_dir, self._followed, self._tracker, self._secrets)
                self._delivery = Delivery(self._run_dir, self._tracker, destination, self._followed)
                self._destination_close = destination.close
            done = self._delivery.deliver(stop=lambda: self._orders.look() and self._orders.leave)
        except Exception as error:  # whatever goes wrong with a tracker, it is tried again
            self._failures += 1
            self._tell(self._secrets.blotted(said(error)))
            return False
        self._failures, self._since = 0, time.time()
        self._tell(None)
        return done

    def _tell(self, message: str | None) -> None:
        """Say how it goes, for `charter status track status` and for whoever decides how long to wait."""
        health = {
            "time": time.time(),
            "failures": self._failures,
            "message": message,
            "last_success": self._since,
            "pid": os.getpid(),
        }
        durable.write_hint(health_path(self._run_dir, self._tracker), health)
        if message is not None:
            print(message, file=sys.stderr, flush=True)


def deliver_once(run_dir: Path, tracker: str, followed: Followed) -> bool:
    """Tell a tracker all that is there, now and in this process; False, and the reason is kept, where that fails.

    Whoever calls it holds the lock of the tracker.
    """
    return Sender(run_dir, tracker, followed, Drained()).run()


class Orders:
    """Orders from standard input: a word that means "finish", or its end."""

    def __init__(self, descriptor: int, *, end: bytes = DRAIN) -> None:
        self._descriptor, self._end = descriptor, end
        self.draining = self.leave = False

    def look(self) -> bool:
        """Take in what is there, without waiting; always True."""
        self.wait(0.0)
        return True

    def wait(self, seconds: float) -> None:
        """Wait so long, or until there is something."""
        if self.leave:
            return
        ready, _, _ = select.select([self._descriptor], [], [], seconds)
        if ready:
            received = os.read(self._descriptor, 4096)
            self.draining |= self._end in received
            self.leave = not received


class Drained(Orders):
    """Orders of somebody who wants all that is there, and then an end."""

    def __init__(self) -> None:
        self.draining, self.leave = True, False

    def wait(self, seconds: float) -> None:
        """Nothing comes."""


def said(error: Exception) -> str:
    """An error in one line of bounded length."""
    text = str(error) if isinstance(error, CharterError) else f"{type(error).__name__}: {error}"
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_MESSAGE else f"{line[:LONGEST_MESSAGE]}..."


def main(arguments: Sequence[str] | None = None) -> None:
    """Deliver until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--tracker", required=True)
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    followed = read_followed(options.run_dir)
    if followed is None or options.tracker not in followed.trackers:
        raise UsageError(f"{options.run_dir} has no tracker called {options.tracker}")
    with TrackingLock(options.run_dir, of=options.tracker, wait_seconds=LOCK_SECONDS):
        done = Sender(options.run_dir, options.tracker, followed, Orders(sys.stdin.fileno())).run()
    sys.stdout.flush()
    # Not sys.exit: handlers of the libraries would wait for servers that do not answer.
    os._exit(0 if done else 1)


if __name__ == "__main__":
    main()
