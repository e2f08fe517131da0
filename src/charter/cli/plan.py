"""`charter plan`: memory, time and cost per stage; starts no run."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from charter.cli.common import JsonOption, SetOption, print_json, write_asked
from charter.cli.plan_asked import check_asked, objective_of, print_expanded, start_of
from charter.cli.plan_source import console, planned_project

if TYPE_CHECKING:
    from charter.plan.physics.knowledge import Knowledge
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
    any_engine: Annotated[
        bool, typer.Option("--any-engine", help="Also show the best layout of every other engine, stage by stage.")
    ] = False,
    calibration: Annotated[
        Path | None,
        typer.Option(
            "--calibration",
            help="Constants and paces of `charter calibrate`; calibration.json of the project if it is there.",
            show_default=False,
        ),
    ] = None,
    probe: Annotated[
        int | None,
        typer.Option(
            "--probe",
            metavar="N",
            help="First run N layouts of every stage for a few real steps here, and calibrate the plan by them.",
        ),
    ] = None,
    fail_over_budget: Annotated[
        bool, typer.Option("--fail-over-budget", help="Exit with 4 when the budget is exceeded at p90.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Also write the JSON of the plan to a file.")
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Also write the plan as one self-contained HTML page."),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--start",
            metavar="DATE",
            help="When the run starts, for the dates of the plan: 2026-12-01 or 2026-12-01T09:30, UTC unless it has "
            "an offset; now if left out.",
        ),
    ] = None,
    objective: Annotated[
        str | None,
        typer.Option("--objective", help="cheapest, fastest or balanced; instead of the project's.", metavar="NAME"),
    ] = None,
    alternatives: Annotated[
        int,
        typer.Option("--alternatives", min=0, metavar="N", help="Also the N best plans on other hardware or markets."),
    ] = 0,
    what_if: Annotated[
        list[str] | None,
        typer.Option(
            "--what-if",
            metavar="KEY=VALUE",
            help="Plan again with a change, side by side: gpus=256, nodes=8, accelerators=H200:8, market=spot, "
            "deadline=3d, or any path of charter.yaml; repeatable.",
        ),
    ] = None,
    all_hardware: Annotated[
        bool,
        typer.Option("--all-hardware", help="Every provider and accelerator of the price book, not the project's."),
    ] = False,
    fail_over_deadline: Annotated[
        bool, typer.Option("--fail-over-deadline", help="Exit with 3 when the deadline is missed at p90.")
    ] = False,
) -> None:
    """Estimate memory, time and cost per stage and choose hardware; no run is started.

    Only --probe computes here: a few real steps, in a temporary directory.
    Exit codes: 0 planned, 2 invalid, 3 a stage fits nowhere (or late, with --fail-over-deadline), 4 over budget (with
    --fail-over-budget, or when objective fastest or balanced cannot keep it).
    """
    from charter.spec.presets import deviation_lines

    changes = [*(overrides or ()), *(ALL_HARDWARE if all_hardware else ())]
    changes += [f"objective={objective_of(objective)}"] if objective is not None else []
    path, begin = config or directory, start_of(start)
    project, root = planned_project(path, template, changes)
    deviations = () if template is not None else deviation_lines(path, changes)
    if expand:
        print_expanded(project, deviations, as_json=as_json)
        return
    check_asked(project, explain=explain, what_if=what_if, as_json=as_json)
    from charter.plan.project_plan import plan_project

    def planned(asked: "Project", number: int = 0) -> "Plan":
        now = datetime.now(tz=UTC)
        first = (begin or now).replace(tzinfo=None)
        return plan_project(
            asked, root, knowledge=_knowledge(calibration), today=now.date(), alternatives=number, start=first
        )

    from charter.cli.plan_probe import probe_first

    probed = probe_first(project, root, probe, calibration=calibration, as_json=as_json)
    made = planned(project, alternatives)
    if any_engine:
        from charter.plan.any_engine import with_other_engines

        made = with_other_engines(made)
    _warn(made)
    if output is not None:
        _write(made, output)
    if html is not None:
        _write_page(made, html, begin)
    if what_if:
        from charter.cli.plan_what_if import answers, show

        show(made, answers(what_if, project, path, template, changes, planned), as_json=as_json, more=probed)
    else:
        _show(made, as_json=as_json, explain=explain, more=probed)
    for line in () if as_json else deviations:
        typer.echo(line)
    if fail_over_budget:
        _check_budget(made)
    if fail_over_deadline:
        _check_deadline(made)


ALL_HARDWARE = ("resources.infra=null", "resources.any_of=[]", "resources.accelerators=[any]")


def _warn(made: "Plan") -> None:
    """What is old about the prices, on stderr."""
    from charter.plan.stale import PREFIX
    from charter.units import format_usd

    for item in made.assumptions:
        if item.name.startswith(PREFIX) and isinstance(item.value, float):
            name, price = item.name.removeprefix(PREFIX), format_usd(item.value)
            day = item.as_of.split(" (")[0]
            typer.echo(f"warning[prices]: {name}: {price} per hour is of {day}; {item.source}", err=True)


def _knowledge(calibration: Path | None) -> "Knowledge | None":
    if calibration is None:
        return None
    from charter.calibration.bundle import load
    from charter.plan.physics.knowledge import Knowledge

    return Knowledge.of(load(calibration))


def _show(made: "Plan", *, as_json: bool, explain: str | None, more: dict[str, object]) -> None:
    if as_json:
        print_json(made.to_json() | more)
        return
    from charter.report.plan_explain import explain_stage
    from charter.report.plan_table import plan_table

    if explain is None:
        console().print(plan_table(made, today=datetime.now(tz=UTC).date()))
        if made.start is not None:
            console().print(_finish(made), highlight=False)
        if made.alternatives:
            from charter.report.alternatives_table import alternatives_table

            console().print(alternatives_table(made))
        from charter.report.engine_lines import engine_lines

        for line in engine_lines(made):
            console().print(line, markup=False, highlight=False)
        return
    stage = made.stage(explain)
    assert stage is not None, "asked for before the plan was made"
    console().print(explain_stage(stage, made))


def _finish(made: "Plan") -> str:
    """When it ends, in dates."""
    from charter.plan.timeline_json import finish_date

    assert made.start is not None
    median, high = (
        finish_date(value, made.start).strftime("%Y-%m-%d %H:%M") for value in (made.seconds.p50, made.seconds.p90)
    )
    return f"Dates: started on {made.start:%Y-%m-%d %H:%M} UTC, it ends on {median} (p50) to {high} (p90)."


def _write(made: "Plan", output: Path) -> None:
    import json

    write_asked("--output", output, json.dumps(made.to_json(), indent=2, ensure_ascii=False) + "\n")


def _write_page(made: "Plan", path: Path, start: datetime | None) -> None:
    """The HTML page of a plan; the clock is read here."""
    import time

    from charter.report.plan_page.page import plan_html

    now = time.time()
    write_asked("--html", path, plan_html(made, now=now, start=now if start is None else start.timestamp()))


def _check_budget(made: "Plan") -> None:
    from charter.errors import BudgetError
    from charter.units import format_usd

    if made.budget_usd is None or made.budget_verdict in ("ok", None):
        return
    limit, advice = format_usd(made.budget_usd), "".join(f"\n  or {line}" for line in made.budget_advice)
    if made.usd is None:
        raise BudgetError(f"budget {limit} cannot be checked: a stage has no price; set resources.price")
    high, middle = format_usd(made.usd.p90 / 1e6), format_usd(made.usd.p50 / 1e6)
    raise BudgetError(
        f"the plan of {made.name!r} costs {middle} (p50) to {high} (p90), above its budget of {limit}\n"
        f"  nothing was started; raise budget.limit to {high}{advice}"
    )


def _check_deadline(made: "Plan") -> None:
    from charter.errors import InfeasibleError
    from charter.units import format_seconds

    if made.deadline_verdict in ("ok", None):
        return
    middle, high = format_seconds(made.seconds.p50), format_seconds(made.seconds.p90)
    limit = format_seconds(made.deadline_seconds or 0.0)
    advice = "".join(f"\n  {line}" for line in made.advice)
    raise InfeasibleError(
        f"the plan of {made.name!r} takes {middle} (p50) to {high} (p90), beyond its deadline of {limit}{advice}"
    )
