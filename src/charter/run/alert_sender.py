"""Sends the alerts of a run that are not sent yet: `python -m charter.run.alert_sender --run-dir D --settings S`.

One at a time per run. It outlives the run, since its last alert is often that the run has ended, but not by long.

No alert falls between two of them: as long as the standard input of a sender is open it will look at the book again.
It closes it, looks a last time, and ends; a run that finds it closed starts another one, which waits for its turn.
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
from charter.run.alerts import AlertBook, SendError, channels_of, sender_of
from charter.spec.sections import Alerts
from charter.tracking.base import Secrets

SECONDS_BETWEEN_TRIES = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
"""The last one again and again."""
GIVE_UP_SECONDS = 900.0
"""A server that is away for longer hears of it with the next run."""


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
    """Send, once no other process does it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--settings", required=True)
    arguments = parser.parse_args()
    given = json.loads(arguments.settings)
    settings = Alerts(**{**given, "email": tuple(given["email"])})
    book = AlertBook(arguments.run_dir)
    lock = os.open(book.directory, os.O_RDONLY | os.O_CLOEXEC)
    fcntl.flock(lock, fcntl.LOCK_EX)
    done = send_all(book, settings)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    return 0 if done and send_all(book, settings) else 1


if __name__ == "__main__":
    sys.exit(main())
