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
    from charter.run.actions import stop as stop_run

    root = project_root(directory)
    lines = stop_run(root, wait_seconds=wait)
    for line in lines or [f"no run is active in {root}"]:
        print(line)
