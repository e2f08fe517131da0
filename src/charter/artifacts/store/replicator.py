"""Copies what is new in the directories of a run to a second place, one pass at a time.

What is not copied yet is on the disk, so a place that is down for a while costs nothing but delay: the next pass copies
what is there then. Nothing is copied that does not have its recorded hash.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from charter.artifacts import durable
from charter.artifacts.checkpoints import STATE, Position, positions_in
from charter.artifacts.record import OUTPUTS, RECORD_FILE
from charter.artifacts.store.copy import (
    Copies,
    Copy,
    Source,
    batches_source,
    checkpoint_source,
    copy_database,
    file_source,
    outputs_source,
)
from charter.artifacts.store.maintenance import HeldByLists

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
