"""`charter artifacts checkpoints`: list, verify, pin, copy and restore what a stage could go on from."""

import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from charter.cli.common import (
    DirOption,
    JsonOption,
    ListByDefault,
    SetOption,
    command_group,
    console,
    open_project,
    plain_table,
    print_json,
)
from charter.errors import DataError
from charter.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from charter.artifacts.checkpoints import ListedCheckpoint
    from charter.run.copies import Removable


PlaceOption = Annotated[
    str | None,
    typer.Option(
        "--place",
        metavar="PLACE",
        help="The second place: a directory or s3://bucket/path; storage.artifacts unless given.",
        show_default=False,
    ),
]


def backup(
    directory: DirOption = Path("."), place: PlaceOption = None, json_: JsonOption = False, set_: SetOption = None
) -> None:
    """Copy checkpoints, records, outputs and the ledger to the second place; what is there is not sent again."""
    from charter.run.copies import back_up

    done = []
    for name in back_up(*open_project(directory, set_), place, partial(typer.echo, err=True)):
        done.append(name)
        if not json_:
            typer.echo(f"copied {name}")
    if json_:
        print_json({"schema": "charter.backup/1", "copied": done})
    elif not done:
        typer.echo("nothing new to copy")


def restore(
    directory: DirOption = Path("."), place: PlaceOption = None, json_: JsonOption = False, set_: SetOption = None
) -> None:
    """Bring back what the second place has and this machine lacks; then `charter run` goes on from there."""
    from charter.run.copies import restore as bring_back

    problems: list[str] = []
    groups = dict(bring_back(*open_project(directory, set_), place, problems.append))
    brought = {group: items for group, items in groups.items() if items}
    if json_:
        print_json({"schema": "charter.restore/1", "brought": brought, "problems": problems})
        return
    for group, items in brought.items():
        typer.echo(f"{group}: {', '.join(items)}")
    for problem in problems:
        typer.echo(f"not usable: {problem}", err=True)
    typer.echo("`charter run` goes on from here" if brought else "nothing to bring back")


def scrub(
    directory: DirOption = Path("."),
    place: PlaceOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be repaired; change nothing.")] = False,
    json_: JsonOption = False,
    set_: SetOption = None,
) -> None:
    """Read every copy here and in the second place, repair either from the other; exit code 8 where both are bad."""
    from charter.run.copies import scrub as scrub_all

    tell = partial(typer.echo, err=True)
    repairs = list(scrub_all(*open_project(directory, set_), place, tell, repair=not dry_run))
    if json_:
        rows = [{"path": str(item.path), "outcome": item.outcome, "wrong": item.wrong} for item in repairs]
        print_json({"schema": "charter.scrub/1", "dry_run": dry_run, "repairs": rows})
    else:
        for item in repairs:
            typer.echo(f"would be {item}" if dry_run and item.outcome != "lost" else str(item))
        if not repairs:
            typer.echo("every copy is as recorded, here and there")
    if lost := [item for item in repairs if item.outcome == "lost"]:
        raise DataError(
            f"{len(lost)} cannot be repaired, since no good copy is left: {lost[0].path} ({lost[0].wrong})\n"
            "  `charter run` makes again what a stage needs, from its newest checkpoint that is whole"
        )


YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Remove what is shown.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only show it, as without --yes.")]


def prune(
    directory: DirOption = Path("."),
    place: PlaceOption = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    json_: JsonOption = False,
    set_: SetOption = None,
) -> None:
    """Show checkpoints that `storage` does not keep, here and in the second place; those that stay are read first."""
    from charter.run.copies import prunable_checkpoints, remove_all, sample_cleaned

    project, root = open_project(directory, set_)
    acts = yes and not dry_run
    then = partial(sample_cleaned, project, root, place, partial(typer.echo, err=True))
    removed = remove_all(root, lambda: prunable_checkpoints(project, root, place), then=then) if acts else None
    _show_removable(
        prunable_checkpoints(project, root, place) if removed is None else removed, removed=acts, as_json=json_
    )


def gc(
    directory: DirOption = Path("."),
    place: PlaceOption = None,
    other_results: Annotated[
        bool, typer.Option("--other-results", help="Also results of stages under other fingerprints.")
    ] = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    json_: JsonOption = False,
    set_: SetOption = None,
) -> None:
    """Show what crashes left behind and nothing uses, here and in the second place.

    Objects in the second place that nothing names are removed in two steps, a day apart: the first call with --yes
    writes them down, a later one removes them.
    """
    from charter.run.copies import garbage, remove_all, sample_cleaned

    project, root = open_project(directory, set_)
    acts = yes and not dry_run
    find = partial(garbage, project, root, place, other_results=other_results)
    then = partial(sample_cleaned, project, root, place, partial(typer.echo, err=True))
    leftovers = remove_all(root, find, then=then) if acts else find()
    _show_removable(leftovers, removed=acts, as_json=json_)


def _show_removable(items: "Sequence[Removable]", *, removed: bool, as_json: bool) -> None:
    if as_json:
        rows = [
            {"name": item.name, "why": item.why, "bytes": item.bytes, "removed": removed and item.remove is not None}
            for item in items
        ]
        print_json({"schema": "charter.removable/1", "items": rows})
        return
    if not items:
        typer.echo("nothing to remove")
        return
    table = plain_table(("What", "wrap"), ("Why", "wrap"), ("Size", "right"))
    for item in items:
        suffix = " (kept: --other-results removes it)" if item.remove is None else ""
        table.add_row(item.name, item.why + suffix, format_bytes(item.bytes))
    console().print(table)
    size = format_bytes(sum(item.bytes for item in items if item.remove is not None))
    typer.echo(f"removed {size}" if removed else f"{size} could be removed; --yes does it")


