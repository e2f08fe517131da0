"""`charter report` and `report samples`: a plan or a run as one HTML file or as text; what its models said."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
from charter.spec import PROJECT_FILE

if TYPE_CHECKING:
    from charter.report.samples import SampleSource


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

    plan = _plan_before_the_first_run(directory)
    run = read_run(root, plan=plan)
    path = output or root / "report.html"
    write_asked("--output", path, report_html(run, now=time.time()), make_directory=True)
    typer.echo(f"Wrote {path}" + ("" if plan is None else ": the plan; nothing has run yet"))


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
    if (root / "run" / "plan.json").exists() or not (root / PROJECT_FILE).exists():
        return None
    from charter.plan.project_plan import plan_project

    project, root = open_project(directory)
    return dict(plan_project(project, root).to_json())


def samples(
    stage: Annotated[str | None, typer.Argument(help="Samples of this stage alone.", show_default=False)] = None,
    directory: DirOption = Path("."),
    search: Annotated[str, typer.Option("--search", metavar="TEXT", help="Only those with this text.")] = "",
    principle: Annotated[str, typer.Option("--principle", metavar="ID", help="Only those under it.")] = "",
    disagreeing: Annotated[
        bool, typer.Option("--disagreeing", help="Only where two orders, or two models, differ.")
    ] = False,
    order: Annotated[
        str,
        typer.Option(
            "--order",
            metavar="HOW",
            help="changed, longest or shortest: by the last answer; highest or lowest: by reward.",
        ),
    ] = "",
    side_by_side: Annotated[
        bool, typer.Option("--side-by-side", help="Show the answers of all stages in training to one prompt together.")
    ] = False,
    beside: Annotated[
        list[Path] | None, typer.Option("--with", metavar="DIR", help="A run beside this one; repeatable.")
    ] = None,
    flagged: Annotated[bool, typer.Option("--flagged", help="Only what a reader has flagged.")] = False,
    flag: Annotated[
        str | None, typer.Option("--flag", metavar="ID", help="Flag this sample; --note says why.", show_default=False)
    ] = None,
    note: Annotated[str, typer.Option("--note", metavar="TEXT", help="Remark on the sample of --flag.")] = "",
    reward: Annotated[
        str,
        typer.Option("--reward", metavar="NAME", help="Only RL answers that have this reward of the list; or `score`."),
    ] = "",
    at_least: Annotated[float | None, typer.Option("--at-least", help="Of --reward; else of the score.")] = None,
    at_most: Annotated[float | None, typer.Option("--at-most", help="Of --reward; else of the score.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="The most that are shown.")] = 5,
    as_json: JsonOption = False,
) -> None:
    """Show answers, critiques with revisions, and comparisons with their verdicts."""
    from charter.report.samples import ORDERS, Order, SampleFilter, find_samples
    from charter.report.samples import side_by_side as in_one

    if flag is not None:
        from charter.run.actions import note_sample

        note_sample(open_project(directory)[1], flag, flagged=True, note=note)
        typer.echo(f"Flagged {flag}; charter report samples --flagged shows it.")
        return
    orders: dict[str, Order] = {"": "", **{name: name for name in ORDERS}}
    if order not in orders:
        raise UsageError(f"--order {order}: give {', '.join(ORDERS)}")
    sources = _sources(directory)
    if stage is not None and stage not in {source.stage for source in sources}:
        raise UsageError(f"there is no stage {stage!r}; this project has {', '.join(s.stage for s in sources)}")
    wanted = SampleFilter(
        stage=stage or "", text=search, principle=principle, disagreeing=disagreeing, order=orders[order],
        flagged=flagged, reward=reward, at_least=at_least, at_most=at_most,
    )  # fmt: skip
    if side_by_side or beside:
        lists = [(str(place), _sources(place)) for place in (directory, *(beside or ()))]
        listed = in_one(lists, wanted, limit=limit)
    else:
        listed = find_samples(sources, wanted, limit=limit)
    if as_json:
        print_json({"samples": [sample.to_json() for sample in listed.samples], "complete": listed.is_complete})
        return
    out = console()
    for sample in listed.samples:
        mark = "flagged" if sample.note is not None and sample.note.flagged else ""
        facts = (sample.stage, sample.id, *sample.facts, mark)
        out.rule(" · ".join(fact for fact in facts if fact), align="left")
        out.print(f"prompt: {sample.prompt}", markup=False, highlight=False)
        for part in sample.parts:
            out.print(f"{part.words}: {part.text}", markup=False, highlight=False)
        if sample.note is not None and sample.note.note:
            out.print(f"note of {sample.note.by}: {sample.note.note}", markup=False, highlight=False)
    if not listed.samples:
        typer.echo(
            "No samples: no stage that answers, criticises, compares or evaluates has finished, or none matches."
        )
    elif not listed.is_complete:
        typer.echo(f"The first {len(listed.samples)}; -n shows more, --json prints them for machines.")


def _sources(directory: Path) -> "list[SampleSource]":
    """The stages of a project, each with its directory."""
    from charter.report.samples import SampleSource
    from charter.run.graph import build_pipeline

    project, root = open_project(directory)
    return [
        SampleSource(stage=name, kind=planned.spec.kind, directory=planned.directory)
        for name, planned in build_pipeline(project, root).stages.items()
    ]
