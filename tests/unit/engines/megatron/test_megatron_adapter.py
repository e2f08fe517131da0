"""Megatron-LM's directories as it leaves them when it is killed."""

from dataclasses import replace

import pytest
from megatron_case import PRETRAIN, handover

from charter.engines.megatron.adapter import MegatronAdapter, convert_command
from charter.errors import StageError

ORDER = ("__0_0.distcp", "__0_1.distcp", "__1_0.distcp", "common.pt", ".metadata", "metadata.json")
"""As dist_checkpointing writes them; the tracker file comes after."""


def save(work, step, *, upto="metadata.json", tracker=True):
    directory = work / "checkpoints" / f"iter_{step:07d}"
    directory.mkdir(parents=True)
    for name in ORDER:
        (directory / name).write_text('{"sharded_backend": "torch_dist"}' if name == "metadata.json" else f"{step}")
        if name == upto:
            break
    if tracker:
        (work / "checkpoints/latest_checkpointed_iteration.txt").write_text(str(step))


def steps_of(work):
    return [item.step for item in MegatronAdapter().checkpoints(work)]


@pytest.mark.parametrize("upto", ORDER[:-1])
def test_a_save_counts_when_its_last_file_is_there(tmp_path, upto):
    save(tmp_path, 10)
    save(tmp_path, 20, upto=upto, tracker=False)
    assert steps_of(tmp_path) == [10]
    assert MegatronAdapter().final_step(tmp_path) == 10


def test_the_tracker_file_is_not_needed(tmp_path):
    save(tmp_path, 10, tracker=False)
    assert steps_of(tmp_path) == [10]


@pytest.mark.parametrize(
    ("name", "text"), [("metadata.json", ""), ("metadata.json", '{"sha'), ("metadata.json", "[]"), (".metadata", "")]
)
def test_torn_ends_are_no_ends(tmp_path, name, text):
    save(tmp_path, 10)
    (tmp_path / "checkpoints/iter_0000010" / name).write_text(text)
    assert steps_of(tmp_path) == []


def test_all_are_told_oldest_first_and_nothing_else(tmp_path):
    for step in (100, 20, 3000):
        save(tmp_path, step)
    (tmp_path / "checkpoints/iter_10").mkdir()
    (tmp_path / "checkpoints/release").mkdir()
    assert steps_of(tmp_path) == [20, 100, 3000]


def test_there_is_none_where_nothing_is(tmp_path):
    assert steps_of(tmp_path) == []
    assert MegatronAdapter().final_step(tmp_path) is None
    with pytest.raises(StageError, match="no whole checkpoint"):
        MegatronAdapter().convert(tmp_path, handover(PRETRAIN), tmp_path / "model")


def test_what_is_placed_is_what_the_engine_loads(tmp_path):
    work = tmp_path / "work"
    save(work, 10)
    save(work, 20, upto=".metadata", tracker=False)
    (found,) = MegatronAdapter().checkpoints(work)
    saved = tmp_path / "saved"
    found.path.rename(saved)
    (saved / "manifest.json").write_text("{}")
    assert MegatronAdapter().place(saved, 10, work) == str(work / "checkpoints")
    names = sorted(path.name for path in (work / "checkpoints").iterdir())
    assert names == ["iter_0000010", "latest_checkpointed_iteration.txt"]
    assert (work / "checkpoints/latest_checkpointed_iteration.txt").read_text() == "10"
    assert sorted(path.name for path in (work / "checkpoints/iter_0000010").iterdir()) == sorted(ORDER)
    assert steps_of(work) == [10]


def test_steps_come_from_the_log(tmp_path):
    log = tmp_path / "log"
    assert list(MegatronAdapter().steps(tmp_path, log)) == []
    log.write_text(
        " [2026-11-22 13:40:01.123456] iteration        7/     100 | lm loss: 2.5E+00 |"
        " number of nan iterations:   0 |\n"
    )
    assert [item.step for item in MegatronAdapter().steps(tmp_path, log)] == [7]


def test_the_newest_checkpoint_is_converted_by_megatron_bridge(tmp_path):
    first, item = tmp_path / "first", handover(PRETRAIN)
    first.mkdir()
    (first / "config.json").write_text("{}")
    item = replace(item, paths=replace(item.paths, models={"init": str(first)}))
    save(tmp_path, 10)
    save(tmp_path, 20)
    fake = tmp_path / "python"
    fake.write_text('#!/bin/sh\nmkdir -p "$5" && echo "$3 $4" > "$5/model.safetensors"\n')
    fake.chmod(0o755)
    found = MegatronAdapter(python=str(fake)).convert(tmp_path, item, tmp_path / "model")
    assert found == {"converted_by": "megatron.bridge AutoBridge.export_ckpt", "step": 20}
    told = (tmp_path / "model/model.safetensors").read_text().split()
    assert told == [str(first), str(tmp_path / "checkpoints/iter_0000020")]
    fake.write_text("#!/bin/sh\necho no bridge >&2; exit 1\n")
    with pytest.raises(StageError, match=r"ended with 1:\nno bridge"):
        MegatronAdapter(python=str(fake)).convert(tmp_path, item, tmp_path / "again")


def test_the_conversion_is_one_line_of_python(tmp_path):
    words = convert_command("py", "first", tmp_path / "c", tmp_path / "t")
    compile(words[2], "command", "exec")
    assert words[3:] == ["first", f"{tmp_path}/c", f"{tmp_path}/t"]
