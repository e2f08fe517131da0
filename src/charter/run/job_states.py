"""Where a stage's job is, by what its agents and its supervisor have written: no engine is asked."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from charter.artifacts.group import heartbeat_path
from charter.artifacts.job_files import JobFiles, NodeRecord, numbers

if TYPE_CHECKING:
    from charter.artifacts.job_files import Submission


ALIVE_SECONDS = 120.0
"""A process that has given no sign of life for so long is not said to run, unless its supervisor says so."""


@dataclass(frozen=True, kw_only=True)
class JobNow:
    """A job that has been submitted and not ended, as far as the files say."""

    state: Literal["running", "pending"]
    why: str


def job_now(stage_dir: Path, *, now: float | None = None) -> JobNow | None:
    """The job of a stage that waits or runs; None where none does."""
    known = numbers(stage_dir)
    if not known:
        return None
    from charter.artifacts.job_files import read_submission

    submission = read_submission(JobFiles(stage_dir, known[-1]))
    if submission is None or submission.ended or submission.job_id is None:
        return None
    records = [*JobFiles(stage_dir, submission.number).nodes()]
    name = f"{submission.engine} job {submission.job_id}"
    if not records:
        return JobNow(state="pending", why=f"waits in the queue as {name}")
    latest = max(record.restart for record in records)
    return _running(stage_dir, submission, [record for record in records if record.restart == latest], name, now)


def _running(
    stage_dir: Path, submission: "Submission", records: list[NodeRecord], name: str, now: float | None
) -> JobNow | None:
    left = [record for record in records if record.ended_at is None]
    if not left:
        return None
    at = time.time() if now is None else now
    signs = [heartbeat_path(stage_dir, record.first_rank) for record in left]
    seen = [path.stat().st_mtime for path in signs if path.exists()] + [record.started_at for record in left]
    if at - max(seen) > ALIVE_SECONDS:
        return None
    hosts = ", ".join(sorted({record.host for record in left})[:4])
    what = f"{len(left)} of {len(submission.shards)} tasks" if submission.shards else "it"
    return JobNow(state="running", why=f"{what} on {hosts} as {name}")
