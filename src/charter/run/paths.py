"""Paths in a project's run directory."""

import re
from pathlib import Path

from charter.artifacts.job import JOB_FILE
from charter.artifacts.lease import Lease
from charter.spec.project import Project

RUN = "run"
TAGS_FILE = "tags.json"
"""Tags that people have put on the run, beside those of its file."""


def run_dir(root: Path) -> Path:
    """The run directory of a project directory."""
    return root / RUN


def hold_of(directory: Path) -> Lease:
    """Take the hold on a run: of all that start, copy or change it, one at a time."""
    return Lease(directory, lock_name="run.lock", what="the project")


def stages_dir(root: Path) -> Path:
    """Holds one directory per stage and fingerprint."""
    return root / RUN / "stages"


def stage_dir(root: Path, name: str, fingerprint: str) -> Path:
    """The directory of a stage under one fingerprint."""
    return stages_dir(root) / f"{name}-{fingerprint[:8]}"


def earlier_stage_dirs(root: Path, name: str) -> list[Path]:
    """All directories of a stage of that name, the one started last first."""
    pattern = re.compile(rf"{re.escape(name)}-[0-9a-f]{{8}}")
    if not stages_dir(root).is_dir():
        return []
    directories = [path for path in stages_dir(root).iterdir() if pattern.fullmatch(path.name)]
    return sorted((path for path in directories if (path / JOB_FILE).exists()), key=_started_at, reverse=True)


def _started_at(path: Path) -> float:
    return (path / JOB_FILE).stat().st_mtime


def constitution_path(project: Project, root: Path) -> Path | None:
    """The constitution file of a project."""
    return None if project.constitution is None else (root / project.constitution).resolve()


def own_tags(content: object) -> dict[str, str]:
    """Return the tags in the content of `tags.json`; what is none is left out."""
    tags = content.get("tags") if isinstance(content, dict) else None
    items = tags.items() if isinstance(tags, dict) else ()
    return {name: value for name, value in items if isinstance(name, str) and isinstance(value, str)}
