"""Sealed lists that say what objects are: the files of a checkpoint, of finished outputs, of a group of batches.

A list is written after its objects, and never changes: what it names can be brought back whole. It names every file by
its path in the stage's directory. Each stage has a summary of its lists besides, which is read by its name, since a
store's listing may lag behind; a list that only one of the two shows counts as well, because the list itself proves it.
"""

import contextlib
import hashlib
import json
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

from charter.artifacts import durable
from charter.artifacts.batch_files import BATCHES, batch_paths
from charter.artifacts.checkpoints import PINNED, STATE, Position, files_of
from charter.artifacts.fingerprint import FileFact, check_chunks, fact_of_chunks, facts_of
from charter.artifacts.job import JOB_FILE
from charter.artifacts.record import OUTPUTS, RECORD_FILE, read_record
from charter.artifacts.store.place import BUCKET, NO_TAGS, CopyLocation, LocalPlace, PlaceError, StoredObject, Tags
from charter.artifacts.whole_dir import MANIFEST, checked_text, sealed_text, wrong_name
from charter.errors import DataError, UsageError

OBJECTS = "objects"


def object_key(sha256: str) -> str:
    """Return the key of the object with this SHA-256.

    >>> object_key("ab" + "0" * 62)[:14]
    'objects/ab/ab0'
    """
    if len(sha256) != 64 or set(sha256) - set("0123456789abcdef"):
        raise DataError(f"{sha256[:80]!r} is not a sha256")
    return f"{OBJECTS}/{sha256[:2]}/{sha256}"


class Objects:
    """The objects in a place."""

    def __init__(self, place: CopyLocation) -> None:
        self.place = place
        self.sent_bytes = 0
        """Of what this process has put there, whole; counted when it is there."""

    def add(self, path: Path, fact: FileFact, *, tags: Tags = NO_TAGS) -> None:
        """Keep a file that is as `fact` says; refused when it is not, so damage never spreads."""
        if not self.has(fact):
            self.repair(path, fact, tags=tags)

    def add_content(self, content: bytes, *, tags: Tags = NO_TAGS) -> None:
        """Keep bytes."""
        fact = fact_of_chunks([content])
        if not self.has(fact):
            self.place.put(object_key(fact.sha256), content, tags=tags)
            self.sent_bytes += fact.bytes

    def has(self, fact: FileFact) -> bool:
        """Return True if an object of that name and size is there; its content is not read."""
        return self.place.size(object_key(fact.sha256)) == fact.bytes

    def bring(self, fact: FileFact, target: Path) -> None:
        """Write an object's content to a file; a DataError, and no file, when it is not what its name says."""
        try:
            durable.write_chunks(target, self.place.chunks(object_key(fact.sha256)), fact)
        except FileNotFoundError:
            raise DataError(f"{self._name(fact)} is missing; it was to become {target}") from None

    def content(self, fact: FileFact) -> bytes:
        """The bytes of a small object, verified."""
        if (content := self.place.get(object_key(fact.sha256))) is None:
            raise DataError(f"{self._name(fact)} is missing")
        check_chunks(self._name(fact), [content], fact)
        return content

    def damage(self, fact: FileFact) -> str | None:
        """Read an object and return its damage in words, or None."""
        try:
            check_chunks(self._name(fact), self.place.chunks(object_key(fact.sha256)), fact)
        except FileNotFoundError:
            return f"{self._name(fact)} is missing"
        except PlaceError:
            raise
        except DataError as error:
            return str(error)
        return None

    def repair(self, path: Path, fact: FileFact, *, tags: Tags = NO_TAGS) -> None:
        """Put a good file in place of an object that is damaged."""
        self.place.upload(object_key(fact.sha256), path, fact, tags=tags)
        self.sent_bytes += fact.bytes

    def listed(self) -> Iterator[StoredObject]:
        """Yield the objects of a listing."""
        yield from self.place.listed(f"{OBJECTS}/")

    def _name(self, fact: FileFact) -> str:
        return f"{self.place.where}/{object_key(fact.sha256)}"


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
        """Total size of its files."""
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
        intact, wrong = [], []
        for name in sorted(self._names(group)):
            try:
                copy = self.read(group, name)
            except PlaceError:
                raise
            except DataError as error:
                wrong.append(str(error))
                continue
            if copy is not None:
                intact.append(copy)
        return intact, wrong

    def read(self, group: str, name: str) -> Copy | None:
        """One list; None when it is not there, a DataError when a bit of it has changed."""
        key = self._key(group, name)
        if (content := self._place.get(key)) is None:
            return None
        return _copy(f"{self._place.where}/{key}", content, group=group, name=name)

    def damage(self, copy: Copy) -> list[str]:
        """Read the objects of a list and return their damage in words."""
        facts = {fact.sha256: fact for fact in copy.files.values()}
        return [wrong for _, fact in sorted(facts.items()) if (wrong := self.objects.damage(fact)) is not None]

    def lists(self) -> list[StoredObject]:
        """The files of the lists and of their summaries that a listing shows."""
        return self._place.listed(f"{self._top}/")

    def groups(self) -> list[str]:
        """The groups that a listing shows."""
        keys = (item.key.removeprefix(f"{self._top}/") for item in self.lists())
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
        listed = (Path(item.key).name for item in self._place.listed(f"{self._top}/{group}/"))
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


