"""OpenRLHF's directories as it leaves them when it is killed: only what all ranks have finished counts."""

import json
import struct
from dataclasses import replace

import pytest
from openrlhf_case import DPO, GRPO, PPO, SFT, handover

from charter.engines.openrlhf.adapter import OpenRlhfAdapter, merge_command
from charter.engines.openrlhf.mapping import ARGUMENTS_FILE, render_openrlhf
from charter.errors import StageError

STEP_FILES = (
    "mp_rank_00_model_states.pt",
    "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
    "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt",
)
METRIC = '{"metric_key": null, "metric_value": null}'


def work_of(tmp_path, stage):
    work = tmp_path / "work"
    work.mkdir()
    for name, text in render_openrlhf(handover(stage)).files.items():
        (work / name).write_text(text)
    return work


def save(directory, step, *, upto="metric.json"):
    """The files of one save in the order of its code; `upto` is the last that is written."""
    tag = directory / f"global_step{step}"
    tag.mkdir(parents=True)
    for name in (*STEP_FILES, "latest", "metric.json"):
        if name == "latest":
            (directory / name).write_text(f"global_step{step}")
        else:
            (tag / name).write_text(
                '{"metric_key": null, "metric_value": null}' if name == "metric.json" else f"{step}"
            )
        if name == upto:
            return


def log(work, *steps):
    """TensorBoard scalars, as tests/unit/hosted/logs reads them."""
    directory = work / "tensorboard" / "stage"
    directory.mkdir(parents=True, exist_ok=True)
    data = b""
    for step in steps:
        summary = b"\x0a" + bytes([len("train/loss_mean") + 7]) + b"\x0a\x0f" + b"train/loss_mean" + b"\x15"
        summary += struct.pack("<f", 1.0)
        record = b"\x09" + struct.pack("<d", 1.0) + b"\x10" + bytes([step]) + b"\x2a" + bytes([len(summary)]) + summary
        data += struct.pack("<QI", len(record), 0) + record + b"\0\0\0\0"
    (directory / "events.out.tfevents.1.host").write_bytes(data)


def steps_of(work):
    return [item.step for item in OpenRlhfAdapter().checkpoints(work)]


@pytest.mark.parametrize("stage", [SFT, DPO], ids=lambda item: item.kind)
def test_a_save_counts_when_rank_0_has_waited_for_all(tmp_path, stage):
    for upto in (*STEP_FILES, "latest"):
        work = work_of(tmp_path / upto, stage) if (tmp_path / upto).mkdir() is None else None
        save(work / "checkpoints", 10)
        save(work / "checkpoints", 20, upto=upto)
        assert steps_of(work) == [10], f"{upto}: the others may still be writing"
    save(work / "checkpoints", 30)
    assert steps_of(work) == [30]


def test_a_torn_last_file_is_no_end(tmp_path):
    work = work_of(tmp_path, SFT)
    save(work / "checkpoints", 10)
    for text in ("", "{", '{"metric_key": null, "metric_va', "[]"):
        (work / "checkpoints/global_step10/metric.json").write_text(text)
        assert steps_of(work) == []


def test_there_is_none_where_nothing_is_and_other_names_do_not_matter(tmp_path):
    work = work_of(tmp_path, SFT)
    assert steps_of(work) == []
    for name in ("global_step10_hf", "best_global_step10", "x_global_step10"):
        (work / "checkpoints" / name).mkdir(parents=True)
        (work / "checkpoints" / name / "metric.json").write_text("{}")
    assert steps_of(work) == []


def test_only_the_newest_is_told_since_older_ones_are_removed_file_by_file(tmp_path):
    work = work_of(tmp_path, SFT)
    save(work / "checkpoints", 10)
    save(work / "checkpoints", 20)
    (work / "checkpoints/global_step10" / STEP_FILES[0]).unlink()
    assert steps_of(work) == [20]


