"""The launcher of this machine: stages as forks of a preloaded server, or as plain processes."""

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

from charter.errors import StageError
from charter.launch.children import (
    DeviceShares,
    GroupHandle,
    OnThisMachine,
    ProcessLauncher,
    at_end,
    inherited_environment,
    rank_environments,
    with_servers,
)
from charter.launch.launcher import Launcher, StageStart
from charter.launch.machine import visible_gpus
from charter.launch.servers import ServerKeeper

LAUNCH_VARIABLE = "CHARTER_LAUNCH"
"""`process` starts every stage as a process of its own instead of forking the preloaded server."""


def local_launcher(*, preload: Sequence[str], server_log: Path, environment: Mapping[str, str]) -> Launcher:
    """The fork server, or plain processes where the environment says so or the system cannot fork safely."""
    if os.environ.get(LAUNCH_VARIABLE) == "process" or sys.platform != "linux":
        return ProcessLauncher(environment=environment)
    return ForkServerLauncher(preload=preload, server_log=server_log, environment=environment)


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


class ForkServerLauncher(OnThisMachine):
    """Stages are forks of one server, which imports at once and is started again when it dies."""

    def __init__(self, *, preload: Sequence[str], server_log: Path, environment: Mapping[str, str]) -> None:
        self._preload = tuple(preload)
        self._server_log = server_log
        self._environment = inherited_environment(environment)
        self._ids = itertools.count(1)
        self._handles: dict[int, ForkHandle] = {}
        self._buffer = b""
        self._keepers: list[ServerKeeper] = []
        self._devices = DeviceShares(visible_gpus())
        self._server: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        self._connected()

    def start(self, request: StageStart) -> GroupHandle:
        """Ask the server for forks; they start when it has finished its imports."""
        request, give_back = self._devices.taken(request)
        request, keeper = with_servers(request)
        self._keepers += [] if keeper is None else [keeper]
        members = [self._fork(request, environment) for environment in rank_environments(request)]
        return GroupHandle(members, at_end=at_end(keeper, give_back))

    def renew(self) -> None:
        """End the server and with it every stage; the next start makes another one."""
        self._server_died()

    def _fork(self, request: StageStart, environment: Mapping[str, str]) -> "ForkHandle":
        handle = ForkHandle(self)
        number = next(self._ids)
        message = {
            "id": number,
            "module": request.module,
            "stage_dir": str(request.stage_dir),
            "environment": environment,
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

    def end_all(self) -> None:
        """End what still runs."""
        self.close()

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
        for keeper in self._keepers:
            keeper.end()
        self._keepers.clear()

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
        handles, self._handles = list(self._handles.values()), {}
        for handle in handles:
            _wait_gone(handle.pid)
            handle.ended(-signal.SIGKILL)


class ForkHandle:
    """A stage that is a child of the stage server."""

    def __init__(self, launcher: ForkServerLauncher) -> None:
        self._launcher = launcher
        self._pid: int | None = None
        self._exit: int | None = None
        self._wanted: signal.Signals | None = None

    @property
    def pid(self) -> int | None:
        """Its process id, None until the server has said it."""
        self._launcher.receive()
        return self._pid

    def poll(self) -> int | None:
        """Its exit code, or None while it runs."""
        self._launcher.receive()
        return self._exit

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, as soon as it exists; of several before that, the last one."""
        self._wanted = number
        if self._pid is not None and self._exit is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, number)

    def started(self, pid: int) -> None:
        """The server has said its process id."""
        self._pid = pid
        if self._wanted is not None:
            self.send(self._wanted)

    def ended(self, code: int) -> None:
        """The server has said how it ended."""
        self._exit = code


def _wait_gone(pid: int | None) -> None:
    deadline = time.monotonic() + 5.0
    while pid is not None and time.monotonic() < deadline and os.path.isdir(f"/proc/{pid}"):
        time.sleep(0.005)
