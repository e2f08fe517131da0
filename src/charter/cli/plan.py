"""`charter plan`: memory, time and cost per stage; starts no run."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from charter.cli.common import (
    UNTIL_THE_END,
    JsonOption,
    SetOption,
    SweepOption,
    check_writable,
    console,
    plain_table,
    plan_console,
    print_json,
    with_chosen_engines,
    write_asked,
)
from charter.cli.inquiry import (
    AnswerTokens,
    Budget,
    Deadline,
    Force,
    Judge,
    JudgePrice,
    Lora,
    Market,
    Nodes,
    On,
    Pairs,
    Price,
    Prompts,
    Save,
    Seq,
    Tokens,
    Turns,
    advised_in_options,
    check_limits_asked,
    going_on,
    project_reader,
    question_file,
    said_in_options,
    say_what_file,
)
from charter.errors import BudgetError, InfeasibleError, UsageError
from charter.units import format_seconds, format_usd

if TYPE_CHECKING:
    from charter.cli.inquiry import Reader
    from charter.plan.ask import KindFile
    from charter.plan.knowledge import Knowledge
    from charter.plan.plan import Plan
    from charter.run.probe import ProbeReport
    from charter.spec.project import Project


def start_of(text: str | None) -> datetime | None:
    """The moment of `--start` in UTC; a date is its midnight, and a time without an offset is UTC.

    >>> start_of("2026-12-01T09:30+02:00").isoformat()
    '2026-12-01T07:30:00+00:00'
    """
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise UsageError(f"--start {text}: is no date; write it like 2026-12-01 or 2026-12-01T09:30") from None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def objective_of(text: str) -> str:
    """The objective that `--objective` names, or a `UsageError` with those that there are."""
    from charter.plan.decision import Objective

    objectives = get_args(Objective)
    if text not in objectives:
        raise UsageError(f"--objective {text}: there is no such objective; give {', '.join(objectives)}")
    return text


def print_expanded(project: "Project", deviations: Sequence[str], *, as_json: bool) -> None:
    """The project with its presets written out, as YAML; where the preset differs from its paper, as comments."""
    from charter.spec.bind import project_yaml

    if as_json:
        raise UsageError("--expand prints YAML and --json prints JSON; give one of them")
    typer.echo("".join(f"# {line}\n" for line in deviations) + project_yaml(project), nl=False)


def check_asked(
    project: "Project", read: "Reader", *, explain: str | None, what_if: Sequence[str] | None, as_json: bool
) -> None:
    """Raise an error for a stage or a change that there is not, and for two ways to print at once."""
    from charter.plan.what_if import overrides_of

    if explain is not None and explain not in project.pipeline:
        names = ", ".join(project.pipeline)
        raise UsageError(f"--explain {explain}: there is no such stage; this project has {names}")
    if explain is not None and (as_json or what_if):
        other = "--json" if as_json else "--what-if"
        raise UsageError(f"--explain prints one stage and {other} the plan; give one of them")
    for question in what_if or ():
        read(overrides_of(question, project))


def probe_first(
    project: "Project", root: Path, layouts: int | None, *, calibration: Path | None, as_json: bool
) -> dict[str, object]:
    """Probe where it is asked for, before the plan is made; what the plan's JSON gains by it."""
    if layouts is None:
        return {}
    if calibration is not None:
        raise UsageError("--probe writes the project's calibration.json, which --calibration would replace; give one")
    report = run_probe(project, root, layouts)
    if not as_json:
        print_probe(report)
    return {"probe": probe_json(report)}


