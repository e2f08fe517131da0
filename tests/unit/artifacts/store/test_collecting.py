import os

import pytest

from charter.artifacts.checkpoints import CheckpointRetention
from charter.artifacts.store import maintenance
from charter.artifacts.store.maintenance import collect, named_objects, prunable
from charter.errors import DataError

DAY = maintenance.GRACE_SECONDS


@pytest.fixture
def clock(place, monkeypatch):
    """The place's clock, moved on by the test."""
    ahead = [0.0]
    now = type(place).now
    monkeypatch.setattr(type(place), "now", lambda self: now(self) + ahead[0])
    return ahead


def objects(place):
    return {item.key for item in place.listed("objects/")}


def test_what_no_list_names_goes_in_two_steps_a_day_apart(make_stage, save, replicator, copies, place, clock):
    stage_dir = make_stage()
    for step in (2, 4):
        save(stage_dir, step)
        list(replicator(stage_dir).copy_new())
    only_old = objects(place) - {f"objects/{sha[:2]}/{sha}" for sha in files_of(copies, stage_dir, "step-00000004")}
    copies.forget(stage_dir.name, ["step-00000002"])
    assert collect(place).removed == collect(place).doomed == ()
    clock[0] += DAY + 1
    first = collect(place)
    assert (first.removed, {item.key for item in first.doomed}) == ((), only_old)
    assert collect(place).removed == ()
    clock[0] += DAY + 1
    assert {item.key for item in collect(place, act=False).removed} == only_old
    assert {item.key for item in collect(place).removed} == only_old
    assert not objects(place) & only_old
    assert copies.damage(copies.read(stage_dir.name, "step-00000004")) == []


def files_of(copies, stage_dir, name):
    return {fact.sha256 for fact in copies.read(stage_dir.name, name).files.values()}


def test_what_is_named_again_before_the_second_step_stays(make_stage, save, replicator, copies, place, clock):
    stage_dir = make_stage()
    save(stage_dir, 2)
    list(replicator(stage_dir).copy_new())
    copies.forget(stage_dir.name, ["step-00000002"])
    clock[0] += DAY + 1
    assert collect(place).doomed
    list(replicator(stage_dir).copy_new())
    clock[0] += DAY + 1
    assert collect(place).removed == ()
    assert copies.damage(copies.read(stage_dir.name, "step-00000002")) == []


def test_a_list_that_a_listing_does_not_show_still_protects(make_stage, save, replicator, copies, place, monkeypatch):
    stage_dir = make_stage()
    save(stage_dir, 2)
    list(replicator(stage_dir).copy_new())
    before = named_objects(place)
    listed = type(place).listed
    monkeypatch.setattr(
        type(place), "listed", lambda self, prefix: [i for i in listed(self, prefix) if "step-" not in i.key]
    )
    assert named_objects(place) == before


def test_nothing_is_removed_while_a_list_cannot_be_read(make_stage, save, replicator, place):
    stage_dir = make_stage()
    save(stage_dir, 2)
    list(replicator(stage_dir).copy_new())
    place.put(f"copies/test/{stage_dir.name}/step-00000002.json", b"{}")
    with pytest.raises(DataError, match="nothing is removed while"):
        collect(place)


def test_copies_are_pruned_only_behind_verified_ones(make_stage, save, replicator, copies, place):
    stage_dir = make_stage()
    for step in (1, 2, 3, 4):
        save(stage_dir, step)
        list(replicator(stage_dir).copy_new())
    keep_two = CheckpointRetention(keep_last=2)
    assert [item.name for item in prunable(copies, stage_dir.name, keep_two)] == ["step-00000001", "step-00000002"]
    fact = copies.read(stage_dir.name, "step-00000003").files["state/step-00000003/w.bin"]
    place.put(f"objects/{fact.sha256[:2]}/{fact.sha256}", b"x" * fact.bytes)
    assert [item.name for item in prunable(copies, stage_dir.name, keep_two)] == ["step-00000001"]
    newest = copies.read(stage_dir.name, "step-00000004").files["state/step-00000004/w.bin"]
    os.unlink(place.where + f"/objects/{newest.sha256[:2]}/{newest.sha256}")
    assert prunable(copies, stage_dir.name, keep_two) == [], "the newest is not whole"