def test_steps_are_numbers(tmp_path):
    work = work_of(tmp_path, SFT)
    save(work / "checkpoints", 90)
    save(work / "checkpoints", 100)
    assert steps_of(work) == [100]


@pytest.mark.parametrize("upto", [*STEP_FILES, "latest"])
def test_policy_and_value_model_are_whole_together_or_not_at_all(tmp_path, upto):
    work = work_of(tmp_path, PPO)
    for role in ("_actor", "_critic"):
        save(work / "checkpoints" / role, 10)
    save(work / "checkpoints/_actor", 20)
    assert steps_of(work) == [10], "the value model has not begun"
    save(work / "checkpoints/_critic", 20, upto=upto)
    assert steps_of(work) == [10]


def test_a_policy_alone_waits_for_its_value_model(tmp_path):
    work = work_of(tmp_path, PPO)
    save(work / "checkpoints/_actor", 10)
    assert steps_of(work) == []


def test_without_a_value_model_the_policy_is_all(tmp_path):
    work = work_of(tmp_path, GRPO)
    save(work / "checkpoints/_actor", 10)
    (found,) = OpenRlhfAdapter().checkpoints(work)
    assert found.step == 10
    assert (found.path / "_actor" / STEP_FILES[0]).read_text() == "10"


def test_both_are_put_together_and_an_older_pair_goes(tmp_path):
    work = work_of(tmp_path, PPO)
    for step in (10, 20):
        for role in ("_actor", "_critic"):
            save(work / "checkpoints" / role, step)
        (found,) = OpenRlhfAdapter().checkpoints(work)
        assert found.path == next(iter(OpenRlhfAdapter().checkpoints(work))).path, "made once"
    assert sorted(path.name for path in (work / "whole").iterdir()) == ["global_step20"]
    assert sorted(path.name for path in found.path.iterdir()) == ["_actor", "_critic"]
    assert (found.path / "_critic" / STEP_FILES[2]).read_text() == "20"


def test_a_pair_that_was_not_put_together_to_its_end_is_made_again(tmp_path):
    work = work_of(tmp_path, PPO)
    for role in ("_actor", "_critic"):
        save(work / "checkpoints" / role, 10)
    (work / "whole/unfinished/_actor").mkdir(parents=True)
    (work / "whole/unfinished/_actor/stray").write_text("")
    (found,) = OpenRlhfAdapter().checkpoints(work)
    assert not (found.path / "_actor/stray").exists()


@pytest.mark.parametrize("stage", [SFT, GRPO, PPO], ids=["sft", "grpo", "ppo"])
def test_what_is_placed_is_what_the_engine_loads(tmp_path, stage):
    work = work_of(tmp_path, stage)
    roles = {"sft": [""], "ppo": ["_actor", "_critic"]}[stage.kind] if stage is not GRPO else ["_actor"]
    for role in roles:
        save(work / "checkpoints" / role, 10)
        save(work / "checkpoints" / role, 20, upto="latest")
    adapter = OpenRlhfAdapter()
    (found,) = adapter.checkpoints(work)
    saved = tmp_path / "saved"
    found.path.rename(saved)
    (saved / "manifest.json").write_text("{}")
    for name in ("output", "tensorboard"):
        (work / name).mkdir(exist_ok=True)
    arguments = (work / ARGUMENTS_FILE).rename(tmp_path / ARGUMENTS_FILE)
    assert adapter.place(saved, 10, work) == str(work / "checkpoints")
    arguments.rename(work / ARGUMENTS_FILE)  # written after it, by what it has returned
    for role in roles:
        directory = work / "checkpoints" / role
        assert sorted(path.name for path in directory.iterdir()) == ["global_step10", "latest"]
        assert (directory / "latest").read_text() == "global_step10"
        assert not (directory / "global_step10/manifest.json").exists()
    assert [item.step for item in adapter.checkpoints(work)] == [10]
    assert not (work / "output").exists()
    assert not (work / "tensorboard").exists()


