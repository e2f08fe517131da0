"""A real MLflow server for tests: its own port and database, killed, frozen and brought back at will."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SECONDS_TO_START = 600
"""The first import of the server's packages is slow on a cold disk, and its database is made step by step."""


@dataclass(kw_only=True)
class MlflowServer:
    """One server; its data stay when it is killed."""

    directory: Path
    backend: str
    """`sqlite:///FILE` or `postgresql+psycopg://...`."""
    port: int = field(default_factory=lambda: free_port())
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
                env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )
        end = time.monotonic() + SECONDS_TO_START
        while not self.works():
            assert self.process.poll() is None, (self.directory / "server.log").read_text()
            assert time.monotonic() < end, "the MLflow server did not start"
            time.sleep(0.1)
        return self

    def works(self) -> bool:
        """Whether it answers from its database."""
        request = urllib.request.Request(
            f"{self.uri}/api/2.0/mlflow/experiments/search",
            data=b'{"max_results": 1}',
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=5) as reply:
                return bool(reply.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the server and its workers."""
        assert self.process is not None
        os.killpg(self.process.pid, number)

    def kill(self) -> None:
        """SIGKILL, as a crash of its machine."""
        if self.process is not None and self.process.poll() is None:
            self.signal(signal.SIGKILL)
        if self.process is not None:
            self.process.wait()
        self.process = None

    def client(self) -> Any:
        """MLflow's own client, to look at what arrived."""
        from mlflow import MlflowClient

        return MlflowClient(tracking_uri=self.uri)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
