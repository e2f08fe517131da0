"""`charter ckpt backup | restore | scrub`: results in a second place, there and back."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from charter.cli.common import DirOption, JsonOption, SetOption, open_project, print_json

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
    from charter.pipeline.copies import back_up

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
    """Bring back what the second place has and this machine has not; then `charter run` goes on from there."""
    from charter.pipeline.copies import restore as bring_back

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
    from charter.errors import DataError
    from charter.pipeline.copies import scrub as scrub_all

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
