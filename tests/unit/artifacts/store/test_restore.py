import shutil
import sqlite3

import pytest

from charter.artifacts.batch_files import BatchFiles, batch_paths, damage
from charter.artifacts.record import OUTPUTS, RECORD_FILE, damaged_output, read_record
from charter.artifacts.stage_dir import StageDir
from charter.artifacts.store.maintenance import Restorer
from charter.artifacts.store.place import PlaceError
from charter.errors import DataError


@pytest.fixture
def restore(copies):
    said = []

    def back(stage_dir):
        return Restorer(copies, said.append).restore_stage(stage_dir.name, stage_dir, "a" * 64)

    back.said = said
    return back


def content(stage_dir):
    return {p.relative_to(stage_dir).as_posix(): p.read_bytes() for p in stage_dir.rglob("[!h]*") if p.is_file()}


def test_a_lost_stage_comes_back_with_its_newest_checkpoint(make_stage, save, replicator, restore):
    stage_dir = make_stage()
    for step in (2, 4):
        save(stage_dir, step)
        assert list(replicator(stage_dir).copy_new()) == [f"{stage_dir.name}/step-0000000{step}"]
    before = content(stage_dir)
    shutil.rmtree(stage_dir)
    assert restore(stage_dir) == ["checkpoint 4"]
    assert content(stage_dir) == {name: data for name, data in before.items() if "00000002" not in name}
    assert StageDir(stage_dir).latest_checkpoint().step == 4
    assert restore(stage_dir) == []


def test_finished_outputs_come_back_as_they_were(make_stage, save, finish, replicator, restore):
    stage_dir = make_stage()
    save(stage_dir, 2)
    finish(stage_dir)
    record = read_record(stage_dir)
    assert len(list(replicator(stage_dir).copy_new())) == 2
    shutil.rmtree(stage_dir)
    assert restore(stage_dir) == ["outputs (3 files)"]
    assert read_record(stage_dir) == record
    assert damaged_output(stage_dir, record, thorough=True) is None
    (stage_dir / OUTPUTS / "model" / "w.bin").write_bytes(b"x")
    assert restore(stage_dir) == ["outputs (3 files)"]
    assert damaged_output(stage_dir, read_record(stage_dir), thorough=True) is None
    assert (stage_dir / f"{RECORD_FILE}.damaged-1").exists()


def test_a_damaged_copy_is_said_and_the_one_before_is_taken(make_stage, save, replicator, restore, place, copies):
    stage_dir = make_stage()
    for step in (2, 4):
        save(stage_dir, step)
        list(replicator(stage_dir).copy_new())
    fact = copies.read(stage_dir.name, "step-00000004").files["state/step-00000004/w.bin"]
    place.put(f"objects/{fact.sha256[:2]}/{fact.sha256}", b"x" * fact.bytes)
    shutil.rmtree(stage_dir)
    assert restore(stage_dir) == ["checkpoint 2"]
    assert fact.sha256[:12] in restore.said[0]
    assert not [path for path in stage_dir.rglob("*") if "tmp" in path.name]


def test_a_damaged_list_is_said_and_a_lost_summary_costs_nothing(make_stage, save, replicator, restore, place):
    stage_dir = make_stage()
    for step in (2, 4):
        save(stage_dir, step)
        list(replicator(stage_dir).copy_new())
    key = f"copies/test/{stage_dir.name}/step-00000004.json"
    place.put(key, place.get(key).replace(b'"bytes": 40', b'"bytes": 41'))
    place.remove(f"copies/test/{stage_dir.name}/summary.json")
    shutil.rmtree(stage_dir)
    assert restore(stage_dir) == ["checkpoint 2"]
    assert "does not have its recorded sha256" in restore.said[0]


@pytest.mark.parametrize(("group", "name"), [("other-stage", "step-00000002"), (None, "step-00000004")])
def test_a_list_under_the_place_of_another_one_is_refused(make_stage, save, replicator, copies, place, group, name):
    stage_dir = make_stage()
    save(stage_dir, 2)
    list(replicator(stage_dir).copy_new())
    group = group or stage_dir.name
    place.put(f"copies/test/{group}/{name}.json", place.get(f"copies/test/{stage_dir.name}/step-00000002.json"))
    with pytest.raises(DataError, match=f"is the list step-00000002 of {stage_dir.name}"):
        copies.read(group, name)
    found, (wrong,) = copies.of(group)
    assert name not in [item.name for item in found]
    assert f"{group}/{name}" in wrong


def test_damage_is_never_copied(make_stage, save, replicator, place):
    stage_dir = make_stage()
    save(stage_dir, 2)
    (stage_dir / "state" / "step-00000002" / "w.bin").write_bytes(b"y" * 40)
    with pytest.raises(DataError, match="are recorded"):
        list(replicator(stage_dir).copy_new())
    assert not [item for item in place.listed("copies/") if "step-" in item.key]