checkpoints_app = command_group("List, verify, pin, copy and bring back checkpoints and results.", cls=ListByDefault)
OneStage = Annotated[str | None, typer.Argument(help="One stage; all if left out.", show_default=False)]
Stage = Annotated[str, typer.Argument(help="Name of the stage.", show_default=False)]
At = Annotated[str, typer.Argument(help="Finished steps, as 12; or steps and parts, as 12-2.", show_default=False)]


@checkpoints_app.command("ls")
@checkpoints_app.command("list", hidden=True)
def list_checkpoints(
    stage: OneStage = None, directory: DirOption = Path("."), json_: JsonOption = False, set_: SetOption = None
) -> None:
    """List the checkpoints, by manifests and file sizes; `verify` reads the files themselves."""
    _show(_found(directory, stage, set_, verify=False), as_json=json_)


@checkpoints_app.command("verify")
def verify_checkpoints(
    stage: OneStage = None, directory: DirOption = Path("."), json_: JsonOption = False, set_: SetOption = None
) -> None:
    """Read everything again and compare hashes: checkpoints, outputs, batches, records, the ledger. Nothing is changed.

    Exit code 8 where something is damaged.
    """
    from charter.artifacts.checkpoints import names_of_damaged
    from charter.run.copies import damaged_results

    by_stage = _found(directory, stage, set_, verify=True)
    _show(by_stage, as_json=json_)
    damaged = [line for items in by_stage.values() for line in names_of_damaged(items)]
    others = damaged_results(*open_project(directory, set_), stage)
    if damaged or others:
        raise DataError(
            "\n".join(
                [f"{len(damaged)} of {sum(map(len, by_stage.values()))} checkpoints are damaged:", *damaged]
                + ([f"{len(others)} other things are damaged:", *others] if others else [])
            )
            + "\n  `charter run` sets damaged ones aside and goes on from the newest that is whole; where there is a"
            " second place, `charter artifacts checkpoints scrub` repairs them"
        )


@checkpoints_app.command("pin")
def pin_checkpoint(stage: Stage, at: At, directory: DirOption = Path("."), set_: SetOption = None) -> None:
    """Keep a checkpoint for good, whatever `storage` says."""
    from charter.artifacts.checkpoints import parse_position, pin

    typer.echo(f"Pinned {pin(_stage_dirs(directory, stage, set_)[stage], parse_position(at))}")


@checkpoints_app.command("unpin")
def unpin_checkpoint(stage: Stage, at: At, directory: DirOption = Path("."), set_: SetOption = None) -> None:
    """Let `storage` decide again; the next save of the stage may remove it."""
    from charter.artifacts.checkpoints import parse_position, unpin

    typer.echo(f"Unpinned {unpin(_stage_dirs(directory, stage, set_)[stage], parse_position(at))}")


checkpoints_app.command("backup")(backup)
checkpoints_app.command("restore")(restore)
checkpoints_app.command("scrub")(scrub)
checkpoints_app.command("prune")(prune)
checkpoints_app.command("gc")(gc)


def _stage_dirs(directory: Path, stage: str | None, overrides: list[str] | None) -> Mapping[str, Path]:
    from charter.run.graph import build_pipeline

    pipeline = build_pipeline(*open_project(directory, overrides))
    wanted = [pipeline.stage(stage)] if stage is not None else pipeline.stages.values()
    return {item.name: item.directory for item in wanted}


def _found(
    directory: Path, stage: str | None, overrides: list[str] | None, *, verify: bool
) -> "Mapping[str, Sequence[ListedCheckpoint]]":
    from charter.artifacts.checkpoints import listed

    stage_dirs = _stage_dirs(directory, stage, overrides)
    return {name: listed(path, verify=verify) for name, path in stage_dirs.items()}


def _show(by_stage: "Mapping[str, Sequence[ListedCheckpoint]]", *, as_json: bool) -> None:
    if as_json:
        print_json(
            {"schema": "charter.checkpoints/1", "stages": {name: list(map(_json, by_stage[name])) for name in by_stage}}
        )
        return
    _print(by_stage)


def _json(item: "ListedCheckpoint") -> dict[str, Any]:
    return {
        "step": item.position.step,
        "part": item.position.part,
        "path": str(item.path),
        "bytes": item.bytes,
        "metric": item.metric,
        "world_size": item.world_size,
        "pinned": item.pinned,
        "verified": item.verified,
        "damage": item.damage,
        "written_at": item.written_at,
    }


def _print(by_stage: "Mapping[str, Sequence[ListedCheckpoint]]") -> None:
    table = plain_table(
        ("Stage", "left"), ("Step", "right"), ("Part", "right"), ("Size", "right"), ("Metric", "right"),
        ("Processes", "right"), ("Age", "right"), ("Pinned", "left"), ("Verified", "wrap"),
    )  # fmt: skip
    now = time.time()
    for name, items in by_stage.items():
        for item in items:
            table.add_row(
                name,
                str(item.position.step),
                str(item.position.part),
                format_bytes(item.bytes),
                "-" if item.metric is None else f"{item.metric:.4g}",
                "-" if item.world_size is None else str(item.world_size),
                format_seconds(max(0.0, now - item.written_at)),
                "yes" if item.pinned else "-",
                f"DAMAGED: {item.damage}" if item.damage else "yes" if item.verified else "sizes only",
            )
    if table.row_count:
        console().print(table)
    else:
        typer.echo("no checkpoints yet; a running stage makes them, `charter run` starts it")
