"""`charter plan compare`: plans or runs side by side; starts nothing."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from charter.cli.common import JsonOption, SetOption, plan_console, planned_project, print_json, write_asked
from charter.errors import UsageError, loads_json

if TYPE_CHECKING:
    from collections.abc import Mapping


def compare(
    things: Annotated[
        list[str],
        typer.Argument(
            help="Two or more of: a project directory or charter.yaml, a plan saved by `charter plan --output`, "
            "a shipped template. Where all of them are projects that have run, their runs are compared.",
            metavar="PLAN_OR_RUN",
            show_default=False,
        ),
    ],
    as_json: JsonOption = False,
    overrides: SetOption = None,
    plans: Annotated[bool, typer.Option("--plans", help="Compare plans, also of projects that have run.")] = False,
    runs: Annotated[bool, typer.Option("--runs", help="Compare runs; an error where one has not run.")] = False,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html", metavar="FILE", help="Also write the runs side by side as one HTML page.", show_default=False
        ),
    ] = None,
    all_figures: Annotated[
        bool, typer.Option("--all", help="Of runs: every figure of the evaluation, not the headlines alone.")
    ] = False,
) -> None:
    """Compare plans or runs side by side, with ratios to the first.

    Of plans: hardware, memory, time, money and risk per stage and in all. Of runs: settings that differ, curves,
    figures of the evaluation with whether they differ beyond noise, time, cost and waste. `--set` applies to the plans
    of projects and templates. Exit codes: as `charter plan`.
    """
    if len(things) < 2:
        raise UsageError(
            "compare needs two plans or more, or two runs: charter plan compare A B; give a project, a saved plan or a "
            "template"
        )
    if _wants_runs(things, plans=plans, runs=runs or html is not None or all_figures, overrides=overrides):
        _compare_runs(things, as_json=as_json, html=html, all_figures=all_figures)
        return
    compared = [(label, _plan(text, overrides)) for label, text in zip(_labels(things), things, strict=True)]
    if as_json:
        from charter.report.compare_table import comparison

        print_json(comparison(compared))
        return
    from charter.report.compare_table import saved_table

    plan_console().print(saved_table(compared))


def _wants_runs(things: list[str], *, plans: bool, runs: bool, overrides: list[str] | None) -> bool:
    """Return True if runs are compared: asked for, or all are projects that have run and nothing asks for plans."""
    from charter.report.run_compare.comparison import has_run

    if runs and (plans or overrides):
        other = "--plans" if plans else "--set"
        raise UsageError(f"{other} is about plans; --runs, --html and --all are about runs; give one of them")
    without = [text for text in things if not has_run(Path(text))]
    if runs and without:
        raise UsageError(
            f"{without[0]} has no run to compare (no run/plan.json and no ledger in it); start one with charter run, "
            "or compare plans with --plans"
        )
    return runs or not (plans or overrides or without)


def _compare_runs(things: list[str], *, as_json: bool, html: Path | None, all_figures: bool) -> None:
    import time

    from charter.report.run_compare.comparison import compare_runs, project_dir_of, read_sides

    paths = [Path(text) for text in things]
    names = [project_dir_of(path).resolve().name for path in paths]
    labels = names if len(set(names)) == len(names) else things
    result = compare_runs(read_sides(paths, labels, with_metrics=as_json or html is not None))
    if html is not None:
        from charter.report.run_compare.views import comparison_html

        write_asked("--html", html, comparison_html(result, now=time.time()))
    if as_json:
        print_json(result.to_json())
        return
    from charter.report.run_compare.views import comparison_text

    plan_console().print(comparison_text(result, all_figures=all_figures))


def _labels(plans: list[str]) -> list[str]:
    """The last parts of the paths; the whole texts where those are not distinct."""
    short = [Path(text).stem if Path(text).suffix == ".json" else Path(text).name for text in plans]
    return short if len(set(short)) == len(short) and all(short) else plans


def _plan(text: str, overrides: list[str] | None) -> "Mapping[str, Any]":
    path = Path(text)
    if path.is_file() and path.suffix == ".json":
        return _saved(path)
    from charter.templates.shipped import TEMPLATES

    template = None if path.exists() else text
    names = [shipped.name for shipped in TEMPLATES]
    if template is not None and template not in names:
        raise UsageError(f"{text}: no such project, saved plan or template; the templates are {', '.join(names)}")
    from datetime import UTC, datetime

    from charter.plan.project_plan import plan_project

    project, root = planned_project(path, template, overrides)
    return plan_project(project, root, today=datetime.now(tz=UTC).date()).to_json()


def _saved(path: Path) -> "Mapping[str, Any]":

    from charter.plan.plan import SCHEMA

    try:
        document = loads_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"{path} is no JSON: {error}; write one with charter plan --output {path}") from None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise UsageError(f"{path} is not a plan ({SCHEMA}); write one with charter plan --output {path}")
    missing = _missing(document)
    if missing:
        raise UsageError(
            f"{path} is a plan without {', '.join(missing)}, as an older or another program wrote it\n"
            f"  plan again and save it with charter plan --output {path}"
        )
    return document


def _missing(document: "Mapping[str, Any]") -> list[str]:
    """Return the fields that a comparison needs and a saved plan lacks."""
    measures = ("seconds", "gpu_hours", "usd")
    needed = ("name", "accelerator", "count", "market", "layout", "peak_bytes", "capacity_bytes", *measures)
    return [
        *(name for name in ("name", "stages", "total") if name not in document),
        *(f"total.{name}" for name in measures if name not in document.get("total", dict.fromkeys(measures))),
        *(f"stages.{name}" for name in needed if any(name not in stage for stage in document.get("stages", ()))),
    ]
