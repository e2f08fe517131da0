"""Power cuts: at every flush, rename and removal, every state of the disk that POSIX allows can be recovered from."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from crashing_disk import CrashingDisk, Tree, watched, write_tree

from charter.artifacts import durable
from charter.artifacts.record import damaged_output, read_record
from charter.artifacts.stage_dir import StageDir
from charter.errors import DataError


@pytest.fixture
def crash(tmp_path, monkeypatch):
    """All distinct states that power cuts during some work could leave, each with what was promised before it."""

    def states(root: Path, work: Callable[[Callable[[int], None]], None]) -> list[tuple[Tree, int]]:
        disk, promised, found = CrashingDisk(root), [0], {}
        disk.flush_all()

        def look() -> None:
            for tree in disk.states():
                key = (tuple(tree.items()), promised[0])
                found.setdefault(key, (tree, promised[0]))

        with monkeypatch.context() as patch:
            watched(disk, patch, look)
            work(lambda step: promised.__setitem__(0, step))
            look()
        disk.close()
        return list(found.values())

    return states


def write(step: int) -> Callable[[Path], None]:
    def fill(out: Path) -> None:
        (out / "sub").mkdir()
        (out / "sub" / "weights.bin").write_bytes(bytes([step]) * 40)

    return fill


def test_checkpoints_outputs_and_record_survive_every_power_cut(make_stage, tmp_path, crash, monkeypatch):
    root = make_stage(keep_last=1)

    def work(promise: Callable[[int], None]) -> None:
        stage = StageDir(root)
        for step in (1, 2):
            stage.save_checkpoint(step, write(step))
            promise(step)
            stage.report(step, 2, "steps", {"loss": 1.0})
        stage.publish_outputs(write(9), step=2, target_step=2)
        promise(3)

    states = crash(root, work)
    assert len(states) > 150
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    finished = 0
    for number, (tree, promised) in enumerate(states):
        place = tmp_path / f"state-{number}"
        write_tree(place, tree)
        stage = StageDir(place)
        if (record := read_record(place)) is not None:
            assert damaged_output(place, record, thorough=True) is None
            finished += 1
        assert promised < 3 or record is not None
        found = stage.latest_checkpoint()
        step = found.step if found else 0
        assert step >= min(promised, 2), (promised, tree)
        if found is not None:
            assert (found.path / "sub" / "weights.bin").read_bytes() == bytes([step]) * 40
        assert not [path for path in place.rglob(".*") if path.name.startswith((".tmp", ".gc"))]
        stage.save_checkpoint(step + 1, write(step + 1))
        assert StageDir(place).latest_checkpoint().step == step + 1
        stage.publish_outputs(write(9), step=2, target_step=2)
        assert damaged_output(place, read_record(place), thorough=True) is None
        shutil.rmtree(place)
    assert 0 < finished < len(states)


def test_a_replaced_file_is_the_old_one_or_the_new_one(tmp_path, crash):
    root = tmp_path / "root"
    root.mkdir()
    durable.write_file(root / "job.json", "old")

    def work(promise: Callable[[int], None]) -> None:
        durable.write_file(root / "job.json", "newer")
        promise(1)

    seen = {(tree["job.json"], promised) for tree, promised in crash(root, work)}
    assert seen == {(b"old", 0), (b"newer", 0), (b"newer", 1)}


def test_a_directory_moved_aside_is_under_one_of_its_names(tmp_path, crash):
    root = tmp_path / "root"
    (root / "step-1").mkdir(parents=True)
    durable.write_file(root / "step-1" / "w", "x")

    def work(promise: Callable[[int], None]) -> None:
        durable.move_aside(root / "step-1", "damaged")
        promise(1)

    for tree, promised in crash(root, work):
        there = [name for name in ("step-1", "step-1.damaged-1") if name in tree]
        assert len(there) == 1
        assert tree[f"{there[0]}/w"] == b"x"
        assert not promised or there == ["step-1.damaged-1"]


def test_the_watched_disk_would_show_a_forgotten_flush(make_stage, tmp_path, crash, monkeypatch):
    """The check itself: without flushes of files, a published checkpoint can be empty."""
    from charter.artifacts import whole_dir

    root = make_stage(keep_last=1)
    monkeypatch.setattr(whole_dir, "_flush", lambda path: None)
    states = crash(root, lambda promise: (StageDir(root).save_checkpoint(1, write(1)), promise(1)))
    lost = 0
    for number, (tree, promised) in enumerate(states):
        write_tree(tmp_path / f"state-{number}", tree)
        try:
            lost += promised == 1 and StageDir(tmp_path / f"state-{number}").latest_checkpoint() is None
        except DataError:
            lost += 1
    assert lost
