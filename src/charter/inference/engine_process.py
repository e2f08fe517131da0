"""A program beside this process that is asked over pipes; it never outlives this process, and never hangs it."""

import contextlib
import json
import os
import select
import signal
import struct
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from charter.errors import StageError

MESSAGE_LIMIT_BYTES = 1 << 30
_LOG_TAIL_BYTES = 2000


class EngineProcess:
    """Sends a request, waits for its answer at most so long; whatever goes wrong ends the program with a StageError.

    A message is a length of 4 bytes (big-endian) and as much JSON.
    """

    def __init__(self, name: str, command: Sequence[str], *, environment: Mapping[str, str], log: Path) -> None:
        self._name, self._log, self._number, self._is_killed = name, log, 0, False
        try:
            with log.open("ab") as written:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=written,
                    env=dict(environment),
                    start_new_session=True,
                )
        except OSError as error:
            raise StageError(f"{name}: cannot start {command[0]}: {error}") from None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to, self._from = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._to, False)
        os.set_blocking(self._from, False)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def call(self, operation: str, *, seconds: float, **request: Any) -> dict[str, Any]:
        """The answer to a request; a program that is dead, silent, refuses or talks nonsense is ended."""
        if not self.is_running:
            raise self.failure(f"has ended{self._ending()}")
        self._number += 1
        body = json.dumps({"id": self._number, "op": operation, **request}).encode()
        deadline = time.monotonic() + seconds
        try:
            self._send(struct.pack(">I", len(body)) + body, deadline)
            size = struct.unpack(">I", self._receive(4, deadline))[0]
            if size > MESSAGE_LIMIT_BYTES:
                raise self.failure(f"answered {operation} with a message of {size} bytes, which is not the protocol")
            answer = self._parsed(self._receive(size, deadline), operation)
        except TimeoutError:
            raise self.failure(f"did not answer {operation} within {seconds:g} s") from None
        except EOFError:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(5)
            raise self.failure(f"ended during {operation}{self._ending()}") from None
        if "error" in answer:
            raise self.failure(f"could not {operation}: {answer['error']}")
        return answer

    def kill(self) -> None:
        """End it, and what it has started, now."""
        if self._is_killed:
            return
        self._is_killed = True
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def close(self, *, seconds: float = 5) -> None:
        """Ask it to end, and end it when it does not."""
        if self.is_running:
            with contextlib.suppress(StageError):
                self.call("close", seconds=seconds)
        self.kill()

    def _parsed(self, body: bytes, operation: str) -> dict[str, Any]:
        try:
            answer = json.loads(body)
        except ValueError:
            answer = None
        if not isinstance(answer, dict) or answer.get("id") != self._number:
            raise self.failure(f"answered {operation} with {body[:60]!r}, which is not the protocol")
        return answer

    def _send(self, data: bytes, deadline: float) -> None:
        view = memoryview(data)
        while view:
            self._await([], [self._to], deadline)
            try:
                view = view[os.write(self._to, view) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                raise EOFError from None

    def _receive(self, count: int, deadline: float) -> bytes:
        received = bytearray()
        while len(received) < count:
            self._await([self._from], [], deadline)
            try:
                part = os.read(self._from, min(count - len(received), 1 << 20))
            except BlockingIOError:
                continue
            if not part:
                raise EOFError
            received += part
        return bytes(received)

    @staticmethod
    def _await(readable: list[int], writable: list[int], deadline: float) -> None:
        left = deadline - time.monotonic()
        if left <= 0 or not any(select.select(readable, writable, [], left)):
            raise TimeoutError

    def _ending(self) -> str:
        code = self._process.poll()
        return "" if code is None else f" (exit {code})" if code >= 0 else f" (signal {-code})"

    def failure(self, message: str) -> StageError:
        """End the program; the error that says why."""
        self.kill()
        tail = ""
        with contextlib.suppress(OSError):
            tail = self._log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace").strip()
        said = "\n  " + "\n  ".join(tail.splitlines()[-8:]) if tail else ""
        return StageError(f"{self._name} (process {self._process.pid}) {message}; its log is {self._log}{said}")
