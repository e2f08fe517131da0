"""The Trainer's directory and its printed lines, as transformers 5.23 writes them; torn at every file."""

import json
import os
import zipfile

import pytest

from charter.engines.common.files import OWNER
from charter.engines.huggingface.adapter import HuggingFaceAdapter, is_whole

ADAPTER = HuggingFaceAdapter()
LOG = """\
Generating train split: 160 examples [00:00, 2471.39 examples/s]
{'loss': '5.764', 'grad_norm': '0.6435', 'learning_rate': '0.000122', 'mean_token_accuracy': '0.03516', 'epoch': '1'}
a line that is {'no dictionary: 'loss': }
{'eval_loss': '5.1', 'epoch': '1'}
{'loss': 'nan', 'grad_norm': 'inf', 'learning_rate': '0.0001', 'rewards/accuracies': '0.5', 'epoch': '1'}
{'train_runtime': '6.927', 'train_steps_per_second': '2.887', 'train_loss': '5.925', 'epoch': '1'}
"""


def weights(path, number=1):
    path.parent.mkdir(parents=True, exist_ok=True)
    body = bytes([number] * 8)
    header = json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + body)


def checkpoint(work, step, *, where="output", processes=1, number=1):
    path = work / where / f"checkpoint-{step}"
    weights(path / "model.safetensors", number)
    random = ["rng_state.pth"] if processes == 1 else [f"rng_state_{rank}.pth" for rank in range(processes)]
    for name in ("optimizer.pt", "scheduler.pt", "training_args.bin", *random):
        with zipfile.ZipFile(path / name, "w") as file:
            file.writestr("data", "x" * 64)
    (path / "trainer_state.json").write_text(json.dumps({"global_step": step, "log_history": []}))
    return path


@pytest.fixture
def work(tmp_path):
    (tmp_path / OWNER).write_text(json.dumps({"engine": "trl", "processes": 1}))
    return tmp_path


def steps_of(work):
    return [item.step for item in ADAPTER.checkpoints(work)]


def test_whole_checkpoints_are_told_oldest_first(work):
    checkpoint(work, 10)
    checkpoint(work, 5)
    (work / "output" / "checkpoint-best").mkdir()
    (work / "output" / "runs").mkdir()
    assert steps_of(work) == [5, 10]
    assert ADAPTER.checkpoints(work)[0].path == work / "output" / "checkpoint-5"


def test_before_there_is_an_output_there_is_no_checkpoint(work):
    assert steps_of(work) == []


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "rng_state.pth", "trainer_state.json"])
def test_one_without_a_file_is_not_whole(work, name):
    (checkpoint(work, 5) / name).unlink()
    assert steps_of(work) == []


@pytest.mark.parametrize(
    "name", ["model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"]
)
@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_one_with_a_torn_file_is_not_whole(work, name, share):
    path = checkpoint(work, 5) / name
    os.truncate(path, int(path.stat().st_size * share))
    assert steps_of(work) == []


def adapter_checkpoint(work, step, **changes):
    """One of peft's: `adapter_model.safetensors` with its settings, and no whole model."""
    path = checkpoint(work, step, **changes)
    (path / "model.safetensors").rename(path / "adapter_model.safetensors")
    (path / "adapter_config.json").write_text('{"r": 4}')
    return path


def test_a_checkpoint_of_an_adapter_is_whole(work):
    adapter_checkpoint(work, 5)
    assert steps_of(work) == [5]


@pytest.mark.parametrize(
    "name", ["adapter_model.safetensors", "adapter_config.json", "optimizer.pt", "rng_state.pth", "trainer_state.json"]
)
def test_one_of_an_adapter_without_a_file_is_not_whole(work, name):
    (adapter_checkpoint(work, 5) / name).unlink()
    assert steps_of(work) == []


@pytest.mark.parametrize("missing", ["adapter_model.safetensors", "adapter_config.json"])
def test_one_of_an_adapter_under_deepspeed_needs_the_adapter_too(work, missing):
    path = adapter_checkpoint(work, 5)
    (path / "global_step5").mkdir()
    (path / "latest").write_text("global_step5")
    assert steps_of(work) == [5]
    (path / missing).unlink()
    assert steps_of(work) == []


def test_the_final_adapter_is_that_of_the_newest_checkpoint(work):
    adapter_checkpoint(work, 5, number=1)
    adapter_checkpoint(work, 10, number=2)
    weights(work / "output" / "adapter_model.safetensors", 2)
    assert ADAPTER.final_step(work) == 10
    weights(work / "output" / "adapter_model.safetensors", 1)
    assert ADAPTER.final_step(work) is None


def test_one_that_sigterm_has_begun_is_not_whole(work):
    (checkpoint(work, 5) / "checkpoint-is-incomplete.txt").write_text("in progress")
    assert steps_of(work) == []


def test_one_with_the_state_of_another_step_is_not_whole(work):
    path = checkpoint(work, 5)
    path.rename(path.with_name("checkpoint-6"))
    assert steps_of(work) == []


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_every_process_has_written_its_generators(work, missing):
    (work / OWNER).write_text(json.dumps({"processes": 3}))
    path = checkpoint(work, 5, processes=3)
    assert is_whole(path, 5, work)
    (path / f"rng_state_{missing}.pth").unlink()
    assert not is_whole(path, 5, work)


