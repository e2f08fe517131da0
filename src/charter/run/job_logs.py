"""The log of a stage, wherever it ran: its own file, what its agents printed, or what its engine kept."""

from pathlib import Path

from charter.artifacts.group import LOG
from charter.artifacts.job_files import JobFiles, numbers, read_submission
from charter.launch.opening import RUNS, open_scheduler
from charter.spec.project import Project


def stage_log(project: Project, stage_dir: Path) -> Path | str | None:
    """The file of a stage's log, or its text where only the engine has it; None where there is none."""
    if (stage_dir / LOG).exists():
        return stage_dir / LOG
    submitted = numbers(stage_dir)
    if not submitted:
        return None
    files = JobFiles(stage_dir, submitted[-1])
    if files.log.exists() and files.log.stat().st_size:
        return files.log
    submission = read_submission(files)
    if submission is None or submission.job_id is None or submission.engine not in RUNS:
        return None
    scheduler = open_scheduler(project, submission.engine)
    try:
        return scheduler.logs(submission.job_id) or None
    finally:
        scheduler.close()
