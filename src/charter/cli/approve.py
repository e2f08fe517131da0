"""`charter approve`, `artifacts accept` and `stop`: what a person decides about a run's stages."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from charter.cli.common import (
    DirOption,
    JsonOption,
    SetOption,
    check_project,
    console,
    open_project,
    plain_table,
    print_json,
    project_root,
)
from charter.errors import UsageError
from charter.units import format_moment

if TYPE_CHECKING:
    from charter.run.approval import Sampled
    from charter.run.graph import Pipeline, PlannedStage


SHOWN_CHARACTERS = 1500
"""Of one field: some twenty lines of a terminal."""


def approve(
    stage: Annotated[str | None, typer.Argument(help="Name of the stage.", show_default=False)] = None,
    directory: DirOption = Path("."),
    note: Annotated[str, typer.Option("--note", help="Why, or what was noticed; kept with the approval.")] = "",
    samples: Annotated[int, typer.Option("--samples", "-n", min=0, help="Records shown of each input.")] = 5,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Approve without asking.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="Show which stages wait and which are approved.")] = False,
    json_: JsonOption = False,
    set_: SetOption = None,
) -> None:
    """Show samples of what a stage with `needs_approval: true` reads, ask, and let it start."""
    from charter.run.graph import build_pipeline

    pipeline = build_pipeline(*open_project(directory, set_))
    if list_:
        _list(pipeline, as_json=json_)
        return
    if stage is None:
        raise UsageError("name the stage to approve; `charter approve --list` shows which wait")
    _approve(pipeline, pipeline.stage(stage), note=note, count=samples, yes=yes, as_json=json_)


def _approve(pipeline: "Pipeline", stage: "PlannedStage", *, note: str, count: int, yes: bool, as_json: bool) -> None:
    import sys
    from dataclasses import asdict

    from charter.run.actions import approve_stage, check_approvable
    from charter.run.approval import read_approval, samples_of

    check_approvable(pipeline, stage)
    samples = samples_of(stage, count, seed=pipeline.project.seed)
    if not as_json:
        _show(stage, samples)
    if (earlier := read_approval(stage, pipeline.root)) is not None and not note:
        print(f"stage {stage.name} is approved already, by {earlier.by}", file=sys.stderr if as_json else sys.stdout)
        return
    if not yes:
        if as_json or not sys.stdin.isatty():
            raise UsageError("give --yes to approve without being asked")
        typer.confirm(f"Let stage {stage.name} start?", abort=True)
    given = approve_stage(pipeline, stage, note=note)
    if as_json:
        print_json({"schema": "charter.approval/1", **asdict(given)})
    else:
        print(f"approved: {stage.name} as {given.fingerprint[:8]}, by {given.by}; `charter run` starts it")


def _show(stage: "PlannedStage", samples: "list[Sampled]") -> None:
    from rich.text import Text

    from charter.run.approval import visible

    print(f"stage {stage.name} ({stage.spec.kind}), fingerprint {stage.asked_fingerprint[:8]}")
    for item in samples:
        print(f"\n{item.role}: {item.name}, {len(item.samples)} of {item.rows} rows")
        table = plain_table(("Id", "left"), ("Field", "left"), ("Text", "wrap"))
        for sample in item.samples:
            name = visible(sample.id, 60)
            for title, text in sample.fields.items():
                table.add_row(Text(name), title, Text(visible(text, SHOWN_CHARACTERS)))
                name = ""
        if item.samples:
            console().print(table)
    if not samples:
        print("it reads models only, of which there is nothing to show here; `charter report` has their figures")


def _list(pipeline: "Pipeline", *, as_json: bool) -> None:
    from charter.run.approval import visible

    rows = [_state(pipeline, stage) for stage in pipeline.stages.values() if stage.spec.needs_approval]
    if as_json:
        print_json({"schema": "charter.approvals/1", "stages": rows})
        return
    if not rows:
        print("no stage needs approval; `needs_approval: true` in charter.yaml holds one")
        return
    columns = [(name, "left") for name in ("Stage", "State", "Approved by", "When")]
    table = plain_table(*columns, ("Note", "wrap"))
    for row in rows:
        by, note = (visible(row[key] or "-", SHOWN_CHARACTERS) for key in ("by", "note"))
        table.add_row(row["stage"], row["state"], by, _when(row["at"]), note)
    console().print(table)


def _state(pipeline: "Pipeline", stage: "PlannedStage") -> dict[str, Any]:
    from charter.run.approval import read_approval
    from charter.run.staleness import assess

    given = read_approval(stage, pipeline.root)
    done = assess(stage, pipeline.root).done
    ready = all(assess(pipeline.stages[name], pipeline.root).done for name in stage.stage_inputs)
    waiting = "waits" if ready else "not reached yet"
    return {
        "stage": stage.name,
        "state": "done" if done else "approved" if given else waiting,
        "fingerprint": stage.asked_fingerprint,
        "by": given.by if given else None,
        "at": given.at if given else None,
        "note": given.note if given else None,
    }


def _when(at: float | None) -> str:
    return "-" if at is None else format_moment(at)


def accept(
    stage: Annotated[str, typer.Argument(help="Name of the stage.", show_default=False)],
    directory: DirOption = Path("."),
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Accept without asking.")] = False,
) -> None:
    """Keep a finished stage although its fingerprint has changed, after showing the difference."""
    import sys

    from charter.artifacts.fingerprint import describe
    from charter.run.graph import acceptance_of, build_pipeline, record_acceptance
    from charter.run.paths import hold_of, run_dir
    from charter.run.staleness import input_names

    project, root = open_project(directory)
    pipeline = build_pipeline(project, root)
    if stage not in pipeline.stages:
        raise UsageError(f"no stage is called {stage!r}; the stages are {', '.join(pipeline.stages)}")
    planned = pipeline.stages[stage]
    acceptance = acceptance_of(root, stage, identity=planned.identity, asked=planned.asked_fingerprint)
    names = input_names(planned, {}, planned.identity)
    print(f"stage {stage}: finished as {acceptance.kept[:8]}, now {acceptance.wanted[:8]}")
    for item in acceptance.differences:
        print(f"  {describe(*item, names)}")
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError("give --yes to accept this difference")
        typer.confirm("Keep the finished result in spite of this?", abort=True)
    with hold_of(run_dir(root)):
        record_acceptance(run_dir(root), acceptance)
    print(f"accepted: {stage} stays as {acceptance.kept[:8]} until its fingerprint changes again")


def stop(
    directory: DirOption = Path("."),
    wait: Annotated[float, typer.Option("--wait", help="Seconds to wait for it.")] = 180.0,
) -> None:
    """Stop at the next safe point, after a checkpoint."""
    from charter.run.actions import stop as stop_run

    root = project_root(directory)
    lines = stop_run(root, wait_seconds=wait)
    if not lines and not (root / "run").is_dir():
        check_project(directory)
    for line in lines or [f"no run is active in {root}"]:
        print(line)