def run_probe(project: "Project", root: Path, layouts: int) -> "ProbeReport":
    """Probe with a progress bar on stderr."""
    import sys

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from charter.run.probe import Progress as Step
    from charter.run.probe import probe_project

    if layouts < 1:
        raise UsageError(f"--probe {layouts}: give how many layouts of each stage are run, 1 or more")
    columns = (TextColumn("probing {task.description:<28}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task("", total=None)

        def tell(step: Step) -> None:
            bar.update(task, description=f"{step.stage} {step.layout}", completed=step.done, total=step.total)

        return probe_project(project, root, layouts=layouts, tell=tell)


def probe_json(report: "ProbeReport") -> dict[str, Any]:
    """A probe as JSON, beside the plan."""
    return {
        "calibration": str(report.calibration),
        "paces": [pace.to_json() for pace in report.paces],
        "stages": [
            {
                "name": probe.name,
                "kind": probe.kind,
                "full_steps": probe.full_steps,
                "why": probe.why or None,
                "fastest": probe.measured[0].label if probe.measured else None,
                "layouts": [
                    {
                        "layout": item.label,
                        "micro_batch": item.micro_batch or None,
                        "planned_seconds_per_step": item.planned_seconds,
                        "measured_seconds_per_step": item.measured_seconds,
                        "steps": item.steps,
                        "why": item.why or None,
                    }
                    for item in probe.layouts
                ],
            }
            for probe in report.stages
        ],
    }


def print_probe(report: "ProbeReport") -> None:
    """Planned beside measured for every layout, fastest first; then what was not measured, and why."""
    out = console()
    seconds = ("planned s/step", "right"), ("measured s/step", "right"), ("measured / planned", "right")
    table = plain_table(("stage", "left"), ("layout", "left"), *seconds, ("", "left"))
    for probe in report.stages:
        for rank, item in enumerate(probe.measured):
            ratio = (item.measured_seconds or 0.0) / item.planned_seconds if item.planned_seconds else None
            table.add_row(
                probe.name if rank == 0 else "",
                item.label,
                f"{item.planned_seconds:.4g}",
                f"{item.measured_seconds:.4g}",
                "-" if ratio is None else f"{ratio:.2f}",
                "planned" if item is probe.layouts[0] else "faster" if item in probe.faster else "",
            )
    out.print(table)
    for probe in report.stages:
        for item in probe.faster[:1]:
            setting = f"pipeline.{probe.name}.resources.micro_batch: {probe.sequences(item)}"
            out.print(f"faster: {probe.name} {item.label}; a run takes it where charter.yaml says {setting}")
    for probe in report.stages:
        for label, why in [("", probe.why), *((f" {item.label}", item.why) for item in probe.layouts)]:
            if why:
                out.print(f"not measured: {probe.name}{label}: {why}")
    out.print(
        f"written: {report.calibration} ({len(report.paces)} paces); the plan below uses it, and so will later ones\n"
    )


def plan(
    context: typer.Context,
    config: Annotated[
        Path | None,
        typer.Argument(
            metavar="[PROJECT | KIND]",
            help="charter.yaml or its directory; or, without a file: pretrain, sft, pm, dpo, ppo, grpo, "
            "generate, label, cai.",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL]", help="With KIND: a catalog name, 8B, or a directory with config.json."),
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
            help="Constants and paces of `charter validate calibrate`; calibration.json of the project if it is there.",
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
        bool, typer.Option("--fail-over-budget", help="Exit with 4 also when the budget is exceeded only at p90.")
    ] = False,
    allow_over_budget: Annotated[
        bool, typer.Option("--allow-over-budget", help="Exit with 0 when the budget is exceeded, even at p50.")
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
            "deadline=3d, of a KIND tokens=1B or lora=16, or any path of charter.yaml; repeatable.",
        ),
    ] = None,
    all_hardware: Annotated[
        bool,
        typer.Option("--all-hardware", help="Choose from all of the price book, not only the project's hardware."),
    ] = False,
    fail_over_deadline: Annotated[
        bool, typer.Option("--fail-over-deadline", help="Exit with 3 when the deadline is missed at p90.")
    ] = False,
    tokens: Tokens = None,
    pairs: Pairs = None,
    prompts: Prompts = None,
    answers: AnswerTokens = None,
    turns: Turns = None,
    seq: Seq = None,
    lora: Lora = None,
    judge: Judge = None,
    judge_price: JudgePrice = None,
    on: On = None,
    nodes: Nodes = None,
    price: Price = None,
    market: Market = None,
    budget: Budget = None,
    deadline: Deadline = None,
    save: Save = None,
    force: Force = False,
    sweep: SweepOption = None,
) -> None:
    """Estimate memory, time and cost per stage and choose hardware; no run is started.

    Only --probe computes here: a few real steps, in a temporary directory.
    Exit codes: 0 planned, 2 invalid, 3 a stage fits nowhere (or late, with --fail-over-deadline), 4 over budget at p50
    (at p90 with --fail-over-budget; never with --allow-over-budget), or when objective fastest or balanced cannot keep
    it, 8 a data file is missing and its size is not declared.
    Without a file: `charter plan sft Llama-3.1-8B --tokens 100M --on A100:8`.
    """
    from charter.spec.load import deviation_lines

    changes = [*(overrides or ()), *(ALL_HARDWARE if all_hardware else ())]
    changes += [f"objective={objective_of(objective)}"] if objective is not None else []
    check_limits_asked(fail_over_budget, allow_over_budget)
    _check_files(output, html)
    path, begin = config or directory, start_of(start)
    inquiry = question_file(context, changes)
    UNTIL_THE_END.enter_context(said_in_options(inquiry))
    read = project_reader(context, inquiry, path, changes)
    project, root = read([])
    deviations = () if template is not None or inquiry is not None else deviation_lines(path, changes)
    if inquiry is not None and save is not None:
        write_asked("--save", save, inquiry.text)
    if expand:
        print_expanded(project, deviations, as_json=as_json)
        return
    check_asked(project, read, explain=explain, what_if=what_if, as_json=as_json)
    if sweep is not None:
        _plan_points(path, project, root, sweep, changes, as_json=as_json)
        return
    from charter.plan.project_plan import plan_project

    def planned(changed: "Project", number: int = 0) -> "Plan":
        now = datetime.now(tz=UTC)
        first = (begin or now).replace(tzinfo=None)
        with said_in_options(inquiry):
            plan = plan_project(
                changed, root, knowledge=_knowledge(calibration), today=now.date(), alternatives=number, start=first
            )
        return advised_in_options(plan, inquiry)

    project, engine_choices = with_chosen_engines(project, root, out=None if as_json else sys.stdout)
    probed = probe_first(project, root, probe, calibration=calibration, as_json=as_json)
    result = planned(project, alternatives)
    if any_engine:
        from charter.plan.what_if import with_other_engines

        result = with_other_engines(result)
    _warn(result)
    if output is not None:
        _write(result, output)
    if html is not None:
        _write_page(result, html, begin)
    more = probed | {"engine_choices": [asdict(item) for item in engine_choices]} if engine_choices else probed
    more = more | ({} if inquiry is None else {"charter_yaml": inquiry.text, "assumed": list(inquiry.assumed)})
    if what_if:
        show(result, what_if_answers(what_if, project, read, planned), as_json=as_json, more=more)
    else:
        further = going_on(context, template, inquiry)
        _show(result, as_json=as_json, explain=explain, more=more, further=further, file=inquiry)
    if inquiry is not None and not as_json:
        say_what_file(inquiry, save, listed=explain is None and not what_if)
    for line in () if as_json else deviations:
        typer.echo(line)
    if not allow_over_budget:
        _check_budget(result, at_p90=fail_over_budget)
    if fail_over_deadline:
        _check_deadline(result)


def _check_files(output: Path | None, html: Path | None) -> None:
    for option, file in (("--output", output), ("--html", html)):
        if file is not None:
            check_writable(option, file)


def _plan_points(path: Path, project: "Project", root: Path, name: str, changes: list[str], *, as_json: bool) -> None:
    """Print the bill of a sweep, and end with the budget's exit code where it is over."""
    from charter.report.sweep import print_sweep_plan
    from charter.run.sweep import plan_sweep, sweep_points

    bill = plan_sweep(sweep_points(path, project, name, changes), root)
    if as_json:
        print_json(bill.to_json())
    else:
        print_sweep_plan(bill, plan_console())
    bill.check_budget()


ALL_HARDWARE = ("resources.infra=null", "resources.any_of=[]", "resources.accelerators=[any]")


def _warn(result: "Plan") -> None:
    """Print on stderr, in one line, that prices may be old; the assumptions have each."""
    from charter.catalog.price_book import HOW_TO_REFRESH, STALE_DAYS
    from charter.plan.plan import PREFIX

    old = [item for item in result.assumptions if item.name.startswith(PREFIX)]
    if old:
        named = "; ".join(f"{item.name.removeprefix(PREFIX)}, dated {item.as_of.split(' (')[0]}" for item in old)
        text = f"{len(old)} price{'' if len(old) == 1 else 's'} may be older than {STALE_DAYS} days ({named})"
        typer.echo(f"warning[prices]: {text}; {HOW_TO_REFRESH}", err=True)


def _knowledge(calibration: Path | None) -> "Knowledge | None":
    if calibration is None:
        return None
    from charter.physics.fitted import load
    from charter.plan.knowledge import Knowledge

    return Knowledge.of(load(calibration))


def _show(
    result: "Plan",
    *,
    as_json: bool,
    explain: str | None,
    more: dict[str, object],
    further: tuple[str, str],
    file: "KindFile | None",
) -> None:
    if as_json:
        print_json(result.to_json() | more)
        return
    from charter.report.plan_table import explain_stage, plan_table

    if explain is not None:
        stage = result.stage(explain)
        assert stage is not None, "asked for before the plan was made"
        plan_console().print(explain_stage(stage, result))
        return
    from charter.plan.what_if import with_quickest_engines

    if not any(stage.other_engines for stage in result.stages):
        result = with_quickest_engines(result)
    command, then = further
    assumed = () if file is None else file.assumed
    today = datetime.now(tz=UTC).date()
    plan_console().print(plan_table(result, today=today, command=command, then=then, assumed=assumed))


def _write(result: "Plan", output: Path) -> None:
    import json

    write_asked("--output", output, json.dumps(result.to_json(), indent=2, ensure_ascii=False) + "\n")


def _write_page(result: "Plan", path: Path, start: datetime | None) -> None:
    """The HTML page of a plan; the clock is read here."""
    import time

    from charter.report.plan_page.page import plan_html

    now = time.time()
    write_asked("--html", path, plan_html(result, now=now, start=now if start is None else start.timestamp()))


def _check_budget(result: "Plan", *, at_p90: bool) -> None:
    """Raise a `BudgetError` where the budget is exceeded at p50 or cannot be checked; `at_p90`: there too."""
    verdict = result.budget_verdict
    if result.budget_usd is None or verdict in ("ok", None) or (verdict != "over" and not at_p90):
        return
    limit, advice = format_usd(result.budget_usd), "".join(f"\n  or {line}" for line in result.budget_advice)
    usd = result.project_usd
    if usd is None:
        raise BudgetError(f"budget {limit} cannot be checked: a stage has no price; set resources.price")
    high, middle = format_usd(usd.p90 / 1e6), format_usd(usd.p50 / 1e6)
    raise BudgetError(
        f"the plan of {result.name!r} costs {middle} (p50) to {high} (p90), above its budget of {limit}\n"
        f"  nothing was started; raise budget.limit to {high}, or give --allow-over-budget{advice}"
    )


def _check_deadline(result: "Plan") -> None:
    if result.deadline_verdict in ("ok", None):
        return
    middle, high = format_seconds(result.seconds.p50), format_seconds(result.seconds.p90)
    limit = format_seconds(result.deadline_seconds or 0.0)
    advice = "".join(f"\n  {line}" for line in result.advice)
    raise InfeasibleError(
        f"the plan of {result.name!r} takes {middle} (p50) to {high} (p90), beyond its deadline of {limit}{advice}"
    )


@dataclass(frozen=True, kw_only=True)
class PlanAnswer:
    """One question, the values that were put over charter.yaml, and the plan or why there is none."""

    asked: str
    changes: list[str]
    plan: "Plan | None"
    reason: str = ""


def what_if_answers(
    questions: list[str], project: "Project", read: "Reader", planned: "Callable[[Project], Plan]"
) -> list[PlanAnswer]:
    """The plans of all questions; one that fits nowhere is an answer too."""
    from charter.plan.what_if import overrides_of

    answers = []
    for question in questions:
        changes = overrides_of(question, project)
        changed, _ = read(changes)
        try:
            answers.append(PlanAnswer(asked=question, changes=changes, plan=planned(changed)))
        except (InfeasibleError, BudgetError) as error:
            answers.append(PlanAnswer(asked=question, changes=changes, plan=None, reason=str(error)))
    return answers


def show(result: "Plan", answers: list[PlanAnswer], *, as_json: bool, more: dict[str, object]) -> None:
    """Side by side with ratios; what cannot be planned is said below."""
    from charter.report.compare_table import compare_table, ratios

    if as_json:
        rows = [
            {
                "change": answer.asked,
                "set": answer.changes,
                "plan": None if answer.plan is None else answer.plan.to_json(),
                "ratio": None if answer.plan is None else ratios(answer.plan, result),
                "reason": answer.reason,
            }
            for answer in answers
        ]
        print_json({**result.to_json(), **more, "what_if": rows})
        return
    terminal = plan_console()
    beside = [(answer.asked, answer.plan) for answer in answers if answer.plan is not None]
    terminal.print(compare_table([("plan", result), *beside]))
    for answer in answers:
        for line in answer.plan.advice if answer.plan else (answer.reason,):
            terminal.print(f"What if {answer.asked}: {line}", markup=False, highlight=False)
