"""`charter compare`: plans side by side; starts nothing."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from charter.cli.common import JsonOption, SetOption, print_json

if TYPE_CHECKING:
    from collections.abc import Mapping


def compare(
    plans: Annotated[
        list[str],
        typer.Argument(
            help="Two or more of: a project directory or charter.yaml, a plan saved by `charter plan --output`, "
            "a shipped template.",
            show_default=False,
        ),
    ],
    as_json: JsonOption = False,
    overrides: SetOption = None,
) -> None:
    """Compare plans: hardware, memory, time, money and risk per stage and in all, with ratios to the first.

    `--set` applies to the projects and templates among them. Exit codes: as `charter plan`.
    """
    from charter.errors import UsageError

    if len(plans) < 2:
        raise UsageError(
            "compare needs two plans or more: charter compare A B; give a project, a saved plan or a template"
        )
    found = [(label, _plan(text, overrides)) for label, text in zip(_labels(plans), plans, strict=True)]
    if as_json:
        from charter.report.compare_totals import comparison

        print_json(comparison(found))
        return
    from charter.cli.plan_source import console
    from charter.report.compare_saved import saved_table

    console().print(saved_table(found))


def _labels(plans: list[str]) -> list[str]:
    """The last parts of the paths; the whole texts where those are not distinct."""
    short = [Path(text).stem if Path(text).suffix == ".json" else Path(text).name for text in plans]
    return short if len(set(short)) == len(short) and all(short) else plans


def _plan(text: str, overrides: list[str] | None) -> "Mapping[str, Any]":
    path = Path(text)
    if path.is_file() and path.suffix == ".json":
        return _saved(path)
    from charter.errors import UsageError
    from charter.templates.shipped import TEMPLATES

    template = None if path.exists() else text
    names = [known.name for known in TEMPLATES]
    if template is not None and template not in names:
        raise UsageError(f"{text}: no such project, saved plan or template; the templates are {', '.join(names)}")
    from datetime import UTC, datetime

    from charter.cli.plan_source import planned_project
    from charter.plan.project_plan import plan_project

    project, root = planned_project(path, template, overrides)
    return plan_project(project, root, today=datetime.now(tz=UTC).date()).to_json()


def _saved(path: Path) -> "Mapping[str, Any]":
    import json

    from charter.errors import UsageError
    from charter.plan.plan import SCHEMA

    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"{path} is no JSON: {error}; write one with charter plan --output {path}") from None
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise UsageError(f"{path} is not a plan ({SCHEMA}); write one with charter plan --output {path}")
    missing = _missing(found)
    if missing:
        raise UsageError(
            f"{path} is a plan without {', '.join(missing)}, as an older or another program wrote it\n"
            f"  plan again and save it with charter plan --output {path}"
        )
    return found


def _missing(found: "Mapping[str, Any]") -> list[str]:
    """What a saved plan lacks of that which is compared."""
    measures = ("seconds", "gpu_hours", "usd")
    needed = ("name", "accelerator", "count", "market", "layout", "peak_bytes", "capacity_bytes", *measures)
    return [
        *(name for name in ("name", "stages", "total") if name not in found),
        *(f"total.{name}" for name in measures if name not in found.get("total", dict.fromkeys(measures))),
        *(f"stages.{name}" for name in needed if any(name not in stage for stage in found.get("stages", ()))),
    ]
