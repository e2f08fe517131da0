"""Reading runs that are compared: the edge between files and the pure part."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from charter.errors import CharterError, UsageError
from charter.ledger.store import LEDGER_FILE
from charter.report.overview import Overview, overview
from charter.report.read import RUN, RunFiles, read_run


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the runs."""

    label: str
    run: RunFiles
    view: Overview
    file: Mapping[str, Any] = field(default_factory=dict)
    """`charter.yaml` with presets expanded and defaults written out, as it is now; empty where it does not load."""


def has_run(path: Path) -> bool:
    """Return True if a path names a project that has run, or its run directory.

    A project whose ledger is on a server is known by its plan.
    """
    run_dir = project_dir_of(path) / RUN
    return (run_dir / "plan.json").is_file() or (run_dir / LEDGER_FILE).is_file()


def project_dir_of(path: Path) -> Path:
    """The project of a path: the directory itself, that of its `charter.yaml`, or the one above its run directory."""
    if path.is_file():
        return path.parent
    is_run_dir = path.name == RUN and not (path / "charter.yaml").exists() and (path / "stages").is_dir()
    return path.parent if is_run_dir else path


def read_sides(paths: Sequence[Path], labels: Sequence[str], *, with_metrics: bool = True) -> tuple[Side, ...]:
    """Every run with its label; UsageError for a path that has none."""
    sides = []
    for path, label in zip(paths, labels, strict=True):
        directory = project_dir_of(path)
        if not directory.is_dir():
            raise UsageError(f"there is no {path}; give the directory of a project that has run")
        run = read_run(directory, with_metrics=with_metrics)
        sides.append(Side(label=label, run=run, view=overview(run), file=_file(directory)))
    return tuple(sides)


def _file(directory: Path) -> Mapping[str, Any]:
    """A file that no longer loads does not stop a comparison of what was run."""
    from charter.engines.project import load_project
    from charter.spec.expand import plain

    path = directory / "charter.yaml"
    if not path.is_file():
        return {}
    try:
        content = plain(load_project(path))
    except CharterError:
        return {}
    return content if isinstance(content, dict) else {}
