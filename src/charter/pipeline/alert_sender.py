"""Sends the alerts of a run that are not sent yet: `python -m charter.pipeline.alert_sender --run-dir D --settings S`.

One at a time per run. It outlives the run, since its last alert is often that the run has ended, but not by long.
"""

import argparse
import fcntl
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from charter.errors import CharterError
from charter.pipeline.alert_channels import SendError, sender_of
from charter.pipeline.alerts import AlertBook, channels_of
from charter.spec.alerts import Alerts
from charter.tracking.secret_texts import Secrets

SECONDS_BETWEEN_TRIES = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
"""The last one again and again."""
GIVE_UP_SECONDS = 900.0
"""A server that is away for longer hears of it with the next run."""
LOOK_AGAIN_SECONDS = 0.2
"""A run may add an alert just when the sender has found none."""


def send_all(
    book: AlertBook,
    settings: Alerts,
    *,
    sleep: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.time,
    give_up_seconds: float = GIVE_UP_SECONDS,
) -> bool:
    """Send what is not sent, again and again until all of it is, or the time is up; returns whether all is.

    What waiting will not mend (a secret that is not there, a server without encryption) is not tried again.
    """
    secrets = Secrets()
    senders = {name: sender_of(name, settings, secrets) for name in channels_of(settings)}
    end, failures = now() + give_up_seconds, 0
    while left := book.unsent(tuple(senders)):
        failed = set[str]()
        for alert, channel in left:
            if channel in failed:
                continue
            try:
                senders[channel](alert)
            except CharterError as error:
                failed.add(channel)
                book.mark(alert, channel, at=now(), error=secrets.blotted(str(error)))
                if not isinstance(error, SendError):
                    senders.pop(channel)
            else:
                book.mark(alert, channel, at=now())
        if not failed & senders.keys():
            failures = 0
            continue
        wait = SECONDS_BETWEEN_TRIES[min(failures, len(SECONDS_BETWEEN_TRIES) - 1)]
        failures += 1
        if now() + wait > end:
            return False
        sleep(wait)
    return len(senders) == len(channels_of(settings))


def main() -> int:
    """Send, unless another process does it already."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--settings", required=True)
    arguments = parser.parse_args()
    given = json.loads(arguments.settings)
    settings = Alerts(**{**given, "email": tuple(given["email"])})
    book = AlertBook(arguments.run_dir)
    lock = os.open(book.directory, os.O_RDONLY | os.O_CLOEXEC)
    for _ in range(2):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return 0
        done = send_all(book, settings)
        fcntl.flock(lock, fcntl.LOCK_UN)
        if not done:
            return 1
        time.sleep(LOOK_AGAIN_SECONDS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
