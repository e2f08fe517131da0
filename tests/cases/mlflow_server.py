"""A real MLflow server for tests: its own port and database, killed, frozen and brought back at will."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from held_port import held_port
from waiting import eventually

SECONDS_TO_START = 600
"""The first import of the server's packages is slow on a cold disk, and its database is made step by step."""
SECONDS_TO_ANSWER = 60
"""A server that is slow is not one that has gone: only the latter is started again."""
ALONE = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    # Nobody asks for its evaluation jobs, for which it starts nine more processes.
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "OMP_NUM_THREADS": "1",
}


@dataclass(kw_only=True)
class MlflowServer:
    """One server; its data stay when it is killed."""

    directory: Path
    backend: str
    """`sqlite:///FILE` or `postgresql+psycopg://...`."""
    port: int = field(default_factory=held_port)
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def uri(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> "MlflowServer":
        """Start it, again with the same data, and wait until it answers."""
        self.directory.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--backend-store-uri", self.backend, "--workers", "1"]
        command += ["--artifacts-destination", (self.directory / "artifacts").as_uri()]
        with (self.directory / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                env={**os.environ, **ALONE},
                start_new_session=True,
            )
        eventually(self._started, "the MLflow server did not start", seconds=SECONDS_TO_START, every=0.1)
        return self

    def _started(self) -> bool:
        assert self.process.poll() is None, (self.directory / "server.log").read_text()
        return self.works()

    def works(self) -> bool:
        """Whether it answers from its database."""
        request = urllib.request.Request(
            f"{self.uri}/api/2.0/mlflow/experiments/search",
            data=b'{"max_results": 1}',
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=SECONDS_TO_ANSWER) as reply:
                return bool(reply.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the server and its workers."""
        assert self.process is not None
        os.killpg(self.process.pid, number)

    def kill(self) -> None:
        """SIGKILL, as a crash of its machine; returns when its port is free, which its worker held."""
        if self.process is None:
            return
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.signal(signal.SIGKILL)
        self.process.wait()
        self.process = None
        still = f"something of the server still listens at {self.uri}"
        eventually(lambda: not self._listens(), still, seconds=SECONDS_TO_START, every=0.02)

    def _listens(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True
        return False

    def client(self) -> Any:
        """MLflow's own client, to look at what arrived."""
        from mlflow import MlflowClient

        return MlflowClient(tracking_uri=self.uri)