def test_an_index_names_files_that_are_there(work):
    path = checkpoint(work, 5)
    (path / "model.safetensors").rename(path / "model-00001-of-00002.safetensors")
    named = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": named}))
    assert steps_of(work) == []
    weights(path / "model-00002-of-00002.safetensors")
    assert steps_of(work) == [5]


def test_parts_of_fsdp_have_their_metadata(work):
    path = checkpoint(work, 5)
    (path / "optimizer.pt").unlink()
    for name in ("pytorch_model_fsdp_0", "optimizer_0"):
        (path / name).mkdir()
        (path / name / "__0_0.distcp").write_bytes(b"part")
    assert steps_of(work) == []
    for name in ("pytorch_model_fsdp_0", "optimizer_0"):
        (path / name / ".metadata").write_bytes(b"index")
    assert steps_of(work) == [5]
    (path / "optimizer_0" / ".metadata").unlink()
    assert steps_of(work) == []


def test_a_checkpoint_of_deepspeed_names_its_own_directory(work):
    path = checkpoint(work, 5)
    (path / "optimizer.pt").unlink()
    (path / "latest").write_text("global_step5\n")
    assert steps_of(work) == []
    (path / "global_step5").mkdir()
    assert steps_of(work) == [5]


def test_what_was_taken_over_is_out_of_the_way_and_only_the_newest_is_kept(work):
    checkpoint(work, 5)
    checkpoint(work, 10)
    for item in ADAPTER.checkpoints(work):
        ADAPTER.taken(item, work)
    assert steps_of(work) == []
    assert [path.name for path in (work / "taken").iterdir()] == ["checkpoint-10"]


def test_a_resume_reads_beside_the_output_and_has_files_of_its_own_name(work, tmp_path):
    saved = checkpoint(tmp_path / "state", 5)
    (saved / "manifest.json").write_text("{}")
    placed = ADAPTER.place(saved, 5, work)
    assert placed == str(work / "resume" / "checkpoint-5")
    assert steps_of(work) == []
    assert not (work / "resume" / "checkpoint-5" / "manifest.json").exists()
    assert (work / "resume" / "checkpoint-5" / "optimizer.pt").samefile(saved / "optimizer.pt")


def test_a_printed_line_is_a_step(work):
    (work / "log.txt").write_text(LOG)
    one, two = ADAPTER.steps(work, work / "log.txt")
    assert one.step == 1
    assert one.metrics == {
        "loss": 5.764,
        "gradient_norm": 0.6435,
        "learning_rate": 0.000122,
        "token_accuracy": 0.03516,
    }
    assert (two.step, two.metrics) == (2, {"learning_rate": 0.0001, "accuracy": 0.5})


def test_the_first_line_after_a_resume_is_the_next_step(work):
    (work / "resume" / "checkpoint-40").mkdir(parents=True)
    (work / "log.txt").write_text(LOG)
    assert [item.step for item in ADAPTER.steps(work, work / "log.txt")] == [41, 42]


def test_without_a_log_there_are_no_steps(work):
    assert list(ADAPTER.steps(work, work / "log.txt")) == []


def test_final_weights_belong_to_the_newest_checkpoint_that_has_the_same_bytes(work):
    checkpoint(work, 5, where="taken", number=1)
    assert ADAPTER.final_step(work) is None
    weights(work / "output" / "model.safetensors", 1)
    assert ADAPTER.final_step(work) == 5
    checkpoint(work, 10, number=2)
    assert ADAPTER.final_step(work) is None
    weights(work / "output" / "model.safetensors", 2)
    assert ADAPTER.final_step(work) == 10


def test_a_run_that_was_resumed_at_its_target_has_its_weights_from_there(work):
    checkpoint(work, 20, where="resume", number=3)
    weights(work / "output" / "model.safetensors", 3)
    assert ADAPTER.final_step(work) == 20


def test_weights_of_no_checkpoint_have_no_step(work):
    weights(work / "output" / "model.safetensors")
    assert ADAPTER.final_step(work) is None


def test_other_files_of_weights_are_not_the_same(work):
    checkpoint(work, 5)
    weights(work / "output" / "model-00001-of-00001.safetensors")
    assert ADAPTER.final_step(work) is None


def test_it_saves_when_it_is_told_to_stop():
    assert ADAPTER.saves_on_sigterm


def test_a_rollout_has_several_steps_of_the_trainer(work, tmp_path):
    adapter = HuggingFaceAdapter(updates=2, saves_on_sigterm=False)
    for step in (3, 4, 6):
        checkpoint(work, step)
    assert [item.step for item in adapter.checkpoints(work)] == [2, 3]
    saved = checkpoint(tmp_path / "state", 6)
    assert adapter.place(saved, 3, work).endswith("/checkpoint-6")
    (work / "log.txt").write_text(LOG)
    assert [item.step for item in adapter.steps(work, work / "log.txt")] == [4]
