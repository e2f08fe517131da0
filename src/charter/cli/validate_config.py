"""`charter check`: read charter.yaml, tell every error in it, print it expanded."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from charter.spec.project import Project


def check_command(
    config: Annotated[
        Path, typer.Argument(help="charter.yaml, or the directory it lies in.", show_default=False)
    ] = Path("charter.yaml"),
    expand: Annotated[
        bool, typer.Option("--expand", help="Print the whole project: presets expanded, defaults written out.")
    ] = False,
    directory: Annotated[
        Path | None,
        typer.Option("-C", "--directory", help="The same: a project directory, as other commands take it."),
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="Replace one value: pipeline.ppo.episodes=640.", metavar="A.B=C")
    ] = None,
) -> None:
    """Check charter.yaml: every error at once, each with its line."""
    import os

    from charter.engines.project import load_project
    from charter.spec.expand import project_yaml
    from charter.spec.graph import execution_order
    from charter.spec.presets import deviation_lines
    from charter.spec.stage_checks import check_runnable

    config = directory or config
    project = load_project(config, overrides=overrides or (), env=os.environ)
    deviations = deviation_lines(config, overrides or ())
    if expand:
        typer.echo("".join(f"# {line}\n" for line in deviations) + project_yaml(project), nl=False)
        return
    typer.echo(f"{config}: no errors; {project.name} runs {' -> '.join(execution_order(project))}")
    for line in (*deviations, *_assumed(project, config if config.is_dir() else config.parent)):
        typer.echo(line)
    lacking = [problem for name, stage in project.pipeline.items() for problem in check_runnable(name, stage)]
    if lacking:
        typer.echo("It can be planned; to run it, mend this first:")
    for problem in lacking:
        typer.echo(f"  {problem}")


def _assumed(project: "Project", directory: Path) -> "Iterator[str]":
    """Yield the assumptions of a plan about the models; nothing of one that is not there yet."""
    from charter.errors import DataError, SpecError, UsageError
    from charter.plan.project_plan import read_model

    for name in project.models:
        try:
            _, assumptions = read_model(name, project, directory)
        except (DataError, SpecError, UsageError):
            continue
        for item in assumptions:
            yield f"assumed, {item.name}: {item.source}"
