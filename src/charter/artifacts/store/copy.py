"""Sealed lists that say what objects are: the files of a checkpoint, of finished outputs, of a group of batches.

A list is written after its objects, and never changes: what it names can be brought back whole. It names every file by
its path in the stage's directory. Each stage has a summary of its lists besides, which is read by its name, since a
store's listing may lag behind; a list that only one of the two shows counts as well, because the list itself proves it.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

from charter.artifacts.file_facts import FileFact
from charter.artifacts.safe_path import wrong_name
from charter.artifacts.sealed import checked_text, sealed_text
from charter.artifacts.store.objects import Objects
from charter.artifacts.store.opening import open_place
from charter.artifacts.store.place import NO_TAGS, Kept, PlaceError, Tags
from charter.errors import DataError

COPIES, SUMMARY = "copies", "summary.json"
SCHEMA = "charter.copy/1"
CopyKind = Literal["checkpoint", "outputs", "batches", "sidecars"]


@dataclass(frozen=True, kw_only=True)
class Copy:
    """One list."""

    name: str
    """`step-00000012`, `outputs`, `batches-<hash>`, `sidecars-00000003`: unique in its group."""
    kind: CopyKind
    fingerprint: str
    """Of the stage; empty for what belongs to the run."""
    files: Mapping[str, FileFact]
    """Path in the stage's directory (or the run's) -> what it holds."""

    @property
    def bytes(self) -> int:
        """What its files hold together."""
        return sum(fact.bytes for fact in self.files.values())


def open_copies(
    where: str,
    *,
    root: Path,
    project: str,
    tags: Callable[[str], Tags] = lambda _: NO_TAGS,
    tell: Callable[[str], None] = lambda _: None,
) -> "Copies":
    """The copies of a project in the place that `storage.artifacts` names; `tags` of a group go onto what it writes."""
    return Copies(Objects(open_place(where, root=root, tell=tell)), project, tags)


class Copies:
    """The lists of one project in a place, by group: a stage's directory name, or `run`."""

    def __init__(self, objects: Objects, project: str, tags: Callable[[str], Tags] = lambda _: NO_TAGS) -> None:
        self.objects = objects
        self.tags = tags
        self._place = objects.place
        self._top = f"{COPIES}/{project}"

    def publish(
        self, group: str, copy: Copy, base: Path, *, contents: Mapping[str, bytes] = MappingProxyType({})
    ) -> None:
        """Keep a list and what it names: the objects, then the list, then the summary.

        `contents` are files that change on the disk meanwhile, as they were when they were hashed.
        """
        tags = self.tags(group)
        for relative, fact in copy.files.items():
            if relative in contents:
                self.objects.add_content(contents[relative], tags=tags)
            else:
                self.objects.add(base / relative, fact, tags=tags)
        key = self._key(group, copy.name)
        text = _text(group, copy).encode()
        if not self._place.put_new(key, text, tags=tags) and self._place.get(key) != text:
            self._place.put(key, text, tags=tags)
        self.objects.sent_bytes += len(text)
        self.note(group, [*self._noted(group), copy.name])

    def of(self, group: str) -> tuple[list[Copy], list[str]]:
        """The lists of a group that are whole, by name, and what is wrong with the others."""
        found, wrong = [], []
        for name in sorted(self._names(group)):
            try:
                copy = self.read(group, name)
            except PlaceError:
                raise
            except DataError as error:
                wrong.append(str(error))
                continue
            if copy is not None:
                found.append(copy)
        return found, wrong

    def read(self, group: str, name: str) -> Copy | None:
        """One list; None when it is not there, a DataError when a bit of it has changed."""
        key = self._key(group, name)
        if (content := self._place.get(key)) is None:
            return None
        return _copy(f"{self._place.where}/{key}", content, group=group, name=name)

    def damage(self, copy: Copy) -> list[str]:
        """What is wrong with the objects of a list, in words, after reading all of them."""
        facts = {fact.sha256: fact for fact in copy.files.values()}
        return [wrong for _, fact in sorted(facts.items()) if (wrong := self.objects.damage(fact)) is not None]

    def lists(self) -> list[Kept]:
        """The files of the lists and of their summaries that a listing shows."""
        return self._place.listed(f"{self._top}/")

    def groups(self) -> list[str]:
        """The groups that a listing shows."""
        keys = (kept.key.removeprefix(f"{self._top}/") for kept in self.lists())
        return sorted({key.partition("/")[0] for key in keys if "/" in key})

    def forget(self, group: str, names: Iterable[str]) -> None:
        """Remove lists; their objects stay until nothing names them any more."""
        gone = set(names)
        self.note(group, [name for name in self._noted(group) if name not in gone])
        for name in sorted(gone):
            self._place.remove(self._key(group, name))

    def note(self, group: str, names: Iterable[str]) -> None:
        """Write a group's summary."""
        summary = {"schema": SCHEMA, "group": group, "names": sorted(set(names))}
        key = self._key(group, SUMMARY.removesuffix(".json"))
        text = sealed_text(summary).encode()
        self._place.put(key, text, tags=self.tags(group))
        self.objects.sent_bytes += len(text)

    def mend(self, group: str, names: Iterable[str]) -> None:
        """Add to the summary what a process that was killed has published without it."""
        noted = self._noted(group)
        if set(names) - set(noted):
            self.note(group, [*noted, *names])

    def _names(self, group: str) -> set[str]:
        listed = (Path(kept.key).name for kept in self._place.listed(f"{self._top}/{group}/"))
        names = {name.removesuffix(".json") for name in listed if name.endswith(".json") and name != SUMMARY}
        return names | set(self._noted(group))

    def _noted(self, group: str) -> list[str]:
        key = self._key(group, SUMMARY.removesuffix(".json"))
        if (content := self._place.get(key)) is None:
            return []
        try:
            return [str(name) for name in checked_text(key, content)["names"] if wrong_name(str(name)) is None]
        except (DataError, KeyError, TypeError):
            return []  # the listing shows the lists as well, and the next one published writes a new summary

    def _key(self, group: str, name: str) -> str:
        return f"{self._top}/{group}/{name}.json"


def batches_name(files: Iterable[str]) -> str:
    """The name of a list of batches, by what it holds."""
    digest = hashlib.sha256(json.dumps(sorted(files)).encode()).hexdigest()
    return f"batches-{digest[:16]}"


def _text(group: str, copy: Copy) -> str:
    return sealed_text(
        {
            "schema": SCHEMA,
            "group": group,
            "name": copy.name,
            "kind": copy.kind,
            "fingerprint": copy.fingerprint,
            "files": {relative: asdict(fact) for relative, fact in copy.files.items()},
        }
    )


def _copy(where: str, content: bytes, *, group: str, name: str) -> Copy:
    plain: dict[str, Any] = checked_text(where, content)
    try:
        if (plain["group"], plain["name"]) != (group, name) or plain["kind"] not in get_args(CopyKind):
            raise DataError(f"{where} is the list {plain['name']} of {plain['group']}, kind {plain['kind']}")
        files = {relative: FileFact(**fact) for relative, fact in plain["files"].items()}
        for relative in files:
            if (wrong := wrong_name(relative)) is not None:
                raise DataError(f"{where} names the file {relative[:80]!r}, which is refused: {wrong}")
        return Copy(name=name, kind=plain["kind"], fingerprint=plain["fingerprint"], files=files)
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{where} is not a complete list of copies: {error}") from None
