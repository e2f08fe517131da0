"""A reward function in a process of its own, from the side that asks: time limits, restarts, failures."""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from charter.errors import StageError

START_SECONDS = 60.0
"""Longest time until a process has loaded its function."""
END_SECONDS = 5.0
"""Longest time for the end of a process that has closed its pipe."""
FILE_BYTES = 64 * 2**20
"""Largest file that a function may write."""
OPEN_FILES = 256
"""Files that a function may have open."""
TRIES = 2
"""Calls of one answer where the process died or took too long; an exception of a pure function comes again."""


@dataclass(frozen=True)
class Failed:
    """A call that gave no reward, and why; never taken for a number."""

    reason: str


@dataclass
class RewardProcess:
    """One function, and the process that calls it; started when first needed, and again after it died."""

    call: str
    arguments: Mapping[str, Any]
    timeout_seconds: float
    memory_bytes: int
    is_isolated: bool | None = None
    """Whether its processes have no network; None before the first has started."""
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _rest: bytes = field(default=b"", init=False)
    _directory: tempfile.TemporaryDirectory[str] | None = field(default=None, init=False)

    def ask(self, offered: Mapping[str, Any]) -> float | Failed | None:
        """The reward of one answer; None where it does not apply."""
        outcome: float | Failed | None = Failed("never asked")
        for _ in range(TRIES):
            self._start()
            reply = self._exchange(offered, self.timeout_seconds)
            if reply is not None:
                return Failed(str(reply["error"])) if "error" in reply else reply["reward"]
            outcome = Failed(self._end())
        return outcome

    def close(self) -> None:
        """End the process and all that it started."""
        self._end()
        if self._directory is not None:
            self._directory.cleanup()
            self._directory = None

    def _start(self) -> None:
        if self._process is not None:
            return
        if self._directory is None:
            self._directory = tempfile.TemporaryDirectory(prefix="charter-reward-")
        self._rest = b""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "charter.train.rewards.functions"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=self._directory.name,
            env=_environment(self._directory.name),
            start_new_session=True,
        )
        settings = {
            "call": self.call,
            "arguments": dict(self.arguments),
            "memory_bytes": self.memory_bytes,
            "file_bytes": FILE_BYTES,
            "open_files": OPEN_FILES,
        }
        hello = self._exchange(settings, START_SECONDS)
        if hello is None or "error" in hello:
            why = self._end() if hello is None else str(hello["error"])
            self.close()
            raise StageError(f"the reward function {self.call} cannot be loaded: {why}")
        self.is_isolated = bool(hello["isolated"])

    def _exchange(self, content: Mapping[str, Any], seconds: float) -> dict[str, Any] | None:
        """Send a line and wait for the one that answers it; None where none came in time."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(content).encode() + b"\n")
            process.stdin.flush()
        except OSError:
            return None
        until = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                if not selector.select(max(0.0, until - time.monotonic())):
                    return None
                part = os.read(process.stdout.fileno(), 1 << 16)
                if not part:
                    self._wait_for_end()
                    return None
                self._rest += part
        line, _, self._rest = self._rest.partition(b"\n")
        try:
            reply = json.loads(line)
        except ValueError:
            return None
        return reply if isinstance(reply, dict) else None

    def _wait_for_end(self) -> None:
        """Let a process that has closed its pipe end by itself, so that its exit code is its own."""
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS)

    def _end(self) -> str:
        """End the process group; how the process had ended, or that it had not."""
        process, self._process = self._process, None
        if process is None:
            return "it was not running"
        code = process.poll()
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        return f"no answer within {self.timeout_seconds:g} s" if code is None else f"its process ended with {code}"


def _environment(directory: str) -> dict[str, str]:
    """Variables of a reward's process: none of the caller's secrets, no accelerator, the same hashes each time."""
    inherited = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH") if name in os.environ}
    source = str(Path(__file__).parents[3])
    return {
        **inherited,
        "HOME": directory,
        "TMPDIR": directory,
        "PYTHONPATH": source,
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }
