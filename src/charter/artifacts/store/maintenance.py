"""Upkeep of copies: replicating a run, restoring a stage, scrubbing, collecting what no list names, counting bytes.

What is not copied yet is on the disk, so a place that is down for a while costs nothing but delay: the next pass copies
what is there then. Nothing is copied that does not have its recorded hash.
"""

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from charter.artifacts import durable
from charter.artifacts.checkpoints import (
    PINNED,
    STATE,
    CheckpointRetention,
    Held,
    Position,
    damage,
    position_of,
    positions_in,
)
from charter.artifacts.fingerprint import FileFact, facts_of, files_under
from charter.artifacts.record import OUTPUTS, RECORD_FILE, damaged_output, read_record
from charter.artifacts.store.copy import (
    COPIES,
    OBJECTS,
    SIDECARS,
    SUMMARY,
    Copies,
    Copy,
    Source,
    batches_source,
    checkpoint_source,
    copy_database,
    file_source,
    outputs_source,
)
from charter.artifacts.store.place import BUCKET, CopyLocation, PlaceError, StoredObject
from charter.artifacts.whole_dir import MANIFEST, below, checked_text, publish_dir, sealed_text
from charter.errors import DataError

DOOMED = "doomed.json"
GRACE_SECONDS = 24 * 3600.0
"""Longer than any upload of one checkpoint, and than stores with delayed listings need to agree (minutes)."""


@dataclass(frozen=True, kw_only=True)
class Collected:
    """Objects removed and doomed by one collection."""

    removed: tuple[StoredObject, ...]
    doomed: tuple[StoredObject, ...]
    """Written down, and removed by a call that comes `GRACE_SECONDS` later."""


def collect(place: CopyLocation, *, act: bool = True) -> Collected:
    """Remove objects that were doomed by an earlier call, and doom those that nothing names; or only tell."""
    now, named = place.now(), named_objects(place)
    old = [item for item in place.listed(f"{OBJECTS}/") if now - item.written_at >= GRACE_SECONDS]
    unnamed = [item for item in old if item.key.rpartition("/")[2] not in named]
    doomed = _doomed(place)
    removed = tuple(item for item in unnamed if now - doomed.get(item.key, now) >= GRACE_SECONDS)
    doomed_now = tuple(item for item in unnamed if item not in removed)
    if act:
        for item in removed:
            place.remove(item.key)
        content = {"since": {item.key: doomed.get(item.key, now) for item in doomed_now}}
        if content["since"] != doomed:
            place.put(DOOMED, sealed_text(content).encode())
    return Collected(removed=removed, doomed=doomed_now)


def named_objects(place: CopyLocation) -> set[str]:
    """The hashes that any list of any project names; a DataError when one list cannot be read."""
    keys = {item.key for item in place.listed(f"{COPIES}/")}
    summaries = [key for key in keys if key.endswith(f"/{SUMMARY}")]
    for summary in summaries:
        keys |= {f"{summary.removesuffix(SUMMARY)}{name}.json" for name in _content(place, summary).get("names", ())}
    named: set[str] = set()
    for key in sorted(keys - set(summaries)):
        files = _content(place, key).get("files", {})
        named |= {str(fact["sha256"]) for fact in files.values()}
    return named


def prunable(copies: Copies, group: str, retention: CheckpointRetention) -> list[Copy]:
    """The checkpoints of a stage that retention does not keep in the place, oldest first.

    The newest are read whole until enough are found to be good; without these nothing may go.
    """
    by_position = {position: item for item in copies.of(group)[0] if (position := position_of(item.name)) is not None}
    listed, good = [], 0
    for position in sorted(by_position, reverse=True):
        verified = good < retention.keep_last and not copies.damage(by_position[position])
        good += verified
        listed.append(
            Held(
                position=position,
                verified=verified,
                metric=_metric(copies, by_position[position]) if retention.keep_best else None,
                pinned=any(name.endswith(f"/{PINNED}") for name in by_position[position].files),
            )
        )
    return [by_position[position] for position in retention.removable(listed)]


