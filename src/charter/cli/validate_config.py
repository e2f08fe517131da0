"""`charter check`: read charter.yaml, tell every error in it, print it expanded."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
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
    assumed = _assumptions(project, config if config.is_dir() else config.parent)
    typer.echo(f"{config}: no errors; {project.name} runs {' -> '.join(execution_order(project))}")
    for line in (*deviations, *assumed):
        typer.echo(line)
    lacking = [problem for name, stage in project.pipeline.items() for problem in check_runnable(name, stage)]
    if lacking:
        typer.echo("It can be planned; to run it, mend this first:")
    for problem in lacking:
        typer.echo(f"  {problem}")


def _assumptions(project: "Project", directory: Path) -> list[str]:
    """Return the assumptions of a plan about the models that are there; refuse adapters as large as their model."""
    from charter.errors import DataError, SpecError, UsageError
    from charter.plan.pipeline_names import Models
    from charter.plan.project_plan import read_model

    lines, architectures = [], {}
    for name in project.models:
        try:
            architecture, assumptions = read_model(name, project, directory)
        except (DataError, SpecError, UsageError):
            continue
        if architecture is not None:
            architectures[name] = architecture
        lines += [f"assumed, {item.name}: {item.source}" for item in assumptions]
    if problems := list(Models(project=project, architectures=architectures).too_large_adapters()):
        raise SpecError(problems)
    return lines
