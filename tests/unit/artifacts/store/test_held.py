"""How many bytes a project holds in a place and in a directory, and how many it has sent."""

import os

from charter.artifacts.store.copy import Copies, Objects
from charter.artifacts.store.maintenance import HeldByLists, bytes_below, place_name


def lying_there(place, prefix):
    return sum(item.bytes for item in place.listed(prefix))


def test_an_object_that_two_checkpoints_name_is_held_and_sent_once(make_stage, save, replicator, copies, place):
    stage_dir, held = make_stage(), HeldByLists(copies)
    for step in (2, 4):
        save(stage_dir, step, content=b"the same weights" * 1000)
    list(replicator(stage_dir).copy_new(all_checkpoints=True))
    assert held.bytes() == lying_there(place, "")
    weights = [item for item in place.listed("objects/") if item.bytes == 16_000]
    assert len(weights) == 1
    assert lying_there(place, "") <= copies.objects.sent_bytes < lying_there(place, "") + 16_000
    sent = copies.objects.sent_bytes
    assert list(replicator(stage_dir).copy_new(all_checkpoints=True)) == []
    assert copies.objects.sent_bytes == sent, "what is there is not sent again"


def test_forgotten_copies_do_not_count_and_foreign_copies_do(make_stage, save, replicator, copies):
    stage_dir, held = make_stage(), HeldByLists(copies)
    save(stage_dir, 2)
    list(replicator(stage_dir).copy_new(all_checkpoints=True))
    one = held.bytes()
    save(stage_dir, 4, content=b"x" * 5000)
    list(replicator(stage_dir).copy_new(all_checkpoints=True))
    assert held.bytes() > one + 5000
    copies.forget(stage_dir.name, ["step-00000004"])
    assert abs(held.bytes() - one) < 100, "but for the summary, which was written again"


def test_another_projects_copies_are_not_ours(make_stage, save, replicator, place):
    stage_dir = make_stage()
    save(stage_dir, 2)
    list(replicator(stage_dir).copy_new(all_checkpoints=True))
    assert HeldByLists(Copies(Objects(place), "another")).bytes() == 0


def test_a_list_that_has_not_changed_is_read_once(make_stage, save, replicator, copies, monkeypatch):
    stage_dir, held, read = make_stage(), HeldByLists(copies), []
    save(stage_dir, 2)
    list(replicator(stage_dir).copy_new(all_checkpoints=True))
    before = copies.read
    monkeypatch.setattr(copies, "read", lambda group, name: read.append(name) or before(group, name))
    assert held.bytes() == held.bytes()
    assert read == ["step-00000002"]


def test_a_damaged_list_names_nothing_that_could_be_counted(make_stage, save, replicator, copies, place):
    stage_dir = make_stage()
    save(stage_dir, 2)
    list(replicator(stage_dir).copy_new(all_checkpoints=True))
    place.put(f"copies/test/{stage_dir.name}/step-00000002.json", b"{}")
    assert HeldByLists(copies).bytes() == lying_there(place, "copies/")


def test_directory_counts_files_once_and_nothing_from_elsewhere(tmp_path):
    run, beside = tmp_path / "run", tmp_path / "beside"
    (run / "stages" / "a").mkdir(parents=True)
    (run / "copies").mkdir()
    beside.mkdir()
    (run / "stages" / "a" / "w.bin").write_bytes(b"x" * 100)
    os.link(run / "stages" / "a" / "w.bin", run / "again.bin")
    (run / "copies" / "object").write_bytes(b"x" * 1000)
    (beside / "data").write_bytes(b"x" * 10_000)
    (run / "data").symlink_to(beside)
    link_bytes = (run / "data").lstat().st_size
    assert bytes_below(run) == 1100 + link_bytes
    assert bytes_below(run, without=run / "copies") == 100 + link_bytes
    assert bytes_below(tmp_path / "nothing") == 0


def test_a_place_has_one_name_however_it_is_written(tmp_path):
    assert place_name("second", root=tmp_path) == place_name(f"{tmp_path}/x/../second/", root=tmp_path / "y")
    assert place_name("s3://bucket/path/", root=tmp_path) == "s3://bucket/path"
