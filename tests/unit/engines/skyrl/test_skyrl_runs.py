"""Runs of SkyRL: checkpoints killed between any two files, final weights, and what it logs."""

import json
import zipfile
from pathlib import Path

import pytest

from charter.data.dataset import Turn
from charter.engines.skyrl.adapter import SkyRlAdapter, console_steps, file_steps
from charter.errors import StageError
from plain_stages import accepted_stage, handover

ADAPTER = SkyRlAdapter()
RANKS = 2
SHARDS = [
    f"policy/{kind}_world_size_{RANKS}_rank_{rank}.pt"
    for kind in ("model", "optim", "extra_state")
    for rank in range(RANKS)
]
FILES = (*SHARDS, "policy/huggingface/config.json", "policy/fsdp_config.json", "data.pt", "trainer_state.pt")
"""In the order in which they are written; then the step is called whole."""


def saved(work: Path, step: int, files: tuple[str, ...] = FILES, *, called_whole: bool = True) -> Path:
    place = work / "checkpoints" / f"global_step_{step}"
    for name in files:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".pt"):
            with zipfile.ZipFile(place / name, "w") as archive:
                archive.writestr("data", "state")
        else:
            (place / name).write_text(json.dumps({"world_size": RANKS}))
    if called_whole:
        (work / "checkpoints" / "latest_ckpt_global_step.txt").write_text(str(step))
    return place


def whole_ones(work: Path) -> list[int]:
    return [item.step for item in ADAPTER.checkpoints(work)]


def test_a_checkpoint_counts_when_every_rank_has_written(tmp_path: Path) -> None:
    assert whole_ones(tmp_path) == []
    saved(tmp_path, 5)
    for count in range(1, len(FILES)):
        saved(tmp_path, 10, FILES[:count], called_whole=False)
        assert whole_ones(tmp_path) == [5]
    saved(tmp_path, 10, called_whole=False)
    assert whole_ones(tmp_path) == [5]
    saved(tmp_path, 10)
    assert whole_ones(tmp_path) == [5, 10]
    (tmp_path / "checkpoints" / "global_step_10" / SHARDS[0]).write_bytes(b"PK torn")
    assert whole_ones(tmp_path) == [5]


def test_only_what_was_placed_is_gone_on_from(tmp_path: Path) -> None:
    for step in (5, 10):
        saved(tmp_path, step)
    for item in ADAPTER.checkpoints(tmp_path):
        ADAPTER.taken(item, tmp_path)
    assert whole_ones(tmp_path) == []
    kept = tmp_path / "kept"
    (tmp_path / "taken" / "global_step_10").rename(kept)
    saved(tmp_path, 12)
    (tmp_path / "metrics.jsonl").write_text(row(12))
    assert ADAPTER.place(kept, 10, tmp_path) == str(tmp_path / "resume" / "global_step_10")
    assert (tmp_path / "resume" / "global_step_10" / "data.pt").exists()
    assert whole_ones(tmp_path) == []
    assert list(ADAPTER.steps(tmp_path, tmp_path / "log")) == []


def exported(work: Path, step: int, *names: str) -> None:
    place = work / "export" / f"global_step_{step}" / "policy"
    place.mkdir(parents=True)
    for name in names:
        (place / name).write_bytes(name.encode())


def test_final_weights_are_those_that_were_saved_whole(tmp_path: Path) -> None:
    given = handover(accepted_stage("skyrl", "ppo"))
    base = tmp_path / "base"
    base.mkdir()
    (base / "config.json").write_text("{}")
    object.__setattr__(given.paths, "models", {"policy": str(base)})
    assert ADAPTER.final_step(tmp_path) is None
    with pytest.raises(StageError, match="no whole weights"):
        ADAPTER.convert(tmp_path, given, tmp_path / "out")
    exported(tmp_path, 3, "model.safetensors", "tokenizer_config.json")
    exported(tmp_path, 4, "model.safetensors")
    assert ADAPTER.final_step(tmp_path) == 3
    assert ADAPTER.convert(tmp_path, given, tmp_path / "out")["step"] == 3
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["config.json", "model.safetensors"]
    exported(tmp_path, 5, "adapter_model.safetensors", "tokenizer_config.json")
    with pytest.raises(StageError, match="adapter alone"):
        ADAPTER.convert(tmp_path, given, tmp_path / "more")


def test_a_row_is_what_the_environment_reads() -> None:
    given = ADAPTER.prompt_row([Turn("user", "2 + 2?")], kind="ppo", index=0, carried='{"row": {}}')
    assert given == {"prompt": [{"role": "user", "content": "2 + 2?"}], "charter": '{"row": {}}'}


PRINTED = """\
2026-11-28 06:00:00.000 | INFO     | skyrl.train.trainer:train:412 - {'final_loss': 0.5}
2026-11-28 06:00:01.000 | INFO     | skyrl.train.utils.tracking:log:190 - Step 3: \n\
{'generate/batch_num_seq': 64,
 'policy/final_loss': '-0.0125',
 'policy/grad_norm': np.float32(1.5),
 'policy/policy_lr': '0.0000',
 'reward/avg_raw_reward': '0.2500',
 'timing/step': '12.5000',
 'trainer/global_step': 3}
2026-11-28 06:00:02.000 | INFO     | skyrl.train.utils.utils:__exit__:60 - Finished: 'step', time cost: 12.50s
"""


@pytest.mark.parametrize("head", ["", "(train pid=4711) ", "\x1b[36m(train pid=4711, ip=10.0.0.1)\x1b[0m "])
def test_a_printed_dictionary_is_a_step(head: str) -> None:
    [step] = console_steps([f"{head}{line}\n" for line in PRINTED.splitlines()])
    assert (step.step, step.seconds) == (3, 12.5)
    named = {"loss": -0.0125, "gradient_norm": 1.5, "reward": 0.25, "generate/batch_num_seq": 64.0}
    assert step.metrics == {**named, "timing/step": 12.5, "trainer/global_step": 3.0}


def test_an_evaluation_is_no_step() -> None:
    lines = ["| x:log:190 - Step 0: ", "{'eval/all/avg_score': '0.5000'}", "| x:log:190 - Step 1: ", "{'torn': '0.5"]
    assert list(console_steps(lines)) == []


def row(step: int) -> str:
    values = {"policy/final_loss": 0.125, "policy/policy_lr": 1e-6, "timing/step": 8.0, "trainer/global_step": step}
    return json.dumps({"step": step, "time": 10.0 * step, "data": values}) + "\n"


def test_the_file_of_metrics_has_all_digits_and_times(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text(
        row(1) + '{"step": 1, "time": 1.0, "data": {"eval/score": 1.0}}\n' + row(2) + row(2) + '{"step": 3, "ti'
    )
    steps = list(file_steps(file))
    assert [(item.step, item.seconds, item.time) for item in steps] == [(1, 8.0, 10.0), (2, 8.0, 20.0), (2, 8.0, 20.0)]
    assert steps[0].metrics["learning_rate"] == 1e-6
    assert list(file_steps(tmp_path / "none")) == []
