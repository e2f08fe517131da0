"""`charter ckpt` (also `charter checkpoints`): what a stage could go on from; kept, copied, checked, brought back."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from charter.cli.ckpt_cleaning import gc, prune
from charter.cli.ckpt_copies import backup, restore, scrub
from charter.cli.common import DirOption, JsonOption, SetOption, open_project, print_json

if TYPE_CHECKING:
    from charter.artifacts.checkpoint_list import ListedCheckpoint

checkpoints_app = typer.Typer(
    help="List, verify, pin, copy and bring back checkpoints and results.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
OneStage = Annotated[str | None, typer.Argument(help="One stage; all unless given.", show_default=False)]
Stage = Annotated[str, typer.Argument(help="Name of the stage.", show_default=False)]
At = Annotated[str, typer.Argument(help="Finished steps, as 12; or steps and parts, as 12-2.", show_default=False)]


@checkpoints_app.command("ls")
@checkpoints_app.command("list", hidden=True)
def list_checkpoints(
    stage: OneStage = None, directory: DirOption = Path("."), json_: JsonOption = False, set_: SetOption = None
) -> None:
    """What is there; the manifests and the sizes of files are looked at, `verify` reads them whole."""
    _show(_found(directory, stage, set_, verify=False), as_json=json_)


@checkpoints_app.command("verify")
def verify_checkpoints(
    stage: OneStage = None, directory: DirOption = Path("."), json_: JsonOption = False, set_: SetOption = None
) -> None:
    """Read everything again and compare hashes: checkpoints, outputs, batches, records, the ledger. Nothing is changed.

    Exit code 8 where something is damaged.
    """
    from charter.artifacts.checkpoint_list import names_of_damaged
    from charter.errors import DataError
    from charter.pipeline.copies import damaged_results

    found = _found(directory, stage, set_, verify=True)
    _show(found, as_json=json_)
    damaged = [line for items in found.values() for line in names_of_damaged(items)]
    others = damaged_results(*open_project(directory, set_), stage)
    if damaged or others:
        raise DataError(
            "\n".join(
                [f"{len(damaged)} of {sum(map(len, found.values()))} checkpoints are damaged:", *damaged]
                + ([f"{len(others)} other things are damaged:", *others] if others else [])
            )
            + "\n  `charter run` sets damaged ones aside and goes on from the newest that is whole; where there is a"
            " second place, `charter ckpt scrub` repairs them"
        )


@checkpoints_app.command("pin")
def pin_checkpoint(stage: Stage, at: At, directory: DirOption = Path("."), set_: SetOption = None) -> None:
    """Keep a checkpoint for good, whatever `storage` says."""
    from charter.artifacts.checkpoint_list import parse_position, pin

    typer.echo(f"Pinned {pin(_stage_dirs(directory, stage, set_)[stage], parse_position(at))}")


@checkpoints_app.command("unpin")
def unpin_checkpoint(stage: Stage, at: At, directory: DirOption = Path("."), set_: SetOption = None) -> None:
    """Let `storage` decide again; the next save of the stage may remove it."""
    from charter.artifacts.checkpoint_list import parse_position, unpin

    typer.echo(f"Unpinned {unpin(_stage_dirs(directory, stage, set_)[stage], parse_position(at))}")


checkpoints_app.command("backup")(backup)
checkpoints_app.command("restore")(restore)
checkpoints_app.command("scrub")(scrub)
checkpoints_app.command("prune")(prune)
checkpoints_app.command("gc")(gc)


def _stage_dirs(directory: Path, stage: str | None, overrides: list[str] | None) -> Mapping[str, Path]:
    from charter.pipeline.graph import build_pipeline

    pipeline = build_pipeline(*open_project(directory, overrides))
    wanted = [pipeline.stage(stage)] if stage is not None else pipeline.stages.values()
    return {item.name: item.directory for item in wanted}


def _found(
    directory: Path, stage: str | None, overrides: list[str] | None, *, verify: bool
) -> "Mapping[str, Sequence[ListedCheckpoint]]":
    from charter.artifacts.checkpoint_list import listed

    stage_dirs = _stage_dirs(directory, stage, overrides)
    return {name: listed(path, verify=verify) for name, path in stage_dirs.items()}


def _show(found: "Mapping[str, Sequence[ListedCheckpoint]]", *, as_json: bool) -> None:
    if as_json:
        print_json(
            {"schema": "charter.checkpoints/1", "stages": {name: list(map(_json, found[name])) for name in found}}
        )
        return
    _print(found)


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


def _print(found: "Mapping[str, Sequence[ListedCheckpoint]]") -> None:
    from charter.cli.tables import console, plain_table
    from charter.units import format_bytes, format_seconds

    table = plain_table(
        ("Stage", "left"), ("Step", "right"), ("Part", "right"), ("Size", "right"), ("Metric", "right"),
        ("Processes", "right"), ("Age", "right"), ("Pinned", "left"), ("Verified", "wrap"),
    )  # fmt: skip
    now = time.time()
    for name, items in found.items():
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
