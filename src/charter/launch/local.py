"""The engine of this machine: stages as forks of a preloaded server, or as plain processes."""

import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from charter.artifacts import faults
from charter.artifacts.stage_process import LOG
from charter.errors import StageError
from charter.launch.commands import stage_command
from charter.launch.engine import Engine, StageStart

LAUNCH_VARIABLE = "CHARTER_LAUNCH"
"""`process` starts every stage as a process of its own instead of forking the preloaded server."""


def local_engine(*, preload: Sequence[str], server_log: Path, environment: Mapping[str, str]) -> Engine:
    """The fork server, or plain processes where the environment says so or the system cannot fork safely."""
    if os.environ.get(LAUNCH_VARIABLE) == "process" or sys.platform != "linux":
        return ProcessEngine(environment=environment)
    return ForkServerEngine(preload=preload, server_log=server_log, environment=environment)


def stage_environment(*, threads: int) -> dict[str, str]:
    """Variables that libraries read when they are loaded: threads, no spinning while idle, no bars in logs."""
    return {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        "TOKENIZERS_PARALLELISM": "false",
        "TQDM_DISABLE": "1",
        "PYTHONUNBUFFERED": "1",
    }


class ProcessEngine:
    """Every stage is a process of its own: `python -m charter.train.sft --stage-dir D`."""

    def __init__(self, *, environment: Mapping[str, str]) -> None:
        self._environment = {**os.environ, **environment, faults.SUPERVISOR_PID: str(os.getpid())}
        self._started: list[ProcessHandle] = []

    def start(self, request: StageStart) -> "ProcessHandle":
        """Start a process with its output in the stage's log."""
        environment = {**self._environment, **request.environment, faults.ATTEMPT: str(request.attempt)}
        with (request.stage_dir / LOG).open("ab") as log:
            process = subprocess.Popen(
                stage_command(request.module, request.stage_dir),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        handle = ProcessHandle(process)
        self._started.append(handle)
        return handle

    def close(self) -> None:
        """End what still runs."""
        for handle in self._started:
            handle.kill()
            handle.wait()


class ProcessHandle:
    """A stage that is a child of the supervisor."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process

    @property
    def pid(self) -> int | None:
        """Its process id."""
        return self._process.pid

    def poll(self) -> int | None:
        """Its exit code, or None while it runs."""
        return self._process.poll()

    def stop(self) -> None:
        """SIGTERM."""
        self._process.terminate()

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()

    def wait(self) -> None:
        """Wait for its end."""
        self._process.wait()


class ForkServerEngine:
    """Stages are forks of one server, which imports at once and is started again when it dies."""

    def __init__(self, *, preload: Sequence[str], server_log: Path, environment: Mapping[str, str]) -> None:
        self._preload = tuple(preload)
        self._server_log = server_log
        self._environment = {**os.environ, **environment, faults.SUPERVISOR_PID: str(os.getpid())}
        self._ids = itertools.count(1)
        self._handles: dict[int, ForkHandle] = {}
        self._buffer = b""
        self._server: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        self._connected()

    def start(self, request: StageStart) -> "ForkHandle":
        """Ask the server for a fork; the stage starts when the server has finished its imports."""
        handle = ForkHandle(self)
        number = next(self._ids)
        message = {
            "id": number,
            "module": request.module,
            "stage_dir": str(request.stage_dir),
            "environment": {**request.environment, faults.ATTEMPT: str(request.attempt)},
        }
        self.receive()
        for attempt in range(2):
            try:
                self._connected().sendall(json.dumps(message).encode() + b"\n")
                break
            except (BrokenPipeError, ConnectionResetError):
                self._server_died()
                if attempt:
                    raise StageError(f"the stage server dies at once; its log is {self._server_log}") from None
        self._handles[number] = handle
        return handle

    def receive(self) -> None:
        """Take in what the server has said, without waiting."""
        if self._connection is None:
            return
        try:
            while received := self._connection.recv(65536, socket.MSG_DONTWAIT):
                self._buffer += received
        except BlockingIOError:
            received = b"-"
        except ConnectionResetError:
            received = b""
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            self._take(json.loads(line))
        if not received:
            self._server_died()

    def close(self) -> None:
        """Close the socket, on which the server ends its children and itself; then make sure."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._server is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._server.wait(timeout=2.0)
            self._server.kill()
            self._server.wait()
            self._server = None

    def _connected(self) -> socket.socket:
        if self._connection is None:
            ours, theirs = socket.socketpair()
            with theirs, self._server_log.open("ab") as log:
                self._server = subprocess.Popen(
                    self._server_command(theirs.fileno()),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=self._environment,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
            self._connection = ours
        return self._connection

    def _server_command(self, descriptor: int) -> list[str]:
        command = [sys.executable, "-m", "charter.launch.stage_server", "--socket", str(descriptor)]
        return [*command, "--supervisor", str(os.getpid()), "--preload", *self._preload]

    def _take(self, message: Mapping[str, Any]) -> None:
        handle = self._handles[message["id"]]
        if "pid" in message:
            handle.started(message["pid"])
        if "exit" in message:
            handle.ended(message["exit"])
            del self._handles[message["id"]]

    def _server_died(self) -> None:
        """The kernel has killed its children with it; every running stage ended by SIGKILL."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._server is not None:
            self._server.kill()
            self._server.wait()
            self._server = None
        self._buffer = b""
        for handle in self._handles.values():
            _wait_gone(handle.pid)
            handle.ended(-signal.SIGKILL)
        self._handles.clear()


class ForkHandle:
    """A stage that is a child of the stage server."""

    def __init__(self, engine: ForkServerEngine) -> None:
        self._engine = engine
        self._pid: int | None = None
        self._exit: int | None = None
        self._wanted: signal.Signals | None = None

    @property
    def pid(self) -> int | None:
        """Its process id, None until the server has said it."""
        self._engine.receive()
        return self._pid

    def poll(self) -> int | None:
        """Its exit code, or None while it runs."""
        self._engine.receive()
        return self._exit

    def stop(self) -> None:
        """SIGTERM, as soon as it exists."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL, as soon as it exists."""
        self._signal(signal.SIGKILL)

    def started(self, pid: int) -> None:
        """The server has said its process id."""
        self._pid = pid
        if self._wanted is not None:
            self._signal(self._wanted)

    def ended(self, code: int) -> None:
        """The server has said how it ended."""
        self._exit = code

    def _signal(self, number: signal.Signals) -> None:
        self._wanted = number
        if self._pid is not None and self._exit is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, number)


def _wait_gone(pid: int | None, *, seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while pid is not None and time.monotonic() < deadline and os.path.isdir(f"/proc/{pid}"):
        time.sleep(0.005)
