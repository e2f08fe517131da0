"""Compares what is here with what a second place has, reading every byte, and repairs either from the other.

A file is good when it has the hash that a sealed list gives it. Where both are bad it is said, and nothing is touched.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from charter.artifacts.file_facts import FileFact, facts_of
from charter.artifacts.safe_path import below
from charter.artifacts.store.copy import Copies, Copy
from charter.artifacts.store.sources import SIDECARS

Outcome = Literal["repaired here", "repaired there", "lost"]


@dataclass(frozen=True, kw_only=True)
class Repair:
    """One file that was not as recorded."""

    path: Path
    outcome: Outcome
    wrong: str

    def __str__(self) -> str:
        """One line."""
        return f"{self.outcome}: {self.path} ({self.wrong})"


def scrub_group(copies: Copies, group: str, directory: Path, *, repair: bool = True) -> Iterator[Repair]:
    """Go through all lists of a group; `directory` is where its files belong.

    Without `repair` it is said what would be done. Files whose list is not here at all (a checkpoint that retention
    removed) are checked there only.
    """
    found, wrong = copies.of(group)
    for problem in wrong:
        yield Repair(path=directory, outcome="lost", wrong=problem)
    for copy in found:
        if copy.kind != "sidecars":
            yield from _scrub(copies, copy, group, directory, repair=repair)


def _scrub(copies: Copies, copy: Copy, group: str, directory: Path, *, repair: bool) -> Iterator[Repair]:
    files = {name: fact for name, fact in copy.files.items() if name not in SIDECARS}
    is_here = any(below(directory, name).exists() for name in files)
    here = _damaged_here(directory, files) if is_here else {}
    for name, fact in sorted(files.items()):
        there = copies.objects.damage(fact)
        path = below(directory, name)
        if name in here and there is None:
            if repair:
                copies.objects.bring(fact, path)
            yield Repair(path=path, outcome="repaired here", wrong=here[name])
        elif there is not None and is_here and name not in here:
            if repair:
                copies.objects.repair(path, fact, tags=copies.tags(group))
            yield Repair(path=path, outcome="repaired there", wrong=there)
        elif there is not None:
            yield Repair(path=path, outcome="lost", wrong=there)


def _damaged_here(directory: Path, files: Mapping[str, FileFact]) -> dict[str, str]:
    """The files that are missing or not as recorded, each with what is wrong."""
    found = {name: "it is missing" for name in files if not (directory / name).is_file()}
    there = sorted(set(files) - set(found))
    for name, fact in zip(there, facts_of([directory / name for name in there]), strict=True):
        if fact != files[name]:
            found[name] = "it does not have its recorded sha256"
    return found