def finish(work, *, upto="tokenizer_config.json"):
    output = work / "output"
    output.mkdir(exist_ok=True)
    for name in ("model.safetensors", "config.json", "tokenizer_config.json"):
        (output / name).write_text("{}")
        if name == upto:
            return


@pytest.mark.parametrize("upto", ["model.safetensors", "config.json"])
def test_weights_are_final_when_the_tokenizer_stands_beside_them(tmp_path, upto):
    work = work_of(tmp_path, SFT)
    log(work, 1, 2, 3)
    assert OpenRlhfAdapter().final_step(work) is None
    finish(work, upto=upto)
    assert OpenRlhfAdapter().final_step(work) is None
    finish(work)
    assert OpenRlhfAdapter().final_step(work) == 3


def test_a_tokenizer_without_weights_is_no_end(tmp_path):
    work = work_of(tmp_path, SFT)
    log(work, 1)
    finish(work)
    (work / "output/model.safetensors").unlink()
    assert OpenRlhfAdapter().final_step(work) is None


def test_a_run_that_trained_nothing_has_the_step_that_it_went_on_from(tmp_path):
    work = work_of(tmp_path, SFT)
    finish(work)
    assert OpenRlhfAdapter().final_step(work) == 0
    save(work / "checkpoints", 10)
    assert OpenRlhfAdapter().final_step(work) == 10
    log(work, 11, 12)
    assert OpenRlhfAdapter().final_step(work) == 12


def test_steps_come_from_the_scalars(tmp_path):
    work = work_of(tmp_path, SFT)
    log(work, 1, 2)
    assert [item.step for item in OpenRlhfAdapter().steps(work, tmp_path / "log")] == [1, 2]


def models(tmp_path):
    first = tmp_path / "first"
    first.mkdir()
    (first / "config.json").write_text('{"first": true}')
    (first / "tokenizer_config.json").write_text("{}")
    return first


def test_weights_are_taken_with_the_configuration_that_training_began_with(tmp_path):
    work, first = work_of(tmp_path, PPO), models(tmp_path)
    finish(work)
    item = handover(PPO)
    item = replace(item, paths=replace(item.paths, models={"policy": str(first), "reward": "r"}))
    assert OpenRlhfAdapter().convert(work, item, tmp_path / "model") == {}
    assert json.loads((tmp_path / "model/config.json").read_text()) == {"first": True}
    assert (tmp_path / "model/model.safetensors").exists()


def test_an_adapter_is_merged_by_the_engine(tmp_path):
    work, first = work_of(tmp_path, SFT), models(tmp_path)
    finish(work)
    (work / "output/adapter_config.json").write_text("{}")
    item = handover(SFT)
    item = replace(item, paths=replace(item.paths, models={"init": str(first)}))
    fake = tmp_path / "python"
    fake.write_text('#!/bin/sh\nmkdir -p "$8" && echo merged > "$8/model.safetensors"\n')
    fake.chmod(0o755)
    found = OpenRlhfAdapter(python=str(fake)).convert(work, item, tmp_path / "model")
    assert found == {"converted_by": "openrlhf.cli.lora_combiner"}
    assert (tmp_path / "model/model.safetensors").read_text() == "merged\n"
    fake.write_text("#!/bin/sh\necho no memory >&2; exit 3\n")
    with pytest.raises(StageError, match=r"ended with 3:\nno memory"):
        OpenRlhfAdapter(python=str(fake)).convert(work, item, tmp_path / "again")


def test_the_merging_command_names_model_adapter_and_place(tmp_path):
    words = merge_command("py", tmp_path / "m", tmp_path / "a", tmp_path / "o")
    assert words[:3] == ["py", "-m", "openrlhf.cli.lora_combiner"]
    assert words[3:] == [
        "--model_path",
        f"{tmp_path}/m",
        "--lora_path",
        f"{tmp_path}/a",
        "--output_path",
        f"{tmp_path}/o",
    ]
