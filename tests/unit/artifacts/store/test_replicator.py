"""What one pass of the replicator copies, and what it does about a file that is gone meanwhile."""

import pytest

from charter.artifacts.batch_files import BatchFiles
from charter.artifacts.store.maintenance import Restorer


def test_all_checkpoints_are_copied_when_that_is_asked(make_stage, save, replicator):
    stage_dir = make_stage()
    for step in (2, 4):
        save(stage_dir, step)
    names = [f"{stage_dir.name}/step-0000000{step}" for step in (2, 4)]
    assert list(replicator(stage_dir).copy_new(all_checkpoints=True)) == names


def test_few_batches_are_copied_once_their_stage_is_done(make_stage, finish, replicator, copies):
    stage_dir = make_stage()
    BatchFiles(stage_dir).write(1, "k", records=[{"id": 1}], set_aside=[], totals={}, tokens=1)
    one = replicator(stage_dir)
    assert list(one.copy_new()) == []
    finish(stage_dir)
    list(one.copy_new())
    assert [item.kind for item in copies.of(stage_dir.name)[0]] == ["batches", "outputs"]


def test_a_lost_summary_is_written_again(make_stage, save, replicator, place):
    stage_dir = make_stage()
    save(stage_dir, 2)
    list(replicator(stage_dir).copy_new())
    summary = f"copies/test/{stage_dir.name}/summary.json"
    before = place.get(summary)
    place.remove(summary)
    assert list(replicator(stage_dir).copy_new()) == []
    assert place.get(summary) == before


def test_the_files_of_the_run_come_back(make_stage, replicator, copies, tmp_path):
    one = replicator(make_stage())
    (tmp_path / "run" / "accepted.json").write_text("{}")
    list(one.copy_new(flush=True))
    assert Restorer(copies, print).restore_run("run", tmp_path / "back") == ["accepted.json"]
    assert (tmp_path / "back" / "accepted.json").read_text() == "{}"


def test_only_a_checkpoint_may_be_gone_before_it_is_copied(make_stage, save, finish, replicator, copies, monkeypatch):
    def gone(*told, **more):
        raise FileNotFoundError

    monkeypatch.setattr(copies, "publish", gone)
    stage_dir = make_stage()
    save(stage_dir, 2)
    assert list(replicator(stage_dir).copy_new()) == []
    finish(stage_dir)
    with pytest.raises(FileNotFoundError):
        list(replicator(stage_dir).copy_new())
