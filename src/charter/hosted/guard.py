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
    guard = EngineGuard()
    signal.signal(signal.SIGTERM, guard.ask_to_stop)  # before there is an engine: no SIGTERM ends the guard alone
    guard.start(command)
    code = guard.keep(pipe)
    sys.exit(SIGNALLED - code if code < 0 else code)


class EngineGuard:
    """The processes of one engine."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._asked = False

    def start(self, command: list[str]) -> None:
        """Start the engine; a stop that was asked for meanwhile is passed on."""
        guard_pid = os.getpid()
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=lambda: _die_with(guard_pid)
        )
        if self._asked:
            self._pass_on()

    def keep(self, pipe: int) -> int:
        """Wait for the end of all processes, or of whoever holds the pipe; the exit code of the first of them."""
        while True:
            readable = select.select([pipe], [], [], LOOK_SECONDS)[0]
            if readable and not os.read(pipe, 1):
                self._kill_all()
                return -signal.SIGKILL
            is_left = self._is_any_left()
            code = None if self._process is None else self._process.returncode
            if code is not None and (not self._asked or not is_left):
                self._kill_all()
                return code

    def ask_to_stop(self, number: int, frame: FrameType | None) -> None:
        """Pass SIGTERM on to the engine's own group."""
        self._asked = True
        self._pass_on()

    def _pass_on(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGTERM)

    def _kill_all(self) -> None:
        while self._is_any_left():
            for pid in descendants(os.getpid()):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.005)

    def _is_any_left(self) -> bool:
        """Take in the processes that have ended; whether there is still one.

        A process that loses its parent becomes a child of the guard, so without a child there is none below. A look at
        /proc alone would miss one whose parent ends while the list is read.
        """
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                if self._process is not None and ended.si_pid == self._process.pid:
                    self._process.poll()
                else:
                    os.waitpid(ended.si_pid, os.WNOHANG)
            return True
        return False


def descendants(pid: int) -> set[int]:
    """All processes that were started below a process and still run."""
    below: dict[int, set[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal() and (parent := _parent_of(int(name))) is not None:
            below.setdefault(parent, set()).add(int(name))
    found_all: set[int] = set()
    waiting = [pid]
    while waiting:
        new = below.get(waiting.pop(), set()) - found_all
        found_all |= new
        waiting += new
    return found_all


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


def _die_with(guard_pid: int) -> None:
    """In the engine's first process: end when the guard ends, and if it already has."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != guard_pid:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
