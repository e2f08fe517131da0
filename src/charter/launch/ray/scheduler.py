"""Ray as a scheduler: what is asked of it is rendered purely, and a keeper in the cluster carries it out."""

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from charter.errors import MissingExtraError, StageError, UsageError, how_to_install
from charter.launch.job import StageJob, secret_values
from charter.launch.ray.request import render_request, request_of
from charter.launch.scheduler import JobAttempt, JobState
from charter.spec.launching import RaySettings

CONNECT_SECONDS = 90.0
ANSWER_SECONDS = 75.0
LEAST_VERSION = "2.52"


class BridgeClient:
    """One bridge at a time to the cluster at `address`."""

    def __init__(self, address: str) -> None:
        if find_spec("ray") is None:
            raise MissingExtraError(
                f"the scheduler ray needs Ray {LEAST_VERSION} or newer, which is not installed here\n"
                f"  {how_to_install('ray')}"
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
        try:
            message: dict[str, Any] = json.loads(line)
        except ValueError:
            # Something printed into the bridge's answers: what comes after it may belong to anything.
            self._process.kill()
            raise EOFError from None
        return message

    def _said(self) -> str:
        """The end of what the bridge printed, for messages."""
        if self._complaints is None:
            return ""
        self._complaints.seek(0)
        lines = self._complaints.read()[-4000:].decode(errors="replace").strip().splitlines()
        return "\n  ".join(line.strip() for line in lines[-4:])

    def _unreachable(self, cause: str, said: str) -> str:
        more = f"\n  it printed: {said}" if said and said not in cause else ""
        return (
            f"no connection to the Ray cluster at {self._address}: {cause}{more}\n"
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


LOG_BYTES = 256 * 1024


class RayScheduler:
    """Stages as tasks of a Ray cluster. A job's number is its name."""

    name = "ray"

    def __init__(self, settings: RaySettings) -> None:
        self._settings = settings
        self._client: BridgeClient | None = None

    def render(self, job: StageJob) -> str:
        """Return the request to the cluster, as text."""
        return render_request(job, self._settings)

    def submit(self, job: StageJob) -> str:
        """Hand a job to the keeper; one call, whatever the number of shards, and harmless when repeated."""
        values = secret_values(job.secrets)
        return str(self._ask("submit", request_of(job, self._settings), values))

    def find(self, name: str) -> str | None:
        """The job of this name, if the keeper has it."""
        return name if self._ask("knows", name) else None

    def poll(self, job_ids: Sequence[str]) -> Mapping[str, JobState]:
        """Return the states of jobs; one call for all."""
        states = self._ask("poll", list(job_ids))
        return {job: state_of(states[job]) if job in states else JobState(phase="unknown") for job in job_ids}

    def cancel(self, job_id: str) -> None:
        """End a job; what it ran has ended when this returns."""
        self._ask("cancel", job_id)

    def release(self, job_id: str) -> None:
        """Nothing: a job that is started again waits for a node only."""

    def logs(self, job_id: str) -> str:
        """The end of the job's log file, which lies in the shared stage directory."""
        path = self._ask("log_path", job_id)
        if path is None or not Path(path).is_file():
            return ""
        with Path(path).open("rb") as log:
            log.seek(max(0, log.seek(0, 2) - LOG_BYTES))
            return log.read().decode(errors="replace")

    def attempts(self, job_id: str) -> tuple[JobAttempt, ...]:
        """Every start by the keeper's records."""
        return tuple(JobAttempt(**{**item, "nodes": tuple(item["nodes"])}) for item in self._ask("attempts", job_id))

    def nodes(self) -> tuple[Mapping[str, Any], ...]:
        """The nodes of the cluster: name, whether alive, resources."""
        return tuple(self._ask("nodes"))

    def close(self) -> None:
        """End the connection; jobs go on."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _ask(self, verb: str, *arguments: Any) -> Any:
        if self._client is None:
            self._client = BridgeClient(self._settings.address)
        return self._client.ask(verb, *arguments)


def state_of(plain: Mapping[str, Any]) -> JobState:
    """A job's state from what the keeper says."""
    tasks = plain.get("tasks")
    return JobState(
        phase=plain["phase"],
        cause=plain["cause"],
        exit_code=plain["exit_code"],
        restarts=plain["restarts"],
        nodes=tuple(plain["nodes"]),
        reason=plain["reason"],
        tasks=None if tasks is None else {int(number): state_of(task) for number, task in tasks.items()},
    )
