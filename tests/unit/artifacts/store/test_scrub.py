import contextlib
import shutil
import sqlite3

import pytest

from charter.artifacts.checkpoints import damage
from charter.artifacts.record import damaged_output, read_record
from charter.artifacts.stage_dir import StageDir
from charter.artifacts.store.maintenance import scrub_group


@pytest.fixture
def kept(make_stage, save, finish, replicator):
    stage_dir = make_stage()
    save(stage_dir, 2)
    finish(stage_dir)
    list(replicator(stage_dir).copy_new())
    return stage_dir


def outcomes(copies, stage_dir, **options):
    found = list(scrub_group(copies, stage_dir.name, stage_dir, **options))
    assert all(str(item).startswith(item.outcome) for item in found)
    return [(item.path.relative_to(stage_dir).as_posix(), item.outcome) for item in found]


CHECKPOINT_FILE, OUTPUT_FILE = "state/step-00000002/w.bin", "outputs/model/w.bin"


def spoil_there(copies, place, stage_dir, name, relative):
    fact = copies.read(stage_dir.name, name).files[relative]
    place.put(f"objects/{fact.sha256[:2]}/{fact.sha256}", b"?" * fact.bytes)


@pytest.mark.parametrize("relative", [CHECKPOINT_FILE, OUTPUT_FILE, "state/step-00000002/manifest.json", "record.json"])
@pytest.mark.parametrize("how", ["flipped", "removed"])
def test_a_damaged_file_here_is_repaired_from_there(kept, copies, relative, how):
    path = kept / relative
    good = path.read_bytes()
    path.write_bytes(b"!" + good[1:]) if how == "flipped" else path.unlink()
    assert outcomes(copies, kept, repair=False) == [(relative, "repaired here")]
    assert not path.exists() or path.read_bytes() != good
    assert outcomes(copies, kept) == [(relative, "repaired here")]
    assert path.read_bytes() == good
    assert outcomes(copies, kept) == []
    assert damage(kept / "state" / "step-00000002") is None
    assert damaged_output(kept, read_record(kept), thorough=True) is None


@pytest.mark.parametrize(("name", "relative"), [("step-00000002", CHECKPOINT_FILE), ("outputs", OUTPUT_FILE)])
def test_a_damaged_copy_is_repaired_from_here(kept, copies, place, name, relative):
    spoil_there(copies, place, kept, name, relative)
    assert outcomes(copies, kept) == [(relative, "repaired there")]
    assert outcomes(copies, kept) == []
    assert copies.damage(copies.read(kept.name, name)) == []


def test_what_is_damaged_here_and_there_is_told_and_left(kept, copies, place):
    spoil_there(copies, place, kept, "outputs", OUTPUT_FILE)
    (kept / OUTPUT_FILE).write_bytes(b"bad")
    assert outcomes(copies, kept) == [(OUTPUT_FILE, "lost")]
    assert (kept / OUTPUT_FILE).read_bytes() == b"bad"


def test_a_list_that_is_damaged_is_told(kept, copies, place):
    place.put(f"copies/test/{kept.name}/outputs.json", b"{}")
    assert outcomes(copies, kept) == [(".", "lost")]


def test_checkpoint_removed_by_retention_is_checked_there_only(kept, copies, place):
    shutil.rmtree(kept / "state" / "step-00000002")
    assert outcomes(copies, kept) == []
    spoil_there(copies, place, kept, "step-00000002", CHECKPOINT_FILE)
    assert outcomes(copies, kept) == [(CHECKPOINT_FILE, "lost")]
    assert not (kept / CHECKPOINT_FILE).exists()


def test_what_goes_on_being_written_is_not_taken_for_damage(kept, copies, replicator):
    database = kept / "calls.sqlite"
    with contextlib.closing(sqlite3.connect(database)) as live:
        live.execute("CREATE TABLE t (n INTEGER)")
        (kept / "metrics.jsonl").write_text("{}\n")
        StageDir(kept).save_checkpoint(4, lambda out: (out / "w.bin").write_bytes(b"4") and None)
        list(replicator(kept).copy_new(flush=True))
        live.execute("CREATE TABLE u (n INTEGER)")
    (kept / "metrics.jsonl").write_text("{}\n{}\n")
    before = database.read_bytes()
    assert outcomes(copies, kept) == []
    assert database.read_bytes() == before
