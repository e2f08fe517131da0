"""Processes of Python that are forks of one which has imported what they need, so that a start takes milliseconds.

`forks.run` and `forks.Process` take what `subprocess.run` and `subprocess.Popen` take, for commands of this
interpreter: a module, a script or a text, with arguments. Each is a real process with its own environment, directory,
files and session, can be killed, stopped and waited for, and ends as an interpreter ends. What it starts itself is new.
"""

import atexit
import contextlib
import gc
import importlib
import inspect
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

COMMANDS = ("warmed",)
"""For supervisors and most commands; no torch."""
STAGES = (
    *("warmed", "charter.models.preload", "charter.inference.serve.server"),
    *("charter.feedback.critique", "charter.feedback.generate", "charter.feedback.label", "charter.train.dpo"),
)
"""For stages as processes of their own, and servers of models."""
SINGLE = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
"""The interpreter that is forked has one thread: libraries read this when they are loaded."""
MESSAGE_BYTES = 1 << 17


class Process(subprocess.Popen[Any]):
    """A process of this interpreter; `preload` is what it need not import."""

    def __init__(self, command: Sequence[str], *, preload: Sequence[str] = COMMANDS, **options: Any) -> None:
        self._interpreter = _interpreter(tuple(preload))
        super().__init__(command, **options)

    def _execute_child(self, *given: Any) -> None:
        asked = inspect.signature(subprocess.Popen._execute_child).bind(self, *given).arguments
        program, *arguments = (os.fspath(word) for word in asked["args"])
        assert program == sys.executable
        assert not any(asked[name] for name in ("shell", "preexec_fn", "pass_fds"))
        request = {
            "arguments": arguments,
            "directory": os.fspath(asked["cwd"] or os.getcwd()),
            "environment": dict(os.environ if asked["env"] is None else asked["env"]),
            "session": asked["start_new_session"],
        }
        pipes = [(asked["p2cread"], asked["p2cwrite"]), (asked["c2pwrite"], asked["c2pread"])]
        pipes.append((asked["errwrite"], asked["errread"]))
        theirs = [end if end != -1 else number for number, (end, _) in enumerate(pipes)]
        self._reports, reports = socket.socketpair()
        with reports:
            socket.send_fds(self._interpreter, [json.dumps(request).encode()], [reports.fileno(), *theirs])
        for end, ours in pipes:
            # As Popen does: a file of the caller's stays open, the far end of a pipe does not.
            if end != -1 and ours != -1:
                os.close(end)
        self._child_created = True
        self._said = b""
        while b"\n" not in self._said:
            received = self._reports.recv(64)
            assert received, "the interpreter that is forked has ended; what it said is above"
            self._said += received
        self.pid = int(self._said.partition(b"\n")[0])

    def _try_wait(self, flags: int) -> tuple[int, int]:
        """Say how it ended, once the interpreter has said it."""
        while self._said.count(b"\n") < 2:
            try:
                received = self._reports.recv(64, socket.MSG_DONTWAIT if flags else 0)
            except BlockingIOError:
                return 0, 0
            self._said += received or f"\n{int(signal.SIGKILL)}\n".encode()
        self._reports.close()
        return self.pid, int(self._said.split(b"\n")[1])

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        if self.returncode is None and self._waitpid_lock.acquire(False):
            try:
                pid, status = self._try_wait(os.WNOHANG)
                if pid:
                    self._handle_exitstatus(status)
            finally:
                self._waitpid_lock.release()
        return self.returncode


def run(
    command: Sequence[str],
    *,
    capture_output: bool = False,
    check: bool = False,
    timeout: float | None = None,
    **options: Any,
) -> "subprocess.CompletedProcess[Any]":
    """Run a command to its end, as `subprocess.run` does."""
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Process(command, **options) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


@cache
def _interpreter(preload: tuple[str, ...]) -> socket.socket:
    """A connection to an interpreter that has imported these; it ends when this process does."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno()), *preload],
            stdin=subprocess.DEVNULL,
            env={**os.environ, **SINGLE},
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def _serve(requests: socket.socket) -> dict[str, Any] | None:
    """Fork for every request, and report ends; in a fork its request is the answer, and None when nobody asks more."""
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    running: dict[int, socket.socket] = {}
    while True:
        readable, _, _ = select.select([requests, wake_read], [], [])
        if wake_read in readable:
            os.read(wake_read, 4096)
            _reap(running)
        if requests not in readable:
            continue
        message, descriptors, _, _ = socket.recv_fds(requests, MESSAGE_BYTES, 4)
        if not message:
            return None
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for number in (wake_read, wake_write):
                os.close(number)
            for connection in (requests, *running.values()):
                connection.close()
            return _become(json.loads(message), descriptors)
        running[pid] = socket.socket(fileno=descriptors[0])
        for number in descriptors[1:]:
            os.close(number)
        _report(running[pid], pid)


def _reap(running: dict[int, socket.socket]) -> None:
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            connection = running.pop(ended[0])
            _report(connection, ended[1])
            connection.close()


def _report(connection: socket.socket, number: int) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        connection.sendall(f"{number}\n".encode())


def _become(request: dict[str, Any], descriptors: Sequence[int]) -> dict[str, Any]:
    """Take on the session, files, directory and environment that were asked for."""
    if request["session"]:
        os.setsid()
    reports, *streams = descriptors
    os.close(reports)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    return request


def _run(arguments: Sequence[str]) -> None:
    """Run what stands behind `python` on a command line, as the interpreter would."""
    first, *rest = arguments
    sys.path[:0] = [
        path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path not in sys.path
    ]
    if first == "-m":
        module, *rest = rest
        sys.argv = [module, *rest]
        sys.path.insert(0, os.getcwd())
        sys.modules.pop(module, None)
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    elif first == "-c":
        code, *rest = rest
        sys.argv = ["-c", *rest]
        sys.path.insert(0, "")
        text = os.memfd_create("command")
        os.write(text, code.encode())
        runpy.run_path(f"/proc/self/fd/{text}", run_name="__main__")
    else:
        sys.argv = [first, *rest]
        sys.path.insert(0, str(Path(first).parent))
        runpy.run_path(first, run_name="__main__")


class _Replaced(BaseException):
    """The program of a fork is replaced by another one of this interpreter; its arguments."""


def _execv(program: str, arguments: Sequence[str]) -> NoReturn:
    assert program == sys.executable
    raise _Replaced(*arguments[1:])


def main() -> None:
    """Import what was named, and serve; a fork goes on as the command that it was made for."""
    descriptor, *preload = sys.argv[1:]
    gc.disable()
    for module in preload:
        importlib.import_module(module)
    sys.path.pop(0)
    gc.collect()
    gc.freeze()
    gc.enable()
    request = _serve(socket.socket(fileno=int(descriptor)))
    arguments = None if request is None else request["arguments"]
    os.execv = _execv  # type: ignore[assignment]
    while arguments:
        try:
            _run(arguments)
            break
        except _Replaced as replaced:
            arguments = replaced.args


if __name__ == "__main__":
    main()
