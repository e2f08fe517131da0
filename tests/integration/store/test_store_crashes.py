"""Every durable action of copying, restoring, collecting and scrubbing: killed before, after and in the middle of it.

Then the same call again, as the next process makes it: the end is that of an undisturbed one. And what power cuts may
leave of what was not flushed: nothing that was promised is lost, and nothing torn is taken for whole.
"""

import os
import shutil

import pytest
from crashing_disk import CrashingDisk, watched, write_tree
from sft_job import write_sft_job

from charter.artifacts import faults
from charter.artifacts.batch_files import BatchFiles, batch_paths
from charter.artifacts.batch_files import damage as batch_damage
from charter.artifacts.stage_dir import StageDir
from charter.artifacts.store.copy import Copies, Objects
from charter.artifacts.store.maintenance import GRACE_SECONDS, Replicator, Restorer, collect, scrub_group
from charter.artifacts.store.place import LocalPlace

STAGE = "sft-aaaaaaaa"


class Killed(BaseException):
    """Stands for SIGKILL: no handler of errors sees it."""


class Scene:
    """A stage directory and its second place below one root, so that both can be put back as they were."""

    def __init__(self, root):
        self.stage_dir, self.place = root / STAGE, LocalPlace(root / "second")
        self.copies = Copies(Objects(self.place), "test")
        self.root = root
        (root / "run").mkdir(parents=True, exist_ok=True)

    def make(self):
        stage = StageDir(write_sft_job(self.stage_dir))
        stage.save_checkpoint(2, lambda out: (out / "w").write_bytes(b"two") and None)
        BatchFiles(self.stage_dir).write(1, "k", records=[{"id": 1}], set_aside=[], totals={}, tokens=1)

    def replicate(self):
        list(Replicator(self.copies, run_dir=self.root / "run", stages={self.stage_dir: "a" * 64}).copy_new(flush=True))

    def finish(self):
        stage = StageDir(self.stage_dir)
        stage.publish_outputs(lambda out: (out / "w").write_bytes(b"out") and None, step=6, target_step=6)

    def restore(self):
        Restorer(self.copies, lambda text: None).restore_stage(STAGE, self.stage_dir, "a" * 64)

    def forget_and_collect(self):
        self.copies.forget(STAGE, ["step-00000002"])
        days = iter(range(1, 9))
        self.place.now = lambda: 1e10 + next(days) * (GRACE_SECONDS + 1)
        collect(self.place)
        collect(self.place)

    def scrub(self):
        list(scrub_group(self.copies, STAGE, self.stage_dir))

    def content(self):
        """What counts: every file but signs of life and what a crash left half-written."""
        files = (path for path in self.root.rglob("*") if path.is_file())
        named = {path.relative_to(self.root).as_posix(): path for path in files}
        left_out = ("heartbeat", ".tmp", "doomed", "lease", "seen")
        return {name: path.read_bytes() for name, path in named.items() if not any(w in name for w in left_out)}


def prepared_to_replicate(scene):
    scene.make()
    return scene.replicate


def prepared_to_replicate_outputs(scene):
    scene.make()
    scene.replicate()
    scene.finish()
    return scene.replicate


def prepared_to_restore(scene):
    scene.make()
    scene.replicate()
    shutil.rmtree(scene.stage_dir)
    return scene.restore


def prepared_to_restore_outputs(scene):
    prepared_to_replicate_outputs(scene)()
    shutil.rmtree(scene.stage_dir)
    return scene.restore


def prepared_to_collect(scene):
    scene.make()
    scene.replicate()
    return scene.forget_and_collect


def prepared_to_scrub(scene):
    scene.make()
    scene.replicate()
    (scene.stage_dir / "state" / "step-00000002" / "w").write_bytes(b"bad")
    return scene.scrub


PREPARED = {
    name.removeprefix("prepared_to_"): make for name, make in list(globals().items()) if name.startswith("prepared_to_")
}


@pytest.mark.parametrize("how", ["before", "after", "torn"])
@pytest.mark.parametrize("what", PREPARED)
def test_every_crash_is_recovered_by_the_same_call(tmp_path, monkeypatch, what, how):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)

    def killed():
        raise Killed

    monkeypatch.setattr(faults, "_kill_self", killed)
    scene = Scene(tmp_path / "scene")
    act = PREPARED[what](scene)
    shutil.copytree(scene.root, tmp_path / "start")
    faults.reset_count()
    act()
    actions, wanted = faults._count, scene.content()
    assert actions >= 2
    for number in range(1, actions + 1):
        shutil.rmtree(scene.root)
        shutil.copytree(tmp_path / "start", scene.root)
        faults.reset_count()
        with monkeypatch.context() as patch:
            patch.setenv("CHARTER_FAULT_AT", f"{number}:{how}")
            with pytest.raises(Killed):
                act()
        assert not [wrong for copy in scene.copies.of(STAGE)[0] for wrong in scene.copies.damage(copy)], number
        act()
        found = scene.content()
        assert {name for name in wanted if found.get(name) != wanted[name]} == set(), (what, how, number)
        assert not (set(found) - set(wanted)), (what, how, number)


@pytest.fixture
def power_cuts(tmp_path, monkeypatch):
    """All states that power cuts during some work could leave of a directory, with whether it was promised by then."""

    def states(root, work):
        disk, promised, found = CrashingDisk(root), [False], {}
        disk.flush_all()

        def look():
            for tree in disk.states():
                found.setdefault((tuple(tree.items()), promised[0]), (tree, promised[0]))

        with monkeypatch.context() as patch:
            watched(disk, patch, look)
            work()
            promised[0] = True
            look()
        disk.close()
        for number, (tree, is_promised) in enumerate(found.values()):
            write_tree(tmp_path / f"cut-{number}", tree)
            yield tmp_path / f"cut-{number}", is_promised

    return states


def test_a_batch_survives_every_power_cut_or_is_made_again(tmp_path, power_cuts):
    root = write_sft_job(tmp_path / STAGE)

    def work():
        BatchFiles(root).write(1, "k", records=[{"id": 1}], set_aside=[{"id": 2}], totals={}, tokens=1)

    seen = set()
    for place, promised in power_cuts(root, work):
        facts = BatchFiles(place).verified(1, "k")
        assert facts is not None or not promised
        assert [batch_damage(path) for path in batch_paths(place)] == [None] * (facts is not None)
        seen.add(facts is not None)
    assert seen == {True, False}


def test_copies_survive_every_power_cut_of_the_second_place(tmp_path, power_cuts):
    scene = Scene(tmp_path / "scene")
    scene.make()
    (tmp_path / "scene" / "second").mkdir()
    seen = set()
    for place, promised in power_cuts(tmp_path / "scene" / "second", scene.replicate):
        copies = Copies(Objects(LocalPlace(place)), "test")
        lists, _ = copies.of(STAGE)
        whole = {copy.kind for copy in lists if not copies.damage(copy)}
        assert whole == {copy.kind for copy in lists}, "a list is there only after its objects"
        assert not promised or whole == {"checkpoint", "batches"}
        seen.add(frozenset(whole))
    assert len(seen) >= 3
