import json
import os
from dataclasses import replace

import pytest

from charter.artifacts.job import Job, write_job
from charter.artifacts.stage_dir import StageDir
from charter.errors import DataError, StageError
from charter.feedback.records import Batch, in_batches, make_records
from charter.spec.stage import CritiqueStage

ITEMS = list(range(10))


class Killed(BaseException):
    """Stands for a SIGKILL between two instructions."""


def stage_at(path, *, should_stop=lambda: False):
    if not path.exists():
        path.mkdir()
        spec = CritiqueStage(policy="p", critic="p", prompts=("d",))
        write_job(
            path,
            Job(
                run="r",
                stage="critique",
                kind="critique",
                fingerprint="f" * 64,
                seed=1,
                spec=spec,
                inputs={},
                constitution=None,
                frozen={},
                keep_last=2,
            ),
        )
    return StageDir(path, should_stop=should_stop)


def make(items):
    return Batch(
        records=[{"id": item, "text": "ü\u2028x"} for item in items if item % 4],
        set_aside=[{"id": item, "reason": "fourth"} for item in items if item % 4 == 0],
        totals={"weight": sum(items) / 10},
        tokens=len(items),
    )


def summarise(totals):
    return {"mean_weight": totals["weight"] / max(1, totals["records"])}


def outputs(path):
    return {file.name: file.read_bytes() for file in (path / "outputs").iterdir()}


def run(path, make=make, **more):
    make_records(stage_at(path, **more), in_batches(ITEMS, 3), make, summarise=summarise)


@pytest.fixture
def undisturbed(tmp_path):
    run(tmp_path / "undisturbed")
    return outputs(tmp_path / "undisturbed")


def test_records_are_published_in_order_with_what_was_set_aside(undisturbed):
    rows = [json.loads(line) for line in undisturbed["records.jsonl"].decode().split("\n")[:-1]]
    assert [row["id"] for row in rows] == [1, 2, 3, 5, 6, 7, 9]
    assert [json.loads(line)["id"] for line in undisturbed["set_aside.jsonl"].splitlines()] == [0, 4, 8]
    summary = json.loads(undisturbed["summary.json"])
    assert summary == {"generated_tokens": 10, "mean_weight": 4.5 / 7, "records": 7, "set_aside": 3}


@pytest.mark.parametrize("batch", [0, 1, 2, 3])
def test_a_kill_in_any_batch_costs_that_batch_only_and_changes_no_byte(tmp_path, undisturbed, batch):
    path, made = tmp_path / "killed", []

    def dying(items):
        if items == ITEMS[3 * batch : 3 * batch + 3]:
            raise Killed
        made.append(items)
        return make(items)

    with pytest.raises(Killed):
        run(path, dying)
    run(path, lambda items: made.append(items) or make(items))
    assert made == in_batches(ITEMS, 3)
    assert outputs(path) == undisturbed


def test_a_stop_request_ends_after_the_batch_and_goes_on_later(tmp_path, undisturbed):
    path, calls = tmp_path / "stopped", []

    def stop_after_two():
        calls.append(1)
        return len(calls) > 2

    run(path, should_stop=stop_after_two)
    assert not (path / "record.json").exists()
    assert stage_at(path).latest_checkpoint().step == 2
    run(path)
    assert outputs(path) == undisturbed


def test_a_damaged_batch_file_is_noticed_and_made_again(tmp_path, undisturbed):
    path = tmp_path / "damaged"

    def dying(items):
        if items == [9]:
            raise Killed
        return make(items)

    with pytest.raises(Killed):
        run(path, dying)
    part = path / "state" / "step-00000003" / "batch-00000001.records.jsonl"
    part.write_bytes(part.read_bytes().replace(b"1", b"7", 1))
    run(path)
    assert outputs(path) == undisturbed


def killed_before(path, last, make=make):
    """Everything up to a batch, with all its checkpoints."""

    def dying(items):
        if items == in_batches(ITEMS, 1)[last]:
            raise Killed
        return make(items)

    with pytest.raises(Killed):
        make_records(stage_at(path), in_batches(ITEMS, 1), dying, summarise=summarise)


def inodes(path, step):
    return {file.name: file.stat().st_ino for file in (path / "state" / f"step-{step:08d}").glob("batch-*")}


def test_earlier_batches_are_linked_but_two_checkpoints_in_a_row_share_no_file(tmp_path):
    path = tmp_path / "run"
    stage_at(path)
    write_job(path, replace(StageDir(path).job, keep_last=9))
    killed_before(path, 7)
    for step in range(2, 8):
        assert not set(inodes(path, step).values()) & set(inodes(path, step - 1).values())
    for step in range(3, 8):
        linked = set(inodes(path, step).items()) & set(inodes(path, step - 2).items())
        assert len(linked) == step - 2
    assert len(inodes(path, 7)) == 7


def test_a_bad_block_damages_every_second_checkpoint_and_the_one_before_is_taken(tmp_path):
    path = tmp_path / "bad"
    stage_at(path)
    killed_before(path, 6)
    with (path / "state" / "step-00000006" / "batch-00000001.set_aside.jsonl").open("r+b") as file:
        file.write(b"x")
    assert stage_at(path).latest_checkpoint().step == 5
    assert (path / "state" / "step-00000006.damaged-1").is_dir()


@pytest.mark.parametrize("damaged", [4, 5])
def test_what_went_bad_since_it_was_written_is_not_given_a_new_hash(tmp_path, damaged):
    path, whole = tmp_path / "bad", tmp_path / "whole"

    def make_and_damage(items):
        if items == [5]:
            file = path / "state" / f"step-{damaged:08d}" / "batch-00000002.records.jsonl"
            file.write_bytes(file.read_bytes().replace(b"1", b"7"))
        return make(items)

    stage_at(path)
    write_job(path, replace(StageDir(path).job, keep_last=3))
    if damaged == 4:
        with pytest.raises(StageError, match=r"batch-00000002\.records\.jsonl is no longer as it was"):
            make_records(stage_at(path), in_batches(ITEMS, 1), make_and_damage, summarise=summarise)
        assert not (path / "state" / "step-00000006").exists()
    for place in (path, whole):
        make_records(stage_at(place), in_batches(ITEMS, 1), make, summarise=summarise)
    assert outputs(path) == outputs(whole)


def test_a_file_system_without_links_gives_the_same_bytes(tmp_path, undisturbed, monkeypatch):
    def no_links(source, target):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    run(tmp_path / "copied")
    assert outputs(tmp_path / "copied") == undisturbed


def test_nothing_usable_is_an_error_that_says_so(tmp_path):
    with pytest.raises(DataError, match=r"no usable record: .*'set_aside': 10"):
        make_records(
            stage_at(tmp_path / "empty"),
            in_batches(ITEMS, 3),
            lambda items: Batch(records=[], set_aside=[{"id": item, "reason": "empty"} for item in items]),
            summarise=lambda totals: {},
        )
    assert not (tmp_path / "empty" / "record.json").exists()
