"""No sequence of saves, copies, kills, damage and removals removes the newest checkpoint that is whole in a place."""

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sft_job import write_sft_job

from charter.artifacts import faults
from charter.artifacts.checkpoints import STATE, Held, damage, listed, position_of, positions_in, retention_of
from charter.artifacts.durable import discard_dir
from charter.artifacts.stage_dir import StageDir
from charter.artifacts.store.copy import Copies, Objects
from charter.artifacts.store.maintenance import Replicator, Restorer, collect, prunable
from charter.artifacts.store.place import LocalPlace
from charter.errors import CharterError
from charter.run.copies import find_garbage, remove_garbage


class Killed(BaseException):
    """The process ends here, whatever it was doing."""


class Machine:
    """A stage directory, a second place, and everything that may happen to them."""

    def __init__(self, stage_dir: Path, second: Path) -> None:
        self.stage_dir, self.second, self.step, self.days = stage_dir, second, 0, 0.0
        self.place = LocalPlace(second)
        self.place.now = lambda: 1e10 + self.days * 86400.0  # type: ignore[method-assign]
        self.copies = Copies(Objects(self.place), "test")
        self.retention = retention_of(StageDir(stage_dir).job)

    def whole(self) -> tuple[set, set]:
        """The positions of the checkpoints that are whole here, and there."""
        here = {p for p in positions_in(self.stage_dir / STATE) if damage(self.stage_dir / STATE / p.directory) is None}
        lists = self.copies.of(self.stage_dir.name)[0]
        there = {position_of(item.name) for item in lists if item.kind == "checkpoint" and not self.copies.damage(item)}
        return here, there

    def save(self, _: int) -> None:
        stage = StageDir(self.stage_dir)
        newest = stage.latest_checkpoint()
        self.step = max(self.step, newest.step if newest else 0) + 1
        stage.save_checkpoint(self.step, lambda out: (out / "w").write_text(str(self.step)) and None)

    def copy(self, _: int) -> None:
        run = self.stage_dir.parent / "run"
        run.mkdir(exist_ok=True)
        list(Replicator(self.copies, run_dir=run, stages={self.stage_dir: "a" * 64}).copy_new())

    def spoil_here(self, which: int) -> None:
        self._spoil(sorted(self.stage_dir.glob("state/step-*/w")), which)

    def spoil_there(self, which: int) -> None:
        self._spoil(sorted(self.second.glob("objects/*/*")), which)

    def prune_here(self, _: int) -> None:
        found = listed(self.stage_dir, verify=True)
        held = [Held(position=i.position, verified=i.verified, pinned=i.pinned) for i in found]
        for position in self.retention.removable(held):
            discard_dir(self.stage_dir / STATE / position.directory)

    def prune_there(self, _: int) -> None:
        self.copies.forget(
            self.stage_dir.name, [item.name for item in prunable(self.copies, self.stage_dir.name, self.retention)]
        )

    def collect(self, days: int) -> None:
        self.days += days
        collect(self.place)

    def sweep(self, _: int) -> None:
        for item in find_garbage(self.stage_dir, stages=[]):
            remove_garbage(item)

    def restore(self, _: int) -> None:
        Restorer(self.copies, lambda text: None).restore_stage(self.stage_dir.name, self.stage_dir, "a" * 64)

    @staticmethod
    def _spoil(files: list[Path], which: int) -> None:
        if files:
            path = files[which % len(files)]
            path.write_bytes(b"?" + path.read_bytes()[1:])


SPOILS = ("spoil_here", "spoil_there")
OFTEN = ("save", "copy", "collect", "spoil_here")
ACTS = (*OFTEN, *OFTEN, "prune_here", "prune_there", "sweep", "restore", "spoil_there")
event = st.tuples(st.sampled_from(ACTS), st.integers(0, 3), st.sampled_from([None, None, None, *range(1, 10)]))
START = [(act, 0, None) for act in ("save", "copy", "save", "copy")]


@pytest.mark.thorough
@given(st.lists(event, min_size=6, max_size=20))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_newest_whole_checkpoint_of_each_place_stays(tmp_path, events):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        top = Path(tempfile.mkdtemp(dir=tmp_path))
        stage_dir = write_sft_job(top / "sft-aaaaaaaa")
        machine = Machine(stage_dir, top / "second")
        for act, number, kill_at in [*START, *events]:
            before = machine.whole()
            with patch.context() as inner:
                _kill_at(inner, None if act in SPOILS else kill_at)
                with contextlib.suppress(Killed, CharterError):
                    getattr(machine, act)(number)
            after = machine.whole()
            for was, now in zip(before, after, strict=True):
                assert act in SPOILS or not was or max(was) in now, (act, was, now)
        shutil.rmtree(top)


def _kill_at(patch: pytest.MonkeyPatch, number: int | None) -> None:
    seen = [0]

    def crash(_: int, when: str) -> None:
        seen[0] += when == "before"
        if number is not None and seen[0] >= number:
            raise Killed

    patch.setattr(faults, "_crash_at", crash)
