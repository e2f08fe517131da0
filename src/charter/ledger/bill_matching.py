"""Which attempt a line of a bill is for: by its tags, its job, its machine and its time. Pure."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from charter.ledger.attempt import Attempt
from charter.ledger.node_names import expand_nodes

JOB_TAGS = ("x_JobId", "job_id", "JobID", "job", "slurm_job_id", "charter_job")
ATTEMPT_TAGS = ("x_AttemptId",)
SLACK_SECONDS = 120.0
"""Providers count from when a machine starts to when it is gone; the ledger counts the job in between."""


class Line(Protocol):
    """What a line says of itself."""

    @property
    def started_at(self) -> float | None:
        """Unix seconds."""

    @property
    def ended_at(self) -> float | None:
        """Unix seconds."""

    @property
    def resource(self) -> str:
        """What the provider calls it."""

    @property
    def tags(self) -> Mapping[str, str]:
        """What was put on it."""


class Matcher:
    """The attempts of a ledger, ready to be found."""

    def __init__(self, attempts: Sequence[Attempt]) -> None:
        self._by_id = {str(attempt.attempt_id): attempt for attempt in attempts}
        self._by_tags = {(it.run, it.stage, str(it.number)): it for it in attempts}
        self._by_job: dict[str, list[Attempt]] = {}
        self._by_machine: dict[str, list[Attempt]] = {}
        for attempt in attempts:
            if attempt.job_id:
                self._by_job.setdefault(attempt.job_id, []).append(attempt)
            for name in _machines(attempt):
                self._by_machine.setdefault(name, []).append(attempt)

    def attempt_of(self, line: Line) -> int | None:
        """The attempt that a line is for; None when there is none, or several would do as well."""
        for tag in ATTEMPT_TAGS:
            if (found := self._by_id.get(line.tags.get(tag, ""))) is not None:
                return found.attempt_id
        tags = line.tags
        own = (tags.get("run", ""), tags.get("stage", ""), tags.get("attempt", ""))
        if (found := self._by_tags.get(own)) is not None:
            return found.attempt_id
        names = [value for tag in JOB_TAGS if (value := tags.get(tag))]
        for name in (*names, line.resource):
            if name in self._by_job:
                return _nearest(self._by_job[name], line, any_time=True)
        return _nearest(self._by_machine.get(line.resource, ()), line, any_time=False)


def _machines(attempt: Attempt) -> tuple[str, ...]:
    return expand_nodes(attempt.nodes) or ((attempt.host,) if attempt.host else ())


def _nearest(attempts: Sequence[Attempt], line: Line, *, any_time: bool) -> int | None:
    """The attempt that has most of the line's time; a job without a time is enough where it has one attempt."""
    if line.started_at is None or line.ended_at is None:
        return attempts[0].attempt_id if any_time and len(attempts) == 1 else None
    best, most = None, 0.0
    for attempt in attempts:
        end = attempt.started_at + attempt.duration_milliseconds / 1000
        shared = min(end, line.ended_at) - max(attempt.started_at, line.started_at)
        near = shared + SLACK_SECONDS
        if near > 0 and (best is None or shared > most):
            best, most = attempt.attempt_id, shared
    if best is None and any_time and len(attempts) == 1:
        return attempts[0].attempt_id
    return best
