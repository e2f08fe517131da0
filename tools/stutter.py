"""Run a command while its processes are frozen now and then: `stutter.py [--seed N] [--share F] -- COMMAND ...`.

A test that passes since one process is always quicker than another fails sooner or later on a busy machine. Under
this tool every process that the command starts, the tests' own too, stands still at random moments, for up to a
second: as if the kernel had not come round to it. What fails here and not otherwise is a race, in the test or in the
product. A process that a test has frozen itself is left alone, though it may be woken too early if both freeze it at
once.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

MARK = "CHARTER_STUTTER"
"""A variable in the environment of every process of the command, daemons that have left its session included."""
LONGEST_SECONDS = 1.0


def marked(token: str) -> list[int]:
    """The running processes of the command."""
    wanted = f"{MARK}={token}".encode()
    pids = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if wanted in (path / "environ").read_bytes().split(b"\0") and _stat(int(path.name))[0] not in "TZX":
                pids.append(int(path.name))
    return pids


def _stat(pid: int) -> list[str]:
    """State, parent and what else /proc/PID/stat says after the name."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()


def freeze(pid: int, seconds: float) -> None:
    """Let one process stand still for a while, and wake its parent too: some, like `runuser`, stop with their child."""
    with suppress(OSError):
        parent = int(_stat(pid)[1])
        os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.01)
        if _stat(parent)[0] == "T":
            os.kill(parent, signal.SIGCONT)


def stutter(token: str, *, seed: int, share: float, ended: threading.Event) -> int:
    """Freeze processes at random until the command has ended; how often that was.

    `share`: the part of its time for which a process stands still, if there is one process per core.
    """
    chance, frozen = random.Random(seed), 0
    while not ended.wait(chance.expovariate(4.0 * share)):
        if processes := marked(token):
            # Short more often than long: most races need milliseconds, some a second.
            threading.Thread(
                target=freeze, args=(chance.choice(processes), LONGEST_SECONDS * chance.random() ** 2)
            ).start()
            frozen += 1
    return frozen


def main(arguments: list[str]) -> int:
    """Run the command to its end and return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--share", type=float, default=0.5)
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(arguments)
    token, ended = f"{os.getpid()}-{time.monotonic_ns()}", threading.Event()
    counts: list[int] = []
    with subprocess.Popen(options.command, env={**os.environ, MARK: token}) as process:
        thread = threading.Thread(
            target=lambda: counts.append(stutter(token, seed=options.seed, share=options.share, ended=ended))
        )
        thread.start()
        status = process.wait()
        ended.set()
        thread.join()
    print(f"stutter: {counts[0]} times (seed {options.seed})", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
