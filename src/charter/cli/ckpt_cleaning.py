"""`charter ckpt prune | gc`: what need not be kept is shown, and removed only with `--yes`."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from charter.cli.ckpt_copies import PlaceOption
from charter.cli.common import DirOption, JsonOption, SetOption, open_project, print_json

if TYPE_CHECKING:
    from charter.pipeline.cleaning import Removable

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Remove what is shown.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only show it; so also without --yes.")]


def prune(
    directory: DirOption = Path("."),
    place: PlaceOption = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    json_: JsonOption = False,
    set_: SetOption = None,
) -> None:
    """Show checkpoints that `storage` does not keep, here and in the second place; those that stay are read first."""
    from charter.pipeline.cleaning import prunable_checkpoints, remove_all, sample_cleaned

    project, root = open_project(directory, set_)
    acts = yes and not dry_run
    then = partial(sample_cleaned, project, root, place, partial(typer.echo, err=True))
    found = remove_all(root, lambda: prunable_checkpoints(project, root, place), then=then) if acts else None
    _show(prunable_checkpoints(project, root, place) if found is None else found, removed=acts, as_json=json_)


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
    """Show what crashes have left and nothing uses, here and in the second place.

    Objects in the second place that nothing names go in two steps, a day apart: the first call with --yes writes them
    down, a later one removes them.
    """
    from charter.pipeline.cleaning import garbage, remove_all, sample_cleaned

    project, root = open_project(directory, set_)
    acts = yes and not dry_run
    find = partial(garbage, project, root, place, other_results=other_results)
    then = partial(sample_cleaned, project, root, place, partial(typer.echo, err=True))
    found = remove_all(root, find, then=then) if acts else find()
    _show(found, removed=acts, as_json=json_)


def _show(found: "Sequence[Removable]", *, removed: bool, as_json: bool) -> None:
    from charter.cli.tables import console, plain_table
    from charter.units import format_bytes

    if as_json:
        rows = [
            {"name": item.name, "why": item.why, "bytes": item.bytes, "removed": removed and item.remove is not None}
            for item in found
        ]
        print_json({"schema": "charter.removable/1", "items": rows})
        return
    if not found:
        typer.echo("nothing to remove")
        return
    table = plain_table(("What", "wrap"), ("Why", "wrap"), ("Size", "right"))
    for item in found:
        kept = " (kept: --other-results removes it)" if item.remove is None else ""
        table.add_row(item.name, item.why + kept, format_bytes(item.bytes))
    console().print(table)
    size = format_bytes(sum(item.bytes for item in found if item.remove is not None))
    typer.echo(f"removed {size}" if removed else f"{size} could be removed; --yes does it")
