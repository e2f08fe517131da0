"""verl's lines, as verl 0.9.1 prints them (utils/logger/aggregate_logger.py, utils/tracking.py)."""

import json
from pathlib import Path

import pytest

from charter.engines.verl.adapter import console_steps, file_steps

PPO = (
    "step:3 - actor/entropy:np.float64(0.5) - critic/vf_loss:0.25 - actor/pg_loss:-0.125 - actor/grad_norm:1.5 - "
    "actor/lr:np.float64(1e-06) - training/global_step:3 - training/epoch:0 - critic/score/mean:2.5 - "
    "critic/advantages/min:-1.5 - perf/total_num_tokens:4096 - perf/time_per_step:12.5 - timing_s/step:12.75"
)
SFT = "step:7 - train/loss:1.25 - train/lr:1e-05 - train/grad_norm:0.75 - train/global_tokens:2048 - train/mfu:0.1"


def test_a_line_of_ppo() -> None:
    [step] = console_steps([PPO + "\n"])
    assert step.step == 3
    assert step.tokens == 4096
    assert step.seconds == 12.5
    wanted = {"loss": -0.125, "gradient_norm": 1.5, "learning_rate": 1e-6, "reward": 2.5, "entropy": 0.5}
    assert {name: step.metrics[name] for name in wanted} == wanted
    assert step.metrics["value_loss"] == 0.25
    assert step.metrics["critic/advantages/min"] == -1.5


def test_a_line_of_sft_beside_a_progress_bar() -> None:
    [step] = console_steps(["Epoch 1/1:   3%|3         | 7/200 [00:01<00:30]\r step:6 - nothing", SFT])
    assert (step.step, step.tokens, step.seconds) == (7, 2048, None)
    assert (step.metrics["loss"], step.metrics["learning_rate"]) == (1.25, 1e-5)


def test_ray_names_its_task_before_each_line() -> None:
    [step] = console_steps([f"\x1b[36m(TaskRunner pid=4711)\x1b[0m {PPO}"])
    assert step.step == 3


@pytest.mark.parametrize(
    "line",
    [
        "step:0 - val-core/unknown/reward/mean@1:0.5",
        "step:7 - val/loss:1.5",
        "Saving checkpoint to: /job/checkpoints/global_step_7",
        "step: 7",
        "timestep:7 - train/loss:1.5",
        "step:0 - train/loss:1.5",
        "",
    ],
)
def test_what_is_no_training_step(line: str) -> None:
    assert list(console_steps([line])) == []


def test_a_line_that_is_half_written_gives_what_it_has() -> None:
    [step] = console_steps([PPO[: PPO.index("perf/time")] + "perf/time_per"])
    assert step.tokens == 4096
    assert step.seconds is None


def test_a_loss_that_is_not_a_number_is_told() -> None:
    [step] = console_steps(["step:1 - train/loss:nan - train/lr:0.0"])
    assert step.metrics["loss"] != step.metrics["loss"]


def test_json_lines_to_the_last_whole_one(tmp_path: Path) -> None:
    entries = [
        {"step": 1, "data": {"train/loss": 2.0, "train/lr": 0.0, "train/global_tokens": 10}},
        {"step": 1, "data": {"val/loss": 3.0}},
        {"step": 2, "data": {"train/loss": None, "training/global_step": 2, "timing_s/step": 1.5}},
    ]
    text = "".join(json.dumps(entry) + "\n" for entry in entries)
    (tmp_path / "from_0.jsonl").write_text(text + '{"step": 3, "data": {"train/l')
    first, second = file_steps(tmp_path / "from_0.jsonl")
    assert (first.step, first.tokens, first.metrics["loss"]) == (1, 10, 2.0)
    assert (second.step, second.seconds) == (2, 1.5)
    assert "loss" not in second.metrics
