"""`charter artifacts accept`: keep a finished stage whose fingerprint has changed."""

from pathlib import Path
from typing import Annotated

import typer

from charter.cli.common import DirOption, open_project


def accept(
    stage: Annotated[str, typer.Argument(help="Name of the stage.", show_default=False)],
    directory: DirOption = Path("."),
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Accept without asking.")] = False,
) -> None:
    """Keep a finished stage although its fingerprint has changed, after showing the difference."""
    import sys

    from charter.artifacts.lease import Lease
    from charter.errors import UsageError
    from charter.run.graph import acceptance_of, build_pipeline, record_acceptance
    from charter.run.paths import run_dir
    from charter.run.staleness import describe, input_names

    project, root = open_project(directory)
    pipeline = build_pipeline(project, root)
    if stage not in pipeline.stages:
        raise UsageError(f"no stage is called {stage!r}; the stages are {', '.join(pipeline.stages)}")
    planned = pipeline.stages[stage]
    acceptance = acceptance_of(root, stage, identity=planned.identity, asked=planned.asked_fingerprint)
    names = input_names(planned, {}, planned.identity)
    print(f"stage {stage}: finished as {acceptance.kept[:8]}, now {acceptance.wanted[:8]}")
    for item in acceptance.differences:
        print(f"  {describe(*item, names)}")
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError("give --yes to accept this difference")
        typer.confirm("Keep the finished result in spite of this?", abort=True)
    with Lease(run_dir(root), lock_name="run.lock", what="the project"):
        record_acceptance(run_dir(root), acceptance)
    print(f"accepted: {stage} stays as {acceptance.kept[:8]} until its fingerprint changes again")
