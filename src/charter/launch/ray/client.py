"""The supervisor's end of the bridge: starts it, asks it, starts it again when it has died."""

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.util import find_spec
from typing import IO, Any

from charter.errors import MissingExtraError, StageError, UsageError

CONNECT_SECONDS = 90.0
ANSWER_SECONDS = 75.0
LEAST_VERSION = "2.52"


class BridgeClient:
    """One bridge at a time to the cluster at `address`."""

    def __init__(self, address: str) -> None:
        if find_spec("ray") is None:
            raise MissingExtraError(
                f"the engine ray needs Ray {LEAST_VERSION} or newer, which is not installed here\n"
                '  pip install "charter-plan[ray]"'
            )
        self._address = address
        self._process: subprocess.Popen[bytes] | None = None
        self._complaints: IO[bytes] | None = None
        self._buffer = b""
        self._number = 0

    def ask(self, verb: str, *arguments: Any) -> Any:
        """The answer to one request; when the bridge dies under it, that of another: every request may be repeated."""
        for last in (False, True):
            try:
                return self._asked(verb, arguments)
            except (EOFError, BrokenPipeError):
                said = self._said()
                self.close()
                if last:
                    raise StageError(self._unreachable("the connection broke twice", said)) from None
        raise AssertionError("unreachable")

    def close(self) -> None:
        """End the bridge; jobs go on."""
        if self._process is not None:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            with contextlib.suppress(OSError):
                self._process.stdin.close()
            try:
                self._process.wait(timeout=3.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process.stdout.close()
        if self._complaints is not None:
            self._complaints.close()
        self._process = self._complaints = None
        self._buffer = b""

    def _asked(self, verb: str, arguments: Sequence[Any]) -> Any:
        process = self._connected()
        self._number += 1
        message = {"id": self._number, "verb": verb, "arguments": list(arguments)}
        assert process.stdin is not None
        process.stdin.write(json.dumps(message).encode() + b"\n")
        process.stdin.flush()
        answer = self._line(ANSWER_SECONDS)
        if "error" in answer:
            raise StageError(f"Ray could not {verb} ({answer['kind']}): {answer['error']}")
        return answer["result"]

    def _connected(self) -> "subprocess.Popen[bytes]":
        if self._process is not None and self._process.poll() is None:
            return self._process
        self.close()
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the bridge
        self._process = subprocess.Popen(
            bridge_command(self._address),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            env=_environment(),
            start_new_session=True,
        )
        try:
            answer = self._line(CONNECT_SECONDS)
        except EOFError:
            answer = {"error": "it ended at once"}
        if "error" in answer:
            said = self._said()
            self.close()
            raise UsageError(self._unreachable(answer["error"], said))
        return self._process

    def _line(self, seconds: float) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        end = time.monotonic() + seconds
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                self._process.kill()
                raise EOFError
            received = os.read(self._process.stdout.fileno(), 1 << 20)
            if not received:
                raise EOFError
            self._buffer += received
        line, _, self._buffer = self._buffer.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found

    def _said(self) -> str:
        """The end of what the bridge printed, for messages."""
        if self._complaints is None:
            return ""
        self._complaints.seek(0)
        lines = self._complaints.read()[-4000:].decode(errors="replace").strip().splitlines()
        return "\n  ".join(line.strip() for line in lines[-4:])

    def _unreachable(self, found: str, said: str) -> str:
        more = f"\n  it printed: {said}" if said and said not in found else ""
        return (
            f"no connection to the Ray cluster at {self._address}: {found}{more}\n"
            "  a cluster of this machine: ray start --head, and launch.ray.address: auto\n"
            "  another one: ray start --address=HEAD:PORT --num-cpus=0 here, or launch.ray.address: ray://HEAD:10001\n"
            "  a cluster with a token: the same RAY_AUTH_TOKEN (or ~/.ray/auth_token) here, and RAY_AUTH_MODE=token"
        )


def bridge_command(address: str) -> list[str]:
    """The command of a bridge to the cluster at an address."""
    return [sys.executable, "-m", "charter.launch.ray.bridge", "--address", address]


def _environment() -> dict[str, str]:
    """Ours, with what Ray prints and sends of its own accord turned off."""
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_BACKEND_LOG_LEVEL": "fatal", "PYTHONUNBUFFERED": "1"}
    return {**os.environ, **quiet}
