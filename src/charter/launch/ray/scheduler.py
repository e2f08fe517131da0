"""Ray as an engine: what is asked of it is rendered purely, and a keeper in the cluster carries it out."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from charter.launch.job import StageJob
from charter.launch.ray.client import BridgeClient
from charter.launch.ray.request import render_request, request_of
from charter.launch.scheduler import JobAttempt, JobState
from charter.launch.secret_values import secret_values
from charter.spec.launching import RaySettings

LOG_BYTES = 256 * 1024


class RayScheduler:
    """Stages as tasks of a Ray cluster. A job's number is its name."""

    name = "ray"

    def __init__(self, settings: RaySettings) -> None:
        self._settings = settings
        self._client: BridgeClient | None = None

    def render(self, job: StageJob) -> str:
        """What is asked of the cluster."""
        return render_request(job, self._settings)

    def submit(self, job: StageJob) -> str:
        """Hand a job to the keeper; one call, whatever the number of shards, and harmless when repeated."""
        values = secret_values(job.secrets)
        return str(self._ask("submit", request_of(job, self._settings), values))

    def find(self, name: str) -> str | None:
        """The job of this name, if the keeper has it."""
        return name if self._ask("knows", name) else None

    def poll(self, job_ids: Sequence[str]) -> Mapping[str, JobState]:
        """How jobs stand; one call for all."""
        known = self._ask("poll", list(job_ids))
        return {job: state_of(known[job]) if job in known else JobState(phase="unknown") for job in job_ids}

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