def _doomed(place: CopyLocation) -> dict[str, float]:
    """Read the moment at which each object was first written down to be removed."""
    if (text := place.get(DOOMED)) is None:
        return {}
    try:
        return {str(key): float(since) for key, since in checked_text(DOOMED, text)["since"].items()}
    except (DataError, KeyError, TypeError, ValueError, AttributeError):
        return {}  # they are written down again, which costs a day


def _content(place: CopyLocation, key: str) -> dict[str, Any]:
    if (text := place.get(key)) is None:
        return {}
    try:
        return checked_text(f"{place.where}/{key}", text)
    except DataError as error:
        raise DataError(
            f"{error}\n  nothing is removed while it is unknown what it names; `charter artifacts checkpoints scrub`"
        ) from None


def _metric(copies: Copies, copy: Copy) -> float | None:
    name = next((name for name in copy.files if name.endswith(f"/{MANIFEST}")), None)
    if name is None:
        return None
    value = json.loads(copies.objects.content(copy.files[name])).get("metric")
    return None if value is None else float(value)


def abandoned_uploads(place: CopyLocation) -> list[StoredObject]:
    """List the remains of crashed uploads that are old enough that nobody is still at work on them."""
    now = place.now()
    try:
        return [item for item in place.unfinished() if now - item.written_at >= GRACE_SECONDS]
    except PlaceError:
        return []  # a store that does not list them keeps none that could be found


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
    intact, wrong = copies.of(group)
    for problem in wrong:
        yield Repair(path=directory, outcome="lost", wrong=problem)
    for copy in intact:
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
    faults = {name: "it is missing" for name in files if not (directory / name).is_file()}
    there = sorted(set(files) - set(faults))
    for name, fact in zip(there, facts_of([directory / name for name in there]), strict=True):
        if fact != files[name]:
            faults[name] = "it does not have its recorded sha256"
    return faults


Tell = Callable[[str], None]