def test_batches_are_copied_in_groups_and_come_back(make_stage, replicator, restore):
    stage_dir = make_stage()
    files = BatchFiles(stage_dir)
    for number in range(1, 71):
        files.write(number, "k", records=[{"id": number}], set_aside=[], totals={}, tokens=1)
        if number == 63:
            assert list(replicator(stage_dir).copy_new()) == []
    one = replicator(stage_dir)
    assert len(list(one.copy_new())) == 1
    files.write(71, "k", records=[{"id": 71}], set_aside=[], totals={}, tokens=1)
    assert list(one.copy_new()) == []
    assert len(list(one.copy_new(flush=True))) == 1
    before = content(stage_dir)
    shutil.rmtree(stage_dir)
    assert restore(stage_dir) == ["71 batches"]
    assert content(stage_dir) == before
    assert [damage(path) for path in batch_paths(stage_dir)] == [None] * 71


def test_every_third_checkpoint_is_copied_while_two_are_retained(make_stage, save, replicator, copies):
    stage_dir = make_stage()
    one = replicator(stage_dir, every=3)
    for step in range(1, 9):
        save(stage_dir, step)
        list(one.copy_new())
    assert [item.name for item in copies.of(stage_dir.name)[0]] == ["step-00000003", "step-00000006"]
    list(one.copy_new(flush=True))
    assert copies.read(stage_dir.name, "step-00000008") is not None


def test_databases_are_copied_consistently_while_they_are_written(make_stage, replicator, restore, copies):
    stage_dir = make_stage()
    live = sqlite3.connect(stage_dir / "calls.sqlite")
    live.execute("PRAGMA journal_mode=WAL")
    live.execute("CREATE TABLE t (n INTEGER)")
    one = replicator(stage_dir)
    for number in range(4):
        live.execute("INSERT INTO t VALUES (?)", (number,))
        live.commit()
        assert list(one.copy_new(flush=True)) == [f"{stage_dir.name}/sidecars-0000000{number + 1}"]
        assert list(one.copy_new(flush=True)) == []
    assert [item.name for item in copies.of(stage_dir.name)[0]] == ["sidecars-00000003", "sidecars-00000004"]
    live.close()
    shutil.rmtree(stage_dir)
    assert restore(stage_dir) == ["calls.sqlite"]
    back = sqlite3.connect(stage_dir / "calls.sqlite")
    assert back.execute("SELECT max(n) FROM t").fetchone() == (3,)
    back.close()


def test_what_is_newer_here_is_not_overwritten(make_stage, save, replicator, restore):
    stage_dir = make_stage()
    save(stage_dir, 2)
    list(replicator(stage_dir).copy_new())
    save(stage_dir, 4)
    assert restore(stage_dir) == []
    assert StageDir(stage_dir).latest_checkpoint().step == 4


def test_copies_with_another_fingerprint_are_not_restored(make_stage, save, replicator, copies):
    stage_dir = make_stage()
    save(stage_dir, 2)
    list(replicator(stage_dir).copy_new())
    shutil.rmtree(stage_dir)
    assert Restorer(copies, print).restore_stage(stage_dir.name, stage_dir, "b" * 64) == []
    assert not stage_dir.exists()


def test_damaged_checkpoint_is_set_aside_and_restored_from_copy(make_stage, save, replicator, restore):
    stage_dir = make_stage()
    (stage_dir / "metrics.jsonl").write_text('{"step": 2}\n')
    save(stage_dir, 2)
    list(replicator(stage_dir).copy_new())
    (stage_dir / "metrics.jsonl").write_text('{"step": 1}\n')
    (stage_dir / "state" / "step-00000002" / "w.bin").write_bytes(b"bad")
    for left in (stage_dir / ".tmp-x", stage_dir / "state" / ".tmp-y"):
        left.mkdir()
    assert restore(stage_dir) == ["checkpoint 2"]
    assert StageDir(stage_dir).checkpoints.newest().step == 2
    assert (stage_dir / "metrics.jsonl").read_text() == '{"step": 2}\n'
    assert {path.name for path in (stage_dir / "state").iterdir()} == {"step-00000002", "step-00000002.damaged-1"}
    assert not (stage_dir / ".tmp-x").exists()


def test_whole_outputs_without_their_record_stay_and_get_it(make_stage, finish, replicator, restore):
    stage_dir = make_stage()
    finish(stage_dir)
    list(replicator(stage_dir).copy_new())
    record = read_record(stage_dir)
    (stage_dir / RECORD_FILE).unlink()
    assert restore(stage_dir) == ["outputs (3 files)"]
    assert read_record(stage_dir) == record
    assert not (stage_dir / f"{OUTPUTS}.damaged-1").exists()


def test_a_place_that_does_not_answer_ends_the_restore(make_stage, save, replicator, restore, place, monkeypatch):
    chunks = type(place).chunks

    def down(self, key):
        if key.startswith("objects/"):
            raise PlaceError("down")
        return chunks(self, key)

    stage_dir = make_stage()
    save(stage_dir, 2)
    list(replicator(stage_dir).copy_new())
    shutil.rmtree(stage_dir)
    monkeypatch.setattr(type(place), "chunks", down)
    with pytest.raises(PlaceError, match="down"):
        restore(stage_dir)
    assert restore.said == []
