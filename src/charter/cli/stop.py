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
    from charter.pipeline.stop import stop_run

    root = project_root(directory)
    stopped = stop_run(root, wait_seconds=wait)
    print(f"no run is active in {root}" if stopped is None else f"stopped ({stopped}); `charter run` continues it")