class Restorer:
    """Brings groups of copies into directories of this machine."""

    def __init__(self, copies: Copies, tell: Tell) -> None:
        self._copies = copies
        self._tell = tell

    def restore_stage(self, group: str, stage_dir: Path, fingerprint: str) -> list[str]:
        """Restore a stage and say in words what came back; empty when the place has nothing that is not here."""
        copies = [item for item in self._whole(group) if item.fingerprint == fingerprint]
        if not copies:
            return []
        durable.make_dir(stage_dir)
        durable.sweep(stage_dir)
        durable.sweep(stage_dir / STATE)
        brought = [] if _is_finished(stage_dir) else [*self._restore_outputs(copies, stage_dir)]
        if not (stage_dir / RECORD_FILE).exists():
            brought += [*self._restore_checkpoint(copies, stage_dir), *self._restore_batches(copies, stage_dir)]
        return [*brought, *self._restore_sidecars(copies, stage_dir)]

    def restore_run(self, group: str, run_dir: Path) -> list[str]:
        """Bring back the files of the run itself that are not here."""
        durable.make_dir(run_dir)
        return [*self._restore_sidecars(self._whole(group), run_dir)]

    def _whole(self, group: str) -> list[Copy]:
        copies, wrong = self._copies.of(group)
        for problem in wrong:
            self._tell(problem)
        return copies

    def _restore_outputs(self, copies: list[Copy], stage_dir: Path) -> Iterator[str]:
        for copy in (item for item in copies if item.kind == "outputs"):
            if (stage_dir / RECORD_FILE).exists():
                durable.move_aside(stage_dir / RECORD_FILE, "damaged")
            if (stage_dir / OUTPUTS).exists() and not _are_as_listed(copy, stage_dir):
                durable.move_aside(stage_dir / OUTPUTS, "damaged")
            if self._brought(copy, stage_dir, OUTPUTS, last=RECORD_FILE):
                yield f"outputs ({len(copy.files)} files)"

    def _restore_checkpoint(self, copies: list[Copy], stage_dir: Path) -> Iterator[str]:
        candidates = [(position, item) for item in copies if (position := _position(item)) is not None]
        for position, copy in sorted(candidates, key=lambda pair: pair[0], reverse=True):
            if position <= _newest_whole(stage_dir):
                return
            target = stage_dir / STATE / position.directory
            if target.exists():
                durable.move_aside(target, "damaged")
            if self._brought(copy, stage_dir, f"{STATE}/{position.directory}"):
                yield f"checkpoint {position}"
                return

    def _restore_batches(self, copies: list[Copy], stage_dir: Path) -> Iterator[str]:
        lists = [item for item in copies if item.kind == "batches"]
        count = 0
        for copy in lists:
            self._bring_sidecars(copy, stage_dir, names=SIDECARS)
            for relative, fact in sorted(copy.files.items()):
                target = below(stage_dir, relative)
                if relative in SIDECARS or target.exists():
                    continue
                durable.make_dir(target.parent)
                count += self._tried(partial(self._copies.objects.bring, fact, target))
        if count:
            yield f"{count} batches"

    def _restore_sidecars(self, copies: list[Copy], directory: Path) -> Iterator[str]:
        """The files of the newest list that can be read; one that is here already stays."""
        lists = sorted((item for item in copies if item.kind == "sidecars"), key=lambda item: item.name, reverse=True)
        for copy in lists:
            for relative, fact in sorted(copy.files.items()):
                target = below(directory, relative)
                if not target.exists() and self._tried(partial(self._copies.objects.bring, fact, target)):
                    yield relative

    def _brought(self, copy: Copy, stage_dir: Path, directory: str, *, last: str | None = None) -> bool:
        """Bring a directory back whole: first what belongs to it, then itself, then what says that it is finished."""
        inside = {name: fact for name, fact in copy.files.items() if name.startswith(f"{directory}/")}

        def write(path: Path) -> None:
            for name, fact in sorted(inside.items()):
                target = below(path, name.removeprefix(f"{directory}/"))
                target.parent.mkdir(parents=True, exist_ok=True)
                self._copies.objects.bring(fact, target)

        def bring() -> None:
            self._bring_sidecars(copy, stage_dir, names=SIDECARS, replace=True)
            if not (stage_dir / directory).exists():
                publish_dir(stage_dir / directory, write, expected_bytes=copy.bytes)
            if last is not None:
                self._copies.objects.bring(copy.files[last], stage_dir / last)

        return self._tried(bring)

    def _bring_sidecars(self, copy: Copy, stage_dir: Path, *, names: tuple[str, ...], replace: bool = False) -> None:
        for name in names:
            if name in copy.files and (replace or not (stage_dir / name).exists()):
                self._copies.objects.bring(copy.files[name], stage_dir / name)

    def _tried(self, bring: Callable[[], None]) -> bool:
        """Return True if it went well; damage is printed, a place that does not answer ends the restore."""
        try:
            bring()
        except PlaceError:
            raise
        except DataError as error:
            self._tell(str(error))
            return False
        return True


def _is_finished(stage_dir: Path) -> bool:
    try:
        record = read_record(stage_dir)
    except DataError:
        return False
    return record is not None and damaged_output(stage_dir, record, thorough=True) is None


def _are_as_listed(copy: Copy, stage_dir: Path) -> bool:
    """Return True if the outputs are the copy's, say because a restore was killed before it brought the record."""
    wanted = {name: fact for name, fact in copy.files.items() if name.startswith(f"{OUTPUTS}/")}
    names = [f"{OUTPUTS}/{name}" for name in files_under(stage_dir / OUTPUTS)]
    return dict(zip(names, facts_of([stage_dir / name for name in names]), strict=True)) == wanted


def _newest_whole(stage_dir: Path) -> Position:
    there = positions_in(stage_dir / STATE)
    intact = (item for item in reversed(there) if damage(stage_dir / STATE / item.directory) is None)
    return next(intact, Position(0))


def _position(copy: Copy) -> Position | None:
    return position_of(copy.name) if copy.kind == "checkpoint" else None


Named = dict[str, int]
"""Hash -> bytes of the objects that a list names."""


