"""`charter export`: a finished stage's model as a plain Hugging Face directory."""

from pathlib import Path
from typing import Annotated

import typer

from charter.cli.common import DirOption, SetOption, open_project


def export(
    stage: Annotated[str, typer.Argument(help="Name of a finished stage that trained a model.", show_default=False)],
    target: Annotated[Path, typer.Argument(help="Directory to write; it must not exist.", show_default=False)],
    directory: DirOption = Path("."),
    licence: Annotated[str, typer.Option("--license", help="Licence of the model, for its card.")] = "unknown",
    set_: SetOption = None,
) -> None:
    """Write a finished stage's model as a Hugging Face directory, with a model card and its cost beside it."""
    from charter.report.export import CARD, COST, export_stage

    project, root = open_project(directory, set_)
    record = export_stage(project, root, stage, target, licence=licence)
    typer.echo(f"Wrote {stage} ({record.fingerprint[:8]}) to {target}: model, {CARD}, {COST}")
