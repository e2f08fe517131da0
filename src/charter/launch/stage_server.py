"""A process that has imported torch once and forks a child per stage, so that no stage pays the import again.

    python -m charter.launch.stage_server --socket FD --supervisor PID --preload MODULE ...

It speaks JSON lines over an inherited socket: `{"id", "module", "stage_dir", "environment"}` asks for a
stage, `{"id", "pid"}` and later `{"id", "exit"}` answer. It stays single-threaded and computes nothing, which
is what makes forking after the import safe. It dies with the supervisor, and its children die with it.
"""

import argparse
import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from charter.artifacts import faults
from charter.artifacts.group import log_name, rank_of_process
from charter.artifacts.stage_dir import StageDir
from charter.artifacts.stage_process import die_with_parent, end_now, run_stage


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Preload, then serve until the supervisor closes the socket."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--socket", type=int, required=True)
    parser.add_argument("--supervisor", type=int, required=True)
    parser.add_argument("--preload", nargs="*", default=[])
    arguments = parser.parse_args(argv)
    die_with_parent(arguments.supervisor)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    preload(arguments.preload)
    StageServer(socket.socket(fileno=arguments.socket)).serve()
    sys.exit(0)


READS_JOBS = "pydantic.type_adapter"
"""What every stage reads its job with; the package imports its parts at their first use."""


def preload(modules: Sequence[str]) -> None:
    """Import what stages will need; what cannot be imported is said by the stage that needs it."""
    # What imports make stays: looking for garbage among it takes a seventh of their time.
    gc.disable()
    for module in (READS_JOBS, *modules):
        with contextlib.suppress(Exception):
            importlib.import_module(module)
    gc.collect()
    gc.freeze()
    gc.enable()


class StageServer:
    """Forks stages on request and reports how they end."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._buffer = b""
        self._ids: dict[int, int] = {}
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)

    def serve(self) -> None:
        """Serve until the other end is closed, then end the children."""
        while True:
            readable = select.select([self._connection.fileno(), self._wake_read], [], [])[0]
            if self._wake_read in readable:
                os.read(self._wake_read, 4096)
                self._reap()
            if self._connection.fileno() in readable and not self._receive():
                break
        for pid in self._ids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _receive(self) -> bool:
        received = self._connection.recv(65536)
        self._buffer += received
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            self._fork(json.loads(line))
        return bool(received)

    def _fork(self, request: Mapping[str, Any]) -> None:
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_stage(server, request)
        self._ids[pid] = request["id"]
        self._send({"id": request["id"], "pid": pid})

    def _become_stage(self, server: int, request: Mapping[str, Any]) -> NoReturn:
        """In the child: drop what belongs to the server, then run the stage.

        Never returns to the server's loop.
        """
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            die_with_parent(server)
            for descriptor in (self._wake_read, self._wake_write):
                os.close(descriptor)
            self._connection.close()
            os.environ.update(request["environment"])
            faults.reset_count()
            code = _run(request["module"], Path(request["stage_dir"]))
        finally:
            end_now(code)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._send({"id": self._ids.pop(pid), "exit": os.waitstatus_to_exitcode(status)})

    def _send(self, message: Mapping[str, Any]) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._connection.sendall(json.dumps(message).encode() + b"\n")


def _run(module: str, stage_dir: Path) -> int:
    log = os.open(stage_dir / log_name(rank_of_process()), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)

    def load() -> Callable[[StageDir], None]:
        entry: Callable[[StageDir], None] = importlib.import_module(module).run
        return entry

    return run_stage(load, stage_dir)


if __name__ == "__main__":
    main()