class HeldByLists:
    """Objects that the lists of a project name in a place. A list that was read and has not changed is not read again.

    An object that several lists name is held once. What no list names any more is not counted, although it lies there
    until `charter artifacts checkpoints gc` removes it: nobody knows whose it was where projects share a place.
    """

    def __init__(self, copies: Copies) -> None:
        self._copies = copies
        self._known: dict[StoredObject, Named] = {}

    def bytes(self) -> int:
        """Of the lists, and of the objects that they name. One listing, and the lists that are new."""
        lists = self._copies.lists()
        self._known = {item: self._known.get(item) or self._named(item) for item in lists}
        objects = {sha256: size for named in self._known.values() for sha256, size in named.items()}
        return sum(item.bytes for item in lists) + sum(objects.values())

    def _named(self, item: StoredObject) -> Named:
        group, _, file = item.key.removeprefix(f"{COPIES}/").partition("/")[2].partition("/")
        if file == SUMMARY:
            return {}
        try:
            copy = self._copies.read(group, file.removesuffix(".json"))
        except PlaceError:
            raise
        except DataError:
            return {}  # `charter artifacts checkpoints scrub` tells of it
        return {} if copy is None else {fact.sha256: fact.bytes for fact in copy.files.values()}


def place_name(where: str, *, root: Path) -> str:
    """One name for a place, however it was written.

    >>> place_name("s3://bucket/path/", root=Path("/x"))
    's3://bucket/path'
    """
    return where.rstrip("/") if where.startswith(BUCKET) else str((root / Path(where).expanduser()).resolve())