ROLL_BACKS, METRICS, TIMINGS = "roll_backs.json", "metrics.jsonl", "timings.json"
SIDECARS = (JOB_FILE, ROLL_BACKS, METRICS, TIMINGS)
"""Beside a checkpoint or outputs: what a resume reads, and what reports are made of."""
MOST_BATCHES = 1000
"""Files in one list: about 150 KB of text."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """A list to be made, and where its files lie."""

    copy: Copy
    base: Path
    contents: Mapping[str, bytes] = field(default_factory=dict)
    """Files that may change meanwhile, as they were."""


def checkpoint_source(stage_dir: Path, position: Position, fingerprint: str) -> Source:
    """A checkpoint with what belongs to it; a DataError when its manifest is not whole."""
    path = stage_dir / STATE / position.directory
    prefix = f"{STATE}/{position.directory}"
    contents = _sidecars(stage_dir)
    contents[f"{prefix}/{MANIFEST}"] = (path / MANIFEST).read_bytes()
    if (path / PINNED).exists():
        contents[f"{prefix}/{PINNED}"] = b""
    files = {f"{prefix}/{name}": fact for name, fact in files_of(path).items()}
    return _source(stage_dir, position.directory, "checkpoint", fingerprint, files, contents)


def outputs_source(stage_dir: Path) -> Source | None:
    """Finished outputs with their record; None while there is none."""
    if (record := read_record(stage_dir)) is None:
        return None
    files = {}
    for relative, sha256 in record.outputs.items():
        path = stage_dir / OUTPUTS / relative
        if not path.is_file():
            raise DataError(f"{path} is missing, though {RECORD_FILE} lists it")
        files[f"{OUTPUTS}/{relative}"] = FileFact(bytes=path.stat().st_size, sha256=sha256)
    contents = {**_sidecars(stage_dir), RECORD_FILE: (stage_dir / RECORD_FILE).read_bytes()}
    return _source(stage_dir, OUTPUTS, "outputs", record.fingerprint, files, contents)


def batches_source(stage_dir: Path, fingerprint: str, *, copied: Collection[str]) -> Source | None:
    """Batches of records that no list has yet, the first thousand of them; None when there are none."""
    names = [f"{BATCHES}/{path.name}" for path in batch_paths(stage_dir)]
    new = [name for name in names if name not in copied][:MOST_BATCHES]
    if not new:
        return None
    files = dict(zip(new, facts_of([stage_dir / name for name in new]), strict=True))
    job = {name: content for name, content in _sidecars(stage_dir).items() if name == JOB_FILE}
    return _source(stage_dir, batches_name(new), "batches", fingerprint, files, job)


def file_source(base: Path, names: Collection[str], name: str, fingerprint: str) -> Source:
    """A list of sidecars: files that lie below `base` and do not change."""
    files = dict(zip(sorted(names), facts_of([base / item for item in sorted(names)]), strict=True))
    return Source(copy=Copy(name=name, kind="sidecars", fingerprint=fingerprint, files=files), base=base)


def _source(
    stage_dir: Path,
    name: str,
    kind: CopyKind,
    fingerprint: str,
    files: Mapping[str, FileFact],
    contents: Mapping[str, bytes],
) -> Source:
    facts = {**files, **{relative: fact_of_chunks([content]) for relative, content in contents.items()}}
    copy = Copy(name=name, kind=kind, fingerprint=fingerprint, files=facts)
    return Source(copy=copy, base=stage_dir, contents=contents)


def _sidecars(stage_dir: Path) -> dict[str, bytes]:
    return {name: (stage_dir / name).read_bytes() for name in SIDECARS if (stage_dir / name).exists()}


BUSY_SECONDS = 10.0
"""How long a writer may hold the database; the ledger's own transactions take milliseconds."""


def copy_database(source: Path, target: Path) -> None:
    """Write a whole copy of a database as one file; a DataError when the database is damaged."""
    try:
        with (
            contextlib.closing(sqlite3.connect(source, timeout=BUSY_SECONDS)) as live,
            contextlib.closing(sqlite3.connect(target)) as copy,
        ):
            live.backup(copy)
            copy.execute("PRAGMA journal_mode=DELETE")
            (verdict,) = copy.execute("PRAGMA integrity_check(1)").fetchone()
    except sqlite3.Error as error:
        raise DataError(f"{source} cannot be copied: {error}") from error
    if verdict != "ok":
        raise DataError(f"{source} is damaged: {verdict}")


def damage_of(path: Path) -> str | None:
    """Return the damage of a database in SQLite's words, or None."""
    try:
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=BUSY_SECONDS)) as database:
            (verdict,) = database.execute("PRAGMA integrity_check(1)").fetchone()
    except sqlite3.Error as error:
        return str(error)
    return None if verdict == "ok" else str(verdict)


def open_place(where: str, *, root: Path, tell: Callable[[str], None] = lambda _: None) -> CopyLocation:
    """The place that `storage.artifacts` names: `s3://bucket/path`, or a directory, relative to the project's.

    `tell` hears of what a place does not do, and copies can do without.
    """
    if where.startswith(BUCKET):
        from charter.artifacts.store.s3 import S3Place

        return S3Place(where, tell=tell)
    if "://" in where:
        raise UsageError(f"{where} is not a place Charter can keep copies in; give a directory or s3://bucket/path")
    return LocalPlace((root / Path(where).expanduser()).resolve())
