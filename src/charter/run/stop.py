"""Stopping a run from another terminal, on whichever machine its supervisor is, and jobs that have none any more."""

import contextlib
import os
import signal
import time
from pathlib import Path

from charter.artifacts.job_files import Control, JobFiles, numbers, read_submission
from charter.artifacts.lease import LEASE, Holder, ends_within, read_holder
from charter.errors import UsageError
from charter.launch.job_engine import left_job
from charter.launch.job_table import LiveJob
from charter.launch.opening import RUNS, open_scheduler
from charter.launch.scheduler import Scheduler
from charter.run.paths import run_dir, stages_dir
from charter.run.supervisor import NOTICE_FILE

LOOK_SECONDS = 0.5
FRESH_SECONDS = 60.0
"""A supervisor on another machine touches its lease more often."""


def stop_run(root: Path, *, wait_seconds: float) -> Holder | None:
    """Ask the run of a project directory to stop at its next safe point and wait for it.

    Returns the process that was stopped, None when none is running.
    """
    lease = run_dir(root) / LEASE
    holder = read_holder(lease)
    if holder is None:
        return None
    if not holder.is_here:
        return _stop_elsewhere(root, holder, wait_seconds)
    if not holder.is_alive:
        return None
    with contextlib.suppress(ProcessLookupError):
        os.kill(holder.pid, signal.SIGTERM)
    if not ends_within(holder, wait_seconds):
        raise UsageError(
            f"the run ({holder}) was asked to stop and is still on its way to a safe point; look again with "
            "`charter status`"
        )
    return holder


def stop_left_jobs(root: Path, *, wait_seconds: float) -> list[str]:
    """Stop the jobs that a supervisor has left under way, at a checkpoint where there is time; their names."""
    from charter.engines.project import load_project

    engines = _engines(root)
    if not engines:
        return []
    project = load_project(root, env=dict(os.environ))
    stopped = []
    for name in sorted(engines):
        scheduler = open_scheduler(project, name)
        try:
            for stage_dir in sorted(stages_dir(root).iterdir()):
                if (job := left_job(scheduler, stage_dir)) is not None:
                    _stop_job(scheduler, job, wait_seconds)
                    stopped.append(f"{name} job {job.job_id} ({stage_dir.name})")
        finally:
            scheduler.close()
    return stopped


def end_sent_supervisor(root: Path) -> str:
    """End the supervisor that `charter submit` has sent and that does not work yet; its job, empty without one."""
    from charter.engines.project import load_project
    from charter.launch import sent_supervisor

    if not sent_supervisor.supervisor_dir(root).is_dir():
        return ""
    return sent_supervisor.end_sent_supervisor(load_project(root, env=dict(os.environ)), root)


def _stop_elsewhere(root: Path, holder: Holder, wait_seconds: float) -> Holder | None:
    """A supervisor on another machine is left a notice, as for a machine that will be taken away."""
    lease, notice = run_dir(root) / LEASE, run_dir(root) / NOTICE_FILE
    if _age_seconds(lease) > FRESH_SECONDS:
        return None
    notice.touch()
    deadline = time.monotonic() + wait_seconds
    while time.monotonic() < deadline:
        present = read_holder(lease)
        if present is None:
            return holder
        if present != holder:
            # Its engine has started it again meanwhile, and the new start forgets notices that were left before it.
            holder = present
            notice.touch()
        elif _age_seconds(lease) > FRESH_SECONDS:
            # It has died in the meantime, and may wait in the queue to be started again.
            return None
        time.sleep(LOOK_SECONDS)
    raise UsageError(
        f"the run ({holder}) was left a notice to stop and is still on its way to a safe point; look again with "
        "`charter status`"
    )


def _age_seconds(lease: Path) -> float:
    """Since it was last touched; nothing for one that has just been given back, which the next look sees."""
    try:
        return time.time() - lease.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _stop_job(scheduler: Scheduler, job: LiveJob, wait_seconds: float) -> None:
    job.files.ask(Control(stop=True))
    if job.state.phase == "queued":
        scheduler.cancel(job.job_id)
    deadline = time.monotonic() + wait_seconds
    while time.monotonic() < deadline:
        if scheduler.poll([job.job_id])[job.job_id].phase not in ("queued", "running"):
            return
        time.sleep(LOOK_SECONDS)
    scheduler.cancel(job.job_id)


def _engines(root: Path) -> set[str]:
    """The engines that have jobs of this run which nobody has settled yet."""
    names = set()
    for stage_dir in stages_dir(root).iterdir() if stages_dir(root).is_dir() else ():
        for number in numbers(stage_dir)[-1:]:
            submission = read_submission(JobFiles(stage_dir, number))
            if submission is not None and not submission.ended and submission.engine in RUNS:
                names.add(submission.engine)
    return names
