"""The restore drill: a run is copied while it goes, its machine is lost, another one goes on to the same bits."""

import shutil

import pytest
from held_run import HeldRun


@pytest.fixture
def second(work, tmp_path):
    work.edit("name: count", f"name: count\nstorage: {{artifacts: {tmp_path / 'second'}}}")
    return tmp_path / "second"


def copied(events, what):
    return [event["name"] for event in events if event["event"] == "replica_copied" and what in event["name"]]


def test_a_finished_run_is_copied_and_comes_back_without_computing(work, undisturbed, second):
    done = work.run()
    assert done.code == 0, done.err
    assert len(copied(done.events, "outputs")) == 3
    shutil.rmtree(work.root / "run")
    back = work.charter("artifacts", "checkpoints", "restore")
    assert back.code == 0, back.err
    again = work.run()
    assert (again.code, again.names("stage_started")) == (0, [])
    assert work.outputs() == undisturbed
    assert work.charter("cost", "report").code == 0


@pytest.mark.thorough
def test_a_machine_lost_in_the_middle_costs_only_what_was_not_copied(work, undisturbed, second, tmp_path):
    held = HeldRun(work, tmp_path / "gates")
    held.start("b")
    held.wait_for(lambda: list(second.glob("copies/count/b-*/step-*.json")))
    held.lose_the_machine()
    back = work.charter("artifacts", "checkpoints", "restore")
    assert back.code == 0, back.err
    assert "checkpoint" in back.out
    again = work.run()
    assert again.code == 0, again.err
    assert "a" not in again.names("stage_started")
    assert next(event["first_step"] for event in again.events if event["event"] == "stage_started")
    assert work.outputs() == undisturbed


def test_a_place_that_is_down_is_told_and_stops_nothing(work, undisturbed, tmp_path):
    (tmp_path / "file").write_text("")
    work.edit("name: count", f"name: count\nstorage: {{artifacts: {tmp_path / 'file' / 'inside'}}}")
    done = work.run()
    assert done.code == 0, done.err
    assert any("cannot be used now" in event.get("message", "") for event in done.events)
    assert work.outputs() == undisturbed


def test_a_place_that_could_never_work_is_refused_before_anything_starts(work):
    work.edit("name: count", "name: count\nstorage: {artifacts: 'gopher://somewhere'}")
    refused = work.run()
    assert (refused.code, refused.names("stage_started")) == (2, [])
    assert "s3://bucket/path" in refused.err
