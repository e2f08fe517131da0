"""Stands between a stage process and an engine, so that no process of the engine outlives the stage process.

    python -I guard.py FD COMMAND ...

FD is the end of a pipe whose other end the stage process holds: when that is closed, by whatever ends the stage
process, everything that the engine has started is killed. Processes that lost their parent become children of the
guard, so none is missed. SIGTERM is passed on to the engine; the guard then ends when all of it has ended. It is run as
a file, needs the standard library alone, and takes milliseconds to start.
"""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from types import FrameType

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
LOOK_SECONDS = 0.05
SIGNALLED = 128
"""A shell's exit code of a process that a signal ended is this and the signal's number."""


def main() -> None:
    """Start the command, and keep it."""
    pipe, command = int(sys.argv[1]), sys.argv[2:]
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    guard = Guard(command)
    signal.signal(signal.SIGTERM, guard.ask_to_stop)
    code = guard.keep(pipe)
    sys.exit(SIGNALLED - code if code < 0 else code)


class Guard:
    """The processes of one engine."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_die_with_parent
        )
        self._asked = False

    def keep(self, pipe: int) -> int:
        """Wait for the end of all processes, or of whoever holds the pipe; the exit code of the first of them."""
        while True:
            readable = select.select([pipe], [], [], LOOK_SECONDS)[0]
            if readable and not os.read(pipe, 1):
                self._kill_all()
                return -signal.SIGKILL
            code = self._process.poll()
            self._reap()
            if code is not None and (not self._asked or not descendants(os.getpid())):
                self._kill_all()
                return code

    def ask_to_stop(self, number: int, frame: FrameType | None) -> None:
        """Pass SIGTERM on to the engine's own group."""
        self._asked = True
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGTERM)

    def _kill_all(self) -> None:
        while left := descendants(os.getpid()):
            for pid in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            self._process.poll()
            self._reap()
            time.sleep(0.005)

    def _reap(self) -> None:
        """Take in processes that lost their parent; the first one is left to `poll`."""
        for pid in children(os.getpid()):
            if pid != self._process.pid:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)


def descendants(pid: int) -> set[int]:
    """All processes that were started below a process and still run."""
    below: dict[int, set[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal() and (found := _parent_of(int(name))) is not None:
            below.setdefault(found, set()).add(int(name))
    found_all: set[int] = set()
    waiting = [pid]
    while waiting:
        new = below.get(waiting.pop(), set()) - found_all
        found_all |= new
        waiting += new
    return found_all


def children(pid: int) -> list[int]:
    """The processes that a process has to wait for, ended ones too."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return []


def _parent_of(pid: int) -> int | None:
    """The parent of a process that has not ended."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            state, parent = file.read().rpartition(")")[2].split()[:2]
    except (OSError, ValueError):
        return None
    return None if state in "ZX" else int(parent)


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(option, value)


def _die_with_parent() -> None:
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main()
