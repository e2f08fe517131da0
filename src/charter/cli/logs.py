"""`charter logs`: what a stage's process has printed."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from charter.cli.common import DirOption, open_project
from charter.errors import ExitCode

if TYPE_CHECKING:
    from charter.spec.project import Project

FOLLOW_SECONDS = 0.5


def logs(
    stage: Annotated[str, typer.Argument(help="Name of the stage.", show_default=False)],
    directory: DirOption = Path("."),
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on printing until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", help="Last lines to print; 0 for all.")] = 100,
) -> None:
    """Print the log of a stage."""
    from charter.errors import UsageError
    from charter.run.graph import build_pipeline

    project, root = open_project(directory)
    path = _stage_log(project, build_pipeline(project, root).stage(stage).directory)
    if path is None:
        raise UsageError(f"stage {stage} has not run yet as it is written now, so there is no log of it")
    text = path if isinstance(path, str) else path.read_text(encoding="utf-8", errors="replace")
    sys.stdout.writelines(text.splitlines(keepends=True)[-lines:])
    if not text:
        print(f"stage {stage} has printed nothing{' yet' if follow else ''}", file=sys.stderr, flush=True)
    if follow and isinstance(path, Path):
        _follow(path)


def _stage_log(project: "Project", stage_dir: Path) -> Path | str | None:
    """The file of a stage's log, or its text where only the engine has it; None where there is none."""
    from charter.artifacts.group import LOG
    from charter.artifacts.job_files import JobFiles, numbers, read_submission
    from charter.launch.launcher import RUNS, open_scheduler

    if (stage_dir / LOG).exists():
        return stage_dir / LOG
    submitted = numbers(stage_dir)
    if not submitted:
        return None
    files = JobFiles(stage_dir, submitted[-1])
    if files.log.exists() and files.log.stat().st_size:
        return files.log
    submission = read_submission(files)
    if submission is None or submission.job_id is None or submission.scheduler not in RUNS:
        return None
    scheduler = open_scheduler(project, submission.scheduler)
    try:
        return scheduler.logs(submission.job_id) or None
    finally:
        scheduler.close()


def _follow(path: Path) -> None:
    with path.open(encoding="utf-8", errors="replace") as file:
        file.seek(0, 2)
        try:
            while True:
                sys.stdout.write(file.read())
                sys.stdout.flush()
                time.sleep(FOLLOW_SECONDS)
        except KeyboardInterrupt:
            raise typer.Exit(ExitCode.CTRL_C) from None
