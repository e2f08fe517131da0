"""One child process, seen from the server: asked one thing at a time, killed when nobody waits any more."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

Json = Mapping[str, Any]


class Stopped(Exception):
    """The process was killed, or ended by itself, before it had answered."""


class Child:
    """Started with the first question, and again after it was killed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()

    def ask(self, job: str, arguments: Json, told: Callable[[Json], None]) -> Json:
        """The last line of the answer; `told` hears those before it. Stopped when the process is gone."""
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps({"job": job, "arguments": arguments}) + "\n")
            process.stdin.flush()
            for line in process.stdout:
                answer: Json = json.loads(line)
                if "told" not in answer:
                    return answer
                told(answer["told"])
        except (OSError, ValueError):
            pass
        self.kill()
        raise Stopped

    def kill(self) -> None:
        """End the process, whatever it is doing."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    _close(stream)

    def _running(self) -> "subprocess.Popen[str]":
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "charter.dashboard.work.child"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    encoding="utf-8",
                    start_new_session=True,
                )
            return self._process


def _close(stream: Any) -> None:
    with suppress(OSError):  # what was still to be written has nobody to read it
        stream.close()