def bytes_below(directory: Path, *, without: Path | None = None) -> int:
    """Bytes of all files below a directory but those below `without`; a file with several names counts once.

    What comes and goes meanwhile may be missed, or count with the size of one moment.
    """
    inodes: set[tuple[int, int]] = set()
    total, directories = 0, [str(directory)]
    while directories:
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(directories.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    if without is None or Path(entry.path) != without:
                        directories.append(entry.path)
                    continue
                with suppress(FileNotFoundError):
                    facts = entry.stat(follow_symlinks=False)
                    is_new = facts.st_nlink == 1 or (facts.st_dev, facts.st_ino) not in inodes
                    total += facts.st_size if is_new else 0
                    inodes.add((facts.st_dev, facts.st_ino))
    return total


RUN_GROUP = "run"
RUN_FILES = ("accepted.json", "plan.json", "events.jsonl")
RUN_DATABASE, STAGE_DATABASE = "ledger.sqlite", "calls.sqlite"
SIDECARS_NAME = "sidecars-"
SIDECARS_KEPT = 2
"""Copies of a database that are kept: the newest, and the one before it in case that one is damaged."""
BATCHES_AT_ONCE = 64
"""New batches that are worth a list of their own while a stage runs."""


class Replicator:
    """The stages of one run, and what of them the place has."""

    def __init__(self, copies: Copies, *, run_dir: Path, stages: Mapping[Path, str], every: int = 1) -> None:
        self._copies = copies
        self._held = HeldByLists(copies)
        self.meter: Callable[[int, int], None] | None = None
        """Hears what the place holds and what was sent to it, before the ledger is copied: so that its copy has it."""
        self.meters_every_flush = False
        """Also where nothing was new."""
        self._run_dir = run_dir
        self._stages = stages
        self._every = every
        self._known: dict[str, dict[str, Copy]] = {}
        self._passed: dict[Path, list[Position]] = {}

    def copy_new(self, *, flush: bool = False, all_checkpoints: bool = False) -> Iterator[str]:
        """Copy what is due, and name each list when it is there.

        `flush` copies also what is not worth it while a stage runs: the newest checkpoint whatever its turn, single
        batches, the databases.
        """
        has_copied = False
        for stage_dir, fingerprint in self._stages.items():
            for source in self._due(stage_dir, fingerprint, flush=flush, all_checkpoints=all_checkpoints):
                try:
                    self._publish(stage_dir.name, source)
                except FileNotFoundError:
                    if source.copy.kind != "checkpoint":
                        raise
                    continue  # retention removed it meanwhile; a newer one is there
                has_copied = True
                yield f"{stage_dir.name}/{source.copy.name}"
            if flush:
                yield from self._copy_databases(stage_dir.name, stage_dir, (STAGE_DATABASE,), (), fingerprint)
        self._meter_place(is_due=has_copied or (flush and self.meters_every_flush))
        if flush:
            yield from self._copy_databases(RUN_GROUP, self._run_dir, (RUN_DATABASE,), RUN_FILES, "")

    def _meter_place(self, *, is_due: bool) -> None:
        if self.meter is not None and is_due:
            self.meter(self._held.bytes(), self._copies.objects.sent_bytes)

    def _due(self, stage_dir: Path, fingerprint: str, *, flush: bool, all_checkpoints: bool) -> Iterator[Source]:
        there = positions_in(stage_dir / STATE)
        for position in there if all_checkpoints else self._due_checkpoints(stage_dir, there, flush=flush):
            if position.directory in self._names(stage_dir.name):
                continue
            try:
                yield checkpoint_source(stage_dir, position, fingerprint)
            except FileNotFoundError:
                continue
        yield from self._due_batches(stage_dir, fingerprint, flush=flush)
        if (stage_dir / RECORD_FILE).exists() and OUTPUTS not in self._names(stage_dir.name):
            outputs = outputs_source(stage_dir)
            if outputs is not None:
                yield outputs

    def _due_checkpoints(self, stage_dir: Path, there: list[Position], *, flush: bool) -> list[Position]:
        """The newest one when so many have been seen since the last that was copied.

        They are counted as they are seen, since retention removes them.
        """
        passed = self._passed.setdefault(stage_dir, [])
        names = self._names(stage_dir.name)
        copied = max((item for item in there if item.directory in names), default=None)
        passed.extend(item for item in there if item not in passed and (copied is None or item > copied))
        if not there or not passed or (len(passed) < self._every and not flush):
            return []
        return there[-1:]

    def _due_batches(self, stage_dir: Path, fingerprint: str, *, flush: bool) -> Iterator[Source]:
        while True:
            lists = self._group(stage_dir.name).values()
            copied = {name for item in lists if item.kind == "batches" for name in item.files}
            source = batches_source(stage_dir, fingerprint, copied=copied)
            done = flush or (stage_dir / RECORD_FILE).exists()
            if source is None or (len(source.copy.files) - len(source.contents) < BATCHES_AT_ONCE and not done):
                return
            yield source

    def _copy_databases(
        self, group: str, directory: Path, databases: tuple[str, ...], files: tuple[str, ...], fingerprint: str
    ) -> Iterator[str]:
        there = [name for name in databases if (directory / name).is_file()]
        plain = [name for name in files if (directory / name).is_file()]
        if not there and not plain:
            return
        with tempfile.TemporaryDirectory(prefix=durable.TEMPORARY, dir=directory) as temporary:
            for name in there:
                copy_database(directory / name, Path(temporary) / name)
            for name in plain:
                (Path(temporary) / name).write_bytes((directory / name).read_bytes())
            old = self._numbered(group)
            number = max(old, default=0) + 1
            source = file_source(Path(temporary), [*there, *plain], f"{SIDECARS_NAME}{number:08d}", fingerprint)
            if old and self._group(group)[old[max(old)]].files == source.copy.files:
                return
            self._publish(group, source)
        outdated = [old[item] for item in sorted(old)[: len(old) + 1 - SIDECARS_KEPT]]
        self._copies.forget(group, outdated)
        for name in outdated:
            del self._known[group][name]
        yield f"{group}/{source.copy.name}"

    def _numbered(self, group: str) -> dict[int, str]:
        return {
            int(name.removeprefix(SIDECARS_NAME)): name
            for name, item in self._group(group).items()
            if item.kind == "sidecars"
        }

    def _publish(self, group: str, source: Source) -> None:
        self._copies.publish(group, source.copy, source.base, contents=source.contents)
        self._group(group)[source.copy.name] = source.copy
        if source.copy.kind == "checkpoint":
            self._passed.pop(source.base, None)

    def _names(self, group: str) -> set[str]:
        return set(self._group(group))

    def _group(self, group: str) -> dict[str, Copy]:
        if group not in self._known:
            intact, _ = self._copies.of(group)
            self._known[group] = {item.name: item for item in intact}
            self._copies.mend(group, self._known[group])
        return self._known[group]
