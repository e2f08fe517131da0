"""The supervisor of a run as a job itself: sent once, remembered beside the run, and found again by the next sender."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from charter.artifacts import durable
from charter.artifacts.fence import locked
from charter.artifacts.job_files import JobFiles, numbers, read_submission, write_submission
from charter.artifacts.lease import LEASE, working_holder
from charter.errors import CharterError, UsageError
from charter.launch.job_handle import LiveJob
from charter.launch.job_launcher import left_job
from charter.launch.launcher import RUNS, StageStart, open_scheduler
from charter.launch.scheduler import Scheduler
from charter.launch.submission import SUPERVISOR, SubmissionFacts, new_token, submission_of, supervisor_job
from charter.spec.project import Project

NEXT = "\n  nothing was submitted; `charter status` shows how it goes, `charter stop` ends it"


def supervisor_dir(root: Path) -> Path:
    """Return the directory of the supervisor's jobs."""
    return root / "run" / SUPERVISOR


def send_supervisor(
    project: Project,
    path: Path,
    root: Path,
    scheduler: Scheduler,
    *,
    only: Sequence[str],
    words: Sequence[str],
) -> str:
    """Submit the supervisor, which reads the project from `path`, and say the number of its job.

    Refused where one works already, or waits to.
    """
    directory = supervisor_dir(root)
    durable.make_dir(directory)
    with locked(directory):
        _refuse_a_second(project, root, scheduler)
        order = SubmissionFacts(number=max(numbers(directory), default=0) + 1, token=new_token())
        job = supervisor_job(
            project,
            path,
            root=root,
            scheduler=scheduler.name,
            only=only,
            words=words,
            token=order.token,
        )
        request = StageStart(stage=SUPERVISOR, module="-", stage_dir=directory, attempt=order.number)
        files = JobFiles(directory, order.number)
        submission = submission_of(job, order, request, scheduler=scheduler.name, at=time.time())
        write_submission(files, submission)
        job_id = scheduler.submit(job)
        write_submission(files, replace(submission, job_id=job_id))
        return job_id


def end_sent_supervisor(project: Project, root: Path) -> str:
    """End the supervisor's job that waits, or has just begun; its name, empty where there is none."""
    with _sent(project, root) as sent:
        if sent is None:
            return ""
        scheduler, live = sent
        scheduler.cancel(live.job_id)
        return f"{scheduler.name} job {live.job_id}"


def _refuse_a_second(project: Project, root: Path, scheduler: Scheduler) -> None:
    with _sent(project, root, opened=scheduler) as sent:
        if sent is not None:
            scheduler, live = sent
            reason = f", {live.state.reason}" if live.state.phase == "queued" and live.state.reason else ""
            raise UsageError(
                f"{scheduler.name} job {live.job_id} has this project already: it is {live.state.phase}{reason}{NEXT}"
            )
    if (holder := working_holder(root / "run" / LEASE)) is not None:
        raise UsageError(f"{holder} runs this project already{NEXT}")


@contextmanager
def _sent(
    project: Project, root: Path, *, opened: Scheduler | None = None
) -> Iterator[tuple[Scheduler, LiveJob] | None]:
    """The supervisor's job that was sent last and has not ended, with its scheduler; None where there is none.

    Another scheduler than `opened` may be gone for good: then its job, should it ever start, finds the project in use.
    """
    submitted = numbers(supervisor_dir(root))
    submission = read_submission(JobFiles(supervisor_dir(root), submitted[-1])) if submitted else None
    if submission is None or submission.scheduler not in RUNS:
        yield None
    elif opened is not None and opened.name == submission.scheduler:
        live = left_job(opened, supervisor_dir(root))
        yield None if live is None else (opened, live)
    else:
        scheduler = open_scheduler(project, submission.scheduler)
        try:
            try:
                live = left_job(scheduler, supervisor_dir(root))
            except CharterError:
                if opened is None:
                    raise
                live = None
            yield None if live is None else (scheduler, live)
        finally:
            scheduler.close()
