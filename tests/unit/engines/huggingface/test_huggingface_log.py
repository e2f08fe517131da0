"""States that TRL's trainers wrote (tests/integration/imports/trainer_runs), and states as they may be broken."""

import json
from pathlib import Path

import pytest

from charter.engines.huggingface.adapter import find_state, read_state
from charter.errors import DataError

RUNS = Path(__file__).resolve().parents[3] / "integration" / "imports" / "trainer_runs"


def state(folder, **fields):
    content = {"global_step": 0, "max_steps": 0, "log_history": [], **fields}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "trainer_state.json"
    path.write_text(json.dumps(content))
    return path


def test_a_resumed_run_of_trl_is_read_whole():
    log = read_state(RUNS / "sft_resumed.json")
    assert [step.step for step in log.steps] == list(range(1, 13))
    assert log.starts == (0, 5)
    assert (log.last_step, log.target_step, log.micro_batch) == (12, 12, 4)
    assert log.runtime_seconds == 0.5685
    assert [step.tokens for step in log.steps[:2]] == [42, 39]
    assert log.steps[5].tokens == 45, "the counter began anew with the second process"
    assert sum(step.tokens for step in log.steps) == 218 + 300
    first, fifth = log.steps[0].metrics, log.steps[4].metrics
    assert first["loss"] == 4.607951641082764
    assert first["learning_rate"] == 2e-05
    assert first["token_accuracy"] == 0.0
    assert not {"step", "num_tokens", "mean_token_accuracy"} & set(first)
    assert fifth["eval_loss"] == 4.6022725105285645
    assert fifth["loss"] == 4.59828519821167, "an evaluation does not take the place of its step"
    assert "train_loss" not in log.steps[-1].metrics


def test_a_checkpoint_has_no_runtime_yet():
    log = read_state(RUNS / "sft_checkpoint_5.json")
    assert (log.last_step, log.target_step, log.runtime_seconds, log.starts) == (5, 7, None, (0,))


def test_a_reward_run_is_told_under_charters_names():
    log = read_state(RUNS / "reward.json")
    assert {"loss", "accuracy", "margin", "mean_reward"} <= set(log.steps[0].metrics)


def test_names_of_dpo_and_step_times_of_grpo(tmp_path):
    lines = [
        {"step": 5, "rewards/accuracies": 0.5, "rewards/margins": 1.0, "step_time": 2.0, "num_input_tokens_seen": 100},
        {"step": 10, "kl": 0.1, "reward": 2, "step_time": 3.0, "num_input_tokens_seen": 250, "loss": float("nan")},
    ]
    log = read_state(state(tmp_path, global_step=10, log_history=lines))
    assert log.steps[0].metrics == {
        "accuracy": 0.5, "reward_margin": 1.0, "step_time": 2.0,
    }  # fmt: skip
    assert [step.seconds for step in log.steps] == [2.0, 3.0], "of one step"
    assert [step.tokens for step in log.steps] == [100, 150]
    assert log.steps[1].metrics == {"kl": 0.1, "reward": 2.0, "step_time": 3.0}, "what is not finite is left out"


def test_the_counter_of_the_run_is_believed_before_that_of_the_process(tmp_path):
    lines = [{"step": 1, "num_tokens": 5, "num_input_tokens_seen": 9, "loss": 1.0}]
    log = read_state(state(tmp_path, global_step=1, log_history=lines))
    assert log.steps[0].tokens == 9


def test_of_several_runtimes_the_last_one_is_that_of_the_last_process(tmp_path):
    lines = [{"step": 1, "loss": 1.0}, {"step": 1, "train_runtime": 5.0}, {"step": 2, "loss": 0.5}]
    log = read_state(state(tmp_path, global_step=2, log_history=[*lines, {"step": 2, "train_runtime": 7.0}]))
    assert log.runtime_seconds == 7.0
    assert [step.step for step in log.steps] == [1, 2]


def test_the_newest_state_is_found(tmp_path):
    assert find_state(tmp_path) is None
    state(tmp_path / "checkpoint-9", global_step=9)
    newest = state(tmp_path / "checkpoint-10", global_step=10)
    assert find_state(tmp_path) == newest
    root = state(tmp_path, global_step=10)
    assert find_state(tmp_path) == root, "of two at one step the run's own knows the runtime"
    (tmp_path / "checkpoint-11").mkdir()
    (tmp_path / "checkpoint-11" / "trainer_state.json").write_text('{"global_step": 11, "log_h')
    assert find_state(tmp_path) == root, "a torn one is passed over"


def test_all_that_is_wrong_is_said_at_once(tmp_path):
    path = state(tmp_path, global_step="7", log_history=[{"loss": 1.0}, {"step": 2, "loss": 1.0}, 3])
    with pytest.raises(DataError) as caught:
        read_state(path)
    text = str(caught.value)
    assert "`global_step` must be a whole number, found '7'" in text
    assert "`log_history[0]`" in text
    assert "`log_history[2]`" in text
    assert "log_history[1]" not in text


@pytest.mark.parametrize("content", ["[]", '{"global_step": 1}', '{"global_step": 1, "log_'])
def test_what_is_no_state_is_refused(tmp_path, content):
    path = tmp_path / "trainer_state.json"
    path.write_text(content)
    with pytest.raises(DataError, match="trainer_state"):
        read_state(path)


def test_a_missing_file_is_said(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        read_state(tmp_path / "nothing.json")
