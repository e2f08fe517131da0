"""What `charter plan` and its neighbours share: the project that is planned, and the terminal."""

from pathlib import Path
from typing import TYPE_CHECKING

from charter.cli.common import open_project

if TYPE_CHECKING:
    from rich.console import Console

    from charter.spec.project import Project

PIPE_COLUMNS = 140


def planned_project(path: Path, template: str | None, overrides: list[str] | None) -> "tuple[Project, Path]":
    """The project of a path, or a shipped template written to a directory that lasts as long as the command."""
    if template is None:
        return open_project(path, overrides)
    from tempfile import TemporaryDirectory

    from charter.templates.shipped import find_template, write_template

    keep = TemporaryDirectory(prefix="charter-plan-")
    _KEPT.append(keep)
    directory = Path(keep.name) / template
    write_template(find_template(template), directory, force=False)
    return open_project(directory, overrides)


_KEPT: list[object] = []
"""Directories of templates, removed when the command ends."""


def console() -> "Console":
    """The terminal's width; a file or pipe gets lines wide enough for the tables of a plan."""
    from charter.cli import tables

    return tables.console(PIPE_COLUMNS, markup=True)
