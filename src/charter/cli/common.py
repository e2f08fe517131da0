"""What several commands share: where the project is, how JSON is printed, options."""

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from charter.spec.project import Project

DirOption = Annotated[
    Path, typer.Option("-C", "--directory", help="Project directory (the one with charter.yaml).", show_default=False)
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="A.B=C", help="Override a value of charter.yaml; repeatable.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
VerifyOption = Annotated[
    bool, typer.Option("--verify", help="Hash every output again, not only those whose size or time changed.")
]


def project_root(directory: Path) -> Path:
    """The project directory, also when its charter.yaml was given."""
    return (directory.parent if directory.is_file() else directory).resolve()


def open_project(directory: Path, overrides: list[str] | None = None) -> "tuple[Project, Path]":
    """Read the project of a directory (or of a charter.yaml)."""
    from charter.errors import UsageError
    from charter.spec.load import load_project

    root = project_root(directory)
    path = directory if directory.is_file() else root / "charter.yaml"
    if not directory.exists():
        raise UsageError(
            f"there is no file or directory {directory}\n"
            "  give a project with -C DIR; `charter init --template cai-tiny DIR` writes one"
        )
    if not path.is_file():
        raise UsageError(
            f"there is no charter.yaml in {root}\n"
            "  go to a project or give it with -C DIR; `charter init --template cai-tiny DIR` writes one"
        )
    return load_project(path, overrides=overrides or (), env=dict(os.environ)), root


def loadable_project(root: Path) -> "Project | None":
    """The project of a directory; None where there is no charter.yaml, or it no longer loads: a run may outlive it."""
    from charter.errors import SpecError, UsageError

    try:
        return open_project(root)[0]
    except (SpecError, UsageError):
        return None


def write_asked(option: str, path: Path, text: str | bytes, *, make_directory: bool = False) -> None:
    """Write a file that an option named, whole or not at all; what is in the way is told as a `UsageError`."""
    from charter.artifacts.durable import write_file
    from charter.errors import UsageError

    if path.is_dir():
        raise UsageError(f"{option} {path}: is a directory; give a file in a directory that exists")
    try:
        if make_directory:
            path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, text)
    except OSError as error:
        raise UsageError(f"{option} {path}: {error.strerror}; give a file in a directory that exists") from None


def print_json(value: Any) -> None:
    """One JSON object on stdout."""
    json.dump(value, sys.stdout, indent=2, ensure_ascii=False, allow_nan=False)
    sys.stdout.write("\n")


def wants_live_display() -> bool:
    """Whether stdout is a terminal that can redraw; `CI` and a dumb terminal say no."""
    return sys.stdout.isatty() and not os.environ.get("CI") and os.environ.get("TERM") != "dumb"
