"""`charter logs`: what a stage's process has printed."""

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from charter.cli.common import DirOption, open_project
from charter.errors import ExitCode

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
    from charter.run.job_logs import stage_log

    project, root = open_project(directory)
    path = stage_log(project, build_pipeline(project, root).stage(stage).directory)
    if path is None:
        raise UsageError(f"stage {stage} has not run yet as it is written now, so there is no log of it")
    if isinstance(path, str):
        sys.stdout.writelines(path.splitlines(keepends=True)[-lines:])
        return
    text = path.read_text(encoding="utf-8", errors="replace")
    sys.stdout.writelines(text.splitlines(keepends=True)[-lines:])
    if follow:
        _follow(path)


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
