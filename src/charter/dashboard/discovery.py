"""Finds projects below directories: a `charter.yaml`, or a run that one has left."""

import hashlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from charter.errors import UsageError
from charter.run.paths import RUN

FILE = "charter.yaml"
DEEPEST = 4
"""Levels below a given directory; projects lie beside each other, not far down."""
MOST = 2000
_PASSED = frozenset({"node_modules", "__pycache__", "site-packages", RUN, "stages", "outputs"})


@dataclass(frozen=True, kw_only=True)
class ProjectDirectory:
    """A project directory."""

    key: str
    """Names it in addresses: its directory's name, and a mark that tells equal names apart."""
    root: Path
    label: str
    """Its path as a reader knows it: below the directory that was given."""


def check_roots(roots: Iterable[Path]) -> None:
    """UsageError for a directory that is not there."""
    for root in roots:
        if not root.is_dir():
            raise UsageError(f"there is no directory {root}; give directories that hold projects")


def find_projects(roots: Iterable[Path]) -> tuple[ProjectDirectory, ...]:
    """Every project below the directories, in the order of their paths; each once."""
    projects: dict[Path, ProjectDirectory] = {}
    for root in roots:
        resolved = root.resolve()
        for path in _walk(resolved, DEEPEST):
            if path not in projects and len(projects) < MOST:
                label = resolved.name if path == resolved else str(path.relative_to(resolved))
                projects[path] = ProjectDirectory(key=key_of(path), root=path, label=label)
    return tuple(sorted(projects.values(), key=lambda item: (item.label, item.key)))


def key_of(root: Path) -> str:
    """The key of a project directory; it holds nothing that has a meaning in a path or an address.

    >>> key_of(Path("/home/me/Harmless 8B"))
    'harmless-8b-426849'
    """
    mark = hashlib.sha256(str(root).encode("utf-8", "surrogateescape")).hexdigest()[:6]
    words = re.sub(r"[^a-z0-9]+", "-", root.name.lower()).strip("-")[:40]
    return f"{words or 'project'}-{mark}"


def _walk(directory: Path, levels: int) -> Iterable[Path]:
    if (directory / FILE).is_file() or (directory / RUN / "events.jsonl").is_file():
        yield directory
        return
    if not levels:
        return
    try:
        entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        if entry.name.startswith(".") or entry.name in _PASSED or not entry.is_dir(follow_symlinks=False):
            continue
        yield from _walk(Path(entry.path), levels - 1)
