import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from charter.artifacts import durable
from charter.artifacts.record import damaged_output, read_record
from charter.artifacts.stage_dir import RecentPace, StageDir
from charter.errors import DataError, StageError


def save(stage: StageDir, step: int) -> None:
    stage.save_checkpoint(step, lambda out: (out / "weights.bin").write_bytes(bytes([step]) * 100) and None)


def names(directory: Path) -> list[str]:
    return sorted(os.listdir(directory / "state"))


def test_no_checkpoint_means_from_the_beginning(make_stage):
    assert StageDir(make_stage()).latest_checkpoint() is None


def test_the_newest_checkpoint_is_taken_and_old_ones_are_pruned(make_stage):
    stage = StageDir(make_stage(keep_last=2))
    for step in (2, 4, 6):
        save(stage, step)
    assert names(stage.path) == ["step-00000004", "step-00000006"]
    found = StageDir(stage.path).latest_checkpoint()
    assert (found.step, (found.path / "weights.bin").read_bytes()[:1]) == (6, b"\x06")


def cut(path: Path, size: int) -> None:
    os.truncate(path, size)


def flip_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


DAMAGE = {
    "emptied": lambda step: cut(step / "weights.bin", 0),
    "one byte short": lambda step: cut(step / "weights.bin", 99),
    "bit flipped": lambda step: flip_bit(step / "weights.bin"),
    "zeroed": lambda step: (step / "weights.bin").write_bytes(bytes(100)),
    "file gone": lambda step: (step / "weights.bin").unlink(),
    "manifest gone": lambda step: (step / "manifest.json").unlink(),
    "manifest torn": lambda step: cut(step / "manifest.json", 20),
    "manifest empty": lambda step: (step / "manifest.json").write_text("{}"),
    "manifest of other kind": lambda step: (step / "manifest.json").write_text("[1]"),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_is_taken(make_stage, damage, capsys):
    stage = StageDir(make_stage())
    save(stage, 2)
    save(stage, 4)
    damage(stage.path / "state" / "step-00000004")
    found = StageDir(stage.path).latest_checkpoint()
    assert found.step == 2
    assert names(stage.path) == ["step-00000002", "step-00000004.damaged-1"]
    assert "step-00000004 is damaged" in capsys.readouterr().err


def test_when_every_checkpoint_is_damaged_the_stage_starts_again(make_stage):
    stage = StageDir(make_stage())
    save(stage, 2)
    flip_bit(stage.path / "state" / "step-00000002" / "weights.bin")
    assert StageDir(stage.path).latest_checkpoint() is None


def test_a_step_can_be_saved_again_after_its_checkpoint_was_damaged(make_stage):
    stage = StageDir(make_stage())
    save(stage, 2)
    flip_bit(stage.path / "state" / "step-00000002" / "weights.bin")
    StageDir(stage.path).latest_checkpoint()
    save(stage, 2)
    assert StageDir(stage.path).latest_checkpoint().step == 2


def test_a_checkpoint_of_another_run_is_refused_and_left_alone(make_stage, tmp_path):
    other = StageDir(make_stage("ppo", fingerprint="b" * 64))
    save(other, 4)
    mine = make_stage()
    (mine / "state").mkdir()
    durable.move(other.path / "state" / "step-00000004", mine / "state" / "step-00000004")
    with pytest.raises(DataError, match=r"checkpoint of another run: stage ppo with fingerprint bbbbbbbb") as caught:
        StageDir(mine).latest_checkpoint()
    assert caught.value.exit_code == 8
    assert names(mine) == ["step-00000004"]


def test_metrics_of_steps_that_are_done_again_are_cut_off(make_stage):
    stage = StageDir(make_stage())
    for step in (1, 2):
        stage.report(step, 6, "steps", {"loss": 1.0})
    save(stage, 2)
    stage.report(3, 6, "steps", {"loss": 1.0})
    with (stage.path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "lo')
    StageDir(stage.path).latest_checkpoint()
    lines = (stage.path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2]


def test_progress_counts_the_work_of_this_attempt(make_stage):
    stage = StageDir(make_stage())
    stage.report(1, 2, "steps", {"loss": 2.0}, {"tokens": 10})
    stage.report(2, 2, "steps", {"loss": 1.0}, {"tokens": 15})
    progress = json.loads((stage.path / "progress.json").read_text())
    assert (progress["step"], progress["counters"], progress["metrics"]) == (2, {"tokens": 25}, {"loss": 1.0})


def test_a_process_that_ends_leaves_its_last_step(make_stage):
    stage = StageDir(make_stage())
    for step in (1, 2, 3):
        stage.report(step, 6, "steps", {"loss": 1.0 / step})
    stage.write_last_progress()
    progress = json.loads((stage.path / "progress.json").read_text())
    assert (progress["step"], progress["metrics"]) == (3, {"loss": 1 / 3})
    (stage.path / "progress.json").unlink()
    stage.write_last_progress()
    assert not (stage.path / "progress.json").exists()


def publish(stage: StageDir, *, step: int = 6) -> None:
    stage.publish_outputs(lambda out: (out / "records.jsonl").write_text("{}\n") and None, step=step, target_step=6)


def test_outputs_and_record_are_published_and_verified(make_stage):
    stage = StageDir(make_stage())
    publish(stage)
    record = read_record(stage.path)
    assert stage.is_done
    assert set(record.outputs) == {"records.jsonl"}
    assert damaged_output(stage.path, record, thorough=True) is None


def test_a_stage_short_of_its_target_cannot_publish(make_stage):
    stage = StageDir(make_stage())
    with pytest.raises(StageError, match="step 5 of 6"):
        publish(stage, step=5)
    assert not stage.outputs.exists()


def test_a_stage_without_output_files_is_not_done(make_stage):
    stage = StageDir(make_stage())
    with pytest.raises(StageError, match="no output files"):
        stage.publish_outputs(lambda out: None, step=6, target_step=6)
    assert not stage.is_done


def test_outputs_left_by_a_crash_before_the_record_are_replaced(make_stage):
    stage = StageDir(make_stage())
    stage.outputs.mkdir()
    (stage.outputs / "stale.txt").write_text("x")
    publish(stage)
    assert os.listdir(stage.outputs) == ["records.jsonl"]


@pytest.mark.parametrize("thorough", [False, True])
def test_damaged_outputs_are_found_by_name(make_stage, thorough):
    stage = StageDir(make_stage())
    publish(stage)
    (stage.outputs / "records.jsonl").write_text("[]\n")
    assert "records.jsonl has sha256" in damaged_output(stage.path, read_record(stage.path), thorough=thorough)
    (stage.outputs / "records.jsonl").unlink()
    assert damaged_output(stage.path, read_record(stage.path), thorough=thorough) == "file records.jsonl is missing"


def test_thorough_check_sees_change_with_old_size_and_time(make_stage):
    stage = StageDir(make_stage())
    publish(stage)
    path = stage.outputs / "records.jsonl"
    before = path.stat()
    path.write_text("[]\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    record = read_record(stage.path)
    assert damaged_output(stage.path, record, thorough=True) is not None


def test_a_corrupt_record_is_named_with_what_to_do(make_stage):
    stage = StageDir(make_stage())
    publish(stage)
    (stage.path / "record.json").write_text('{"stage": "sft", ')
    with pytest.raises(DataError, match=r"record\.json is not valid JSON(.|\n)*mv .*record\.json"):
        read_record(stage.path)
    (stage.path / "record.json").write_text('{"stage": "sft"}')
    with pytest.raises(DataError, match=r"not a complete record: .*outputs"):
        read_record(stage.path)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.sampled_from(["save", "damage newest", "resume"]), max_size=12), st.integers(1, 3))
def test_after_a_save_one_verified_checkpoint_is_always_left(make_stage, tmp_path_factory, actions, keep_last):
    path = make_stage(keep_last=keep_last)
    for old in (path / "state").glob("*"):
        durable.discard_dir(old)
    stage, step = StageDir(path), 0
    for action in actions:
        if action == "save":
            step += 1
            save(stage, step)
            assert StageDir(path).latest_checkpoint().step == step
        elif action == "resume":
            found = StageDir(path).latest_checkpoint()
            step = found.step if found else 0
        elif (newest := sorted((path / "state").glob("step-????????"))[-1:]) and newest[0].is_dir():
            flip_bit(newest[0] / "weights.bin")
            found = StageDir(path).latest_checkpoint()
            step = found.step if found else 0


def test_recent_pace_of_many_steps_follows_the_later_half():
    pace = RecentPace()
    assert pace.recent() == (0.0, 0)
    clock = 600.0
    for step in range(1, 1001):
        clock += 3.0 if step <= 400 else 1.0
        pace.note(clock, step)
    seconds, steps = pace.recent()
    assert seconds == steps
    assert 480 <= steps <= 560


def test_a_roll_back_begins_the_recent_pace_anew():
    pace = RecentPace()
    for clock, step in enumerate((22, 23, 24, 18, 19, 20)):
        pace.note(float(clock), step)
    assert pace.recent() == (1.0, 1)
