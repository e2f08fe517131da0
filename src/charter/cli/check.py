"""`charter check`: errors of charter.yaml, its schema for editors, this machine, and versions for a bug report."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from charter.cli.common import DirOption, JsonOption, open_project, print_json, project_root
from charter.errors import DataError, ExitCode, SpecError, UsageError
from charter.spec import PROJECT_FILE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from charter.run.cluster_checks import Check
    from charter.spec.project import Project


def check_command(
    config: Annotated[
        Path, typer.Argument(help="charter.yaml, or the directory it lies in.", show_default=False)
    ] = Path(PROJECT_FILE),
    expand: Annotated[
        bool, typer.Option("--expand", help="Print the whole project: presets expanded, defaults written out.")
    ] = False,
    directory: Annotated[
        Path | None,
        typer.Option("-C", "--directory", help="Project directory; the same as config."),
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="Replace one value: pipeline.ppo.episodes=640.", metavar="A.B=C")
    ] = None,
) -> None:
    """Check charter.yaml: every error at once, each with its line."""
    import os

    from charter.engines.project import inexpressible, load_project
    from charter.spec.bind import project_yaml
    from charter.spec.graph import execution_order
    from charter.spec.load import deviation_lines
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
    lacking += inexpressible(project)
    if lacking:
        typer.echo("It can be planned; to run it, mend this first:")
    for problem in lacking:
        typer.echo(f"  {problem}")


def _assumptions(project: "Project", directory: Path) -> list[str]:
    """Return the assumptions of a plan about the models that are there; refuse adapters as large as their model."""
    from charter.plan.pipeline_names import Models
    from charter.plan.project_plan import read_model

    lines, readings = [], {}
    for name in project.models:
        try:
            readings[name] = read_model(name, project, directory)
        except (DataError, SpecError, UsageError):
            continue
        lines += [f"assumed, {item.name}: {item.source}" for item in readings[name].assumptions]
    architectures = {name: item.architecture for name, item in readings.items() if item.architecture is not None}
    stored = {name: item.stored for name, item in readings.items()}
    if problems := list(Models(project=project, architectures=architectures, stored=stored).problems()):
        raise SpecError(problems)
    return lines


def schema_command() -> None:
    """Print the JSON Schema of charter.yaml."""
    import json

    from charter.engines.project import project_json_schema

    typer.echo(json.dumps(project_json_schema(), indent=2, ensure_ascii=False))


OnOption = Annotated[
    str | None,
    typer.Option("--on", metavar="LAUNCHER", help="Also look at this launcher: slurm, ray, kubernetes, skypilot."),
]


BitsOption = Annotated[
    bool, typer.Option("--bits", help="Also train a small model twice and compare every bit: under a minute.")
]


def doctor(
    directory: DirOption = Path("."), on: OnOption = None, bits: BitsOption = False, json_: JsonOption = False
) -> None:
    """Check this machine and, in a project, its launcher, packages, network and credentials; say how to mend faults."""
    from charter.run.cluster_checks import LOOKS
    from charter.run.doctor import examine

    root = project_root(directory)
    has_project = (root / PROJECT_FILE).is_file() or directory.is_file()
    if on is not None and on not in (*LOOKS, "local"):
        raise UsageError(f"--on {on}: no such launcher; Charter can look at local, {', '.join(LOOKS)}")
    if on is not None and not has_project:
        raise UsageError(f"--on {on} needs a project, and there is no charter.yaml in {root}; give one with -C DIR")
    project = open_project(directory)[0] if has_project else None
    infra = project.resources.infra if project else None
    checks = examine(root, project, launcher=on or (infra if infra in LOOKS else None) or "local")
    if bits:
        from charter.run.doctor import bit_test

        checks = (*checks, bit_test())
    if json_:
        print_json({"checks": [asdict(check) for check in checks]})
    else:
        _show(checks)
    if not all(check.ok for check in checks):
        raise typer.Exit(ExitCode.MISSING_EXTRA)


def _show(checks: "Sequence[Check]") -> None:
    width = max(len(check.name) for check in checks)
    group = ""
    for check in checks:
        if check.group != group:
            group = check.group
            print(group)
        mark = ("✔" if check.is_known else "?") if check.ok else "✘"
        print(f"  {mark} {check.name:<{width}}  {check.found}")
        if not check.ok:
            print(f"    {check.advice}")


PACKAGES = (
    "charter-plan",
    "typer",
    "pydantic",
    "numpy",
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "sqlalchemy",
    "aiohttp",
    "ray",
    "mlflow",
    "mlflow-skinny",
    "wandb",
    "tensorboard",
    "starlette",
    "nvidia-ml-py",
)
TOOLS = (
    ("slurm", ("sbatch", "--version")),
    ("kubectl", ("kubectl", "version", "--client")),
    ("sky", ("sky", "--version")),
)
"""Engines whose command line is asked for its version, where it is installed."""


def env(json_: JsonOption = False) -> None:
    """Print versions for a bug report; holds no path, name or key."""
    import platform

    from charter.launch.machine import cpu_capability, gpus_here, installed_version
    from charter.plan.machine import usable_cores, usable_memory_bytes
    from charter.run.cluster_checks import ask
    from charter.run.doctor import examine_drivers
    from charter.units import format_bytes

    versions = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": str(usable_cores()),
        "memory": format_bytes(usable_memory_bytes()),
        "cpu capability": cpu_capability(),
        "accelerators": examine_drivers()[0].found if gpus_here() else "none",
        **{name: installed_version(name) for name in PACKAGES},
        **{name: said.text for name, command in TOOLS if (said := ask(command)).ok},
    }
    if json_:
        print_json(versions)
        return
    for name, value in versions.items():
        print(f"{name:<16} {value}")
