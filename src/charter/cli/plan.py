"""`charter plan`: memory, time and cost per stage; starts nothing."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from charter.cli.common import JsonOption, SetOption, open_project, print_json

if TYPE_CHECKING:
    from rich.console import Console

    from charter.plan.knowledge import Knowledge
    from charter.plan.plan import Plan
    from charter.spec.project import Project


def plan(
    config: Annotated[
        Path | None,
        typer.Argument(help="charter.yaml, or the directory it lies in.", show_default=False),
    ] = None,
    directory: Annotated[Path, typer.Option("-C", "--directory", help="Project directory.", show_default=False)] = Path(
        "."
    ),
    template: Annotated[
        str | None, typer.Option("--template", "-t", help="Plan a shipped template instead of a project.")
    ] = None,
    as_json: JsonOption = False,
    explain: Annotated[
        str | None,
        typer.Option("--explain", metavar="STAGE", help="Print every term of a stage with formula and source."),
    ] = None,
    expand: Annotated[
        bool, typer.Option("--expand", help="Print the project with presets expanded, and stop.")
    ] = False,
    overrides: SetOption = None,
    calibration: Annotated[
        Path | None,
        typer.Option(
            "--calibration",
            help="Constants and paces of `charter calibrate`; calibration.json of the project if it is there.",
            show_default=False,
        ),
    ] = None,
    fail_over_budget: Annotated[
        bool, typer.Option("--fail-over-budget", help="Exit with 4 when the budget is exceeded at p90.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Also write the JSON of the plan to a file.")
    ] = None,
) -> None:
    """Estimate memory, time and cost per stage and choose hardware; start nothing.

    Exit codes: 0 planned, 2 invalid, 3 a stage fits nowhere, 4 over budget (with --fail-over-budget).
    """
    project, root = _project(config or directory, template, overrides)
    if expand:
        from charter.spec.expand import project_yaml

        typer.echo(project_yaml(project), nl=False)
        return
    from charter.plan.project_plan import plan_project

    made = plan_project(project, root, knowledge=_knowledge(calibration))
    if output is not None:
        _write(made, output)
    _show(made, as_json=as_json, explain=explain)
    if fail_over_budget:
        _check_budget(made)


def _knowledge(calibration: Path | None) -> "Knowledge | None":
    if calibration is None:
        return None
    from charter.calibration.bundle import load
    from charter.plan.knowledge import Knowledge

    return Knowledge.of(load(calibration))


def _project(path: Path, template: str | None, overrides: list[str] | None) -> "tuple[Project, Path]":
    if template is None:
        return open_project(path, overrides)
    from tempfile import TemporaryDirectory

    from charter.templates.shipped import find_template, write_template

    keep = TemporaryDirectory(prefix="charter-plan-")
    _KEPT.append(keep)
    directory = Path(keep.name) / template
    write_template(find_template(template), directory, force=False)
    return open_project(directory, overrides)


_KEPT: list[object] = []
"""Directories of templates, removed when the command ends."""


def _show(made: "Plan", *, as_json: bool, explain: str | None) -> None:
    if as_json:
        print_json(made.to_json())
        return
    from charter.errors import UsageError
    from charter.report.plan_table import explain_stage, plan_table

    if explain is None:
        _console().print(plan_table(made))
        return
    stage = made.stage(explain)
    if stage is None:
        known = ", ".join(item.name for item in made.stages)
        raise UsageError(f"--explain {explain}: there is no such stage; this project has {known}")
    _console().print(explain_stage(stage, made))


def _console() -> "Console":
    """The terminal's width; a file or pipe gets lines wide enough for the tables."""
    import os
    import sys

    from rich.console import Console

    known = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(width=None if known else PIPE_COLUMNS)


PIPE_COLUMNS = 140


def _write(made: "Plan", output: Path) -> None:
    import json

    from charter.errors import UsageError

    try:
        output.write_text(json.dumps(made.to_json(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--output {output}: {error.strerror}; give a file in a directory that exists") from None


def _check_budget(made: "Plan") -> None:
    from charter.errors import BudgetError
    from charter.units import format_usd

    if made.budget_usd is None or made.budget_verdict in ("ok", None):
        return
    limit = format_usd(made.budget_usd)
    if made.usd is None:
        raise BudgetError(f"budget {limit} cannot be checked: a stage has no price; set resources.price")
    high, middle = format_usd(made.usd.p90 / 1e6), format_usd(made.usd.p50 / 1e6)
    raise BudgetError(
        f"the plan of {made.name!r} costs {middle} (p50) to {high} (p90), above its budget of {limit}\n"
        "  nothing was started; raise budget.limit, allow use_spot: auto, or give a later deadline"
    )
