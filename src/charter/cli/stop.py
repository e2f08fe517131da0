"""`charter stop`: stop a run at its next safe point."""

from pathlib import Path
from typing import Annotated

import typer

from charter.cli.common import DirOption, project_root


def stop(
    directory: DirOption = Path("."),
    wait: Annotated[float, typer.Option("--wait", help="Seconds to wait for it.")] = 180.0,
) -> None:
    """Stop at the next safe point, after a checkpoint."""
    from charter.run.stop import end_sent_supervisor, stop_left_jobs, stop_run

    root = project_root(directory)
    stopped = stop_run(root, wait_seconds=wait)
    if stopped is not None:
        print(f"stopped ({stopped}); `charter run` continues it")
        return
    if sent := end_sent_supervisor(root):
        print(f"stopped {sent}, the supervisor, which had not begun; `charter submit` sends another")
    jobs = stop_left_jobs(root, wait_seconds=wait)
    for job in jobs:
        print(f"stopped {job}, whose supervisor is gone; `charter run` continues it")
    if not jobs and not sent:
        print(f"no run is active in {root}")
