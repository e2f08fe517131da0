"""Brings back what a second place has of a stage: finished outputs, else the newest whole checkpoint and all batches.

Every file is verified while it is written, and nothing here is overwritten by something older. What cannot be brought
back is said, and the next best is taken.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from charter.artifacts import durable
from charter.artifacts.checkpoints import STATE, damage, positions_in
from charter.artifacts.file_facts import facts_of, files_under
from charter.artifacts.position import Position, position_of
from charter.artifacts.record import OUTPUTS, RECORD_FILE, damaged_output, read_record
from charter.artifacts.safe_path import below
from charter.artifacts.store.copy import Copies, Copy
from charter.artifacts.store.place import PlaceError
from charter.artifacts.store.sources import SIDECARS
from charter.artifacts.whole_dir import publish_dir
from charter.errors import DataError

Tell = Callable[[str], None]


class Restorer:
    """Brings groups of copies into directories of this machine."""

    def __init__(self, copies: Copies, tell: Tell) -> None:
        self._copies = copies
        self._tell = tell

    def restore_stage(self, group: str, stage_dir: Path, fingerprint: str) -> list[str]:
        """What was brought back, in words; empty when the place has nothing that is not here."""
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
        found = [(position, item) for item in copies if (position := _position(item)) is not None]
        for position, copy in sorted(found, key=lambda pair: pair[0], reverse=True):
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
        """Whether it went well; what is damaged there is said, a place that does not answer ends the whole."""
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
    """Whether the outputs are those of the copy, say because a restore was killed before it brought the record."""
    wanted = {name: fact for name, fact in copy.files.items() if name.startswith(f"{OUTPUTS}/")}
    found = [f"{OUTPUTS}/{name}" for name in files_under(stage_dir / OUTPUTS)]
    return dict(zip(found, facts_of([stage_dir / name for name in found]), strict=True)) == wanted


def _newest_whole(stage_dir: Path) -> Position:
    there = positions_in(stage_dir / STATE)
    whole = (item for item in reversed(there) if damage(stage_dir / STATE / item.directory) is None)
    return next(whole, Position(0))


def _position(copy: Copy) -> Position | None:
    return position_of(copy.name) if copy.kind == "checkpoint" else None
