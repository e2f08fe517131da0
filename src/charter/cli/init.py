"""`charter init`: a project to start from."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from charter.errors import UsageError


def init_command(
    directory: Annotated[
        Path | None, typer.Argument(help="Where to write the project; created if missing.", show_default=False)
    ] = None,
    template: Annotated[
        str, typer.Option("--template", "-t", help="Which project to start from (see --list).")
    ] = "cai-tiny",
    list_templates: Annotated[bool, typer.Option("--list", help="List the templates and stop.")] = False,
    force: Annotated[
        bool,
        typer.Option("--force", help="Write into a directory that is not empty; files of the template are replaced."),
    ] = False,
) -> None:
    """Create a project: charter.yaml, constitution, data."""
    from charter.templates.shipped import TEMPLATES, find_template, write_template

    if list_templates:
        for item in TEMPLATES:
            typer.echo(f"{item.name:<10}  {item.summary}")
        return
    if directory is None:
        raise UsageError("name a directory, for example: charter init --template cai-tiny demo  (--list: templates)")
    chosen = find_template(template)
    written = write_template(chosen, directory, force=force)
    typer.echo(f"Wrote {chosen.name} to {directory}: {', '.join(str(path.relative_to(directory)) for path in written)}")
    if chosen.brings:
        typer.echo(f"Before a run, add {', '.join(chosen.brings)} (README.md says how a row looks).")
    typer.echo("\nNext:")
    typer.echo(f"  charter plan -C {shlex.quote(str(directory))}")
    missing = " --dry-run  # what is still missing" if chosen.brings else ""
    typer.echo(f"  charter run -C {shlex.quote(str(directory))}{missing}")
