"""`charter report`: a plan or a run as one self-contained HTML file, or as text."""

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from charter.cli.common import (
    DirOption,
    JsonOption,
    SweepOption,
    console,
    open_project,
    print_json,
    project_root,
    write_asked,
)
from charter.errors import UsageError


def report(
    directory: DirOption = Path("."),
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="HTML file to write; report.html in the project if left out."),
    ] = None,
    text: Annotated[
        bool, typer.Option("--text", help="Print results and plan against actual here; write no file.")
    ] = False,
    sweep: SweepOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a self-contained HTML report of the run, or of the plan before the first run."""
    root = project_root(directory)
    if sweep is not None:
        _print_sweep(directory, sweep, as_json=as_json)
        return
    if as_json:
        raise UsageError("--json goes with --sweep; `charter cost report --json` has a run's figures")
    if text:
        _print(root)
        return
    from charter.report.html import report_html
    from charter.report.read import read_run

    run = read_run(root, plan=_plan_before_the_first_run(directory))
    path = output or root / "report.html"
    write_asked("--output", path, report_html(run, now=time.time()), make_directory=True)
    typer.echo(f"Wrote {path}")


def _print_sweep(directory: Path, name: str, *, as_json: bool) -> None:
    from charter.report.sweep import print_sweep, read_sweep

    project, root = open_project(directory)
    result = read_sweep(directory, project, root, name)
    if as_json:
        print_json(result.to_json())
    else:
        print_sweep(result, console())


def _print(root: Path) -> None:
    from charter.report.results import print_summary

    print_summary(root, console(markup=True))


def _plan_before_the_first_run(directory: Path) -> dict[str, Any] | None:
    """A plan made now, where no run has left one; None where there is one, or no charter.yaml to plan."""
    root = project_root(directory)
    if (root / "run" / "plan.json").exists() or not (root / "charter.yaml").exists():
        return None
    from charter.plan.project_plan import plan_project

    project, root = open_project(directory)
    return dict(plan_project(project, root).to_json())
