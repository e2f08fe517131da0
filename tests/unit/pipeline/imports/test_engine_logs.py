"""Logs of engines as their own code prints them: the format is found, resumes and torn ends are seen."""

import json

import pytest

from charter.errors import DataError, UsageError
from charter.run.imports.importing import read_run
from charter.run.imports.logs import read_engine_log, seconds_per_step


def verl(step):
    return (
        f"(TaskRunner pid=7) step:{step} - training/global_step:{step} - critic/score/mean:0.5 - "
        f"perf/total_num_tokens:4096 - perf/time_per_step:{10 + step}.5"
    )


def megatron(step):
    return (
        f" [2026-11-22 13:00:0{step}.000000] iteration {step:8d}/{100:8d} | consumed samples: {step * 8:12d} |"
        f" elapsed time per iteration (ms): {1500.0:.1f} | learning rate: {1e-5:.6E} | lm loss: {2.5:.6E} |"
        " number of nan iterations:   0 |"
    )


def openrlhf(step):
    return f"INFO 11-22 13:40:01 x] ✨ Global step {step}: {{'reward': -1.5, 'timing/step_total': 20.0}}"


def nemo_rl(step):
    return f"========= Step {step}/10 =========\n📊 Training Results:\n  • Loss: 1.25\n  • Total step time: 12.34s"


def prime_rl(step):
    return f"17:58:37 SUCCESS Step {step} | {10.5}s | Loss 0.0125 | Entropy 0.5000 | LR 1.00e-06 | MFU 9.0%"


def skyrl(step):
    values = f"{{'policy/final_loss': '0.0125',\n 'timing/step': '9.5000',\n 'trainer/global_step': {step}}}"
    return f"2026-11-28 06:00:00.000 | INFO     | skyrl.train.utils.tracking:log:190 - Step {step}: \n{values}"


LINES = {
    "nemo_rl": nemo_rl, "prime_rl": prime_rl, "verl": verl, "megatron": megatron, "openrlhf": openrlhf, "skyrl": skyrl,
}  # fmt: skip


def written(tmp_path, *lines, end="\n", name="train.log"):
    path = tmp_path / name
    path.write_text("\n".join(["something else", *lines]) + end)
    return path


@pytest.mark.parametrize(
    ("engine", "seconds"),
    [("verl", 12.5), ("megatron", 1.5), ("openrlhf", 20.0), ("nemo_rl", 12.34), ("prime_rl", 10.5), ("skyrl", 9.5)],
)
def test_the_format_of_a_log_is_found_by_its_steps(tmp_path, engine, seconds):
    path = written(tmp_path, *(LINES[engine](step) for step in (1, 2, 3)))
    found = read_run(str(path))
    assert (found.format, found.last_step, found.notes) == (engine, 3, ())
    assert found.attempts[0].first_step == 0
    assert seconds_per_step(found)[0] == seconds
    assert read_run(str(path), format=engine).identity == found.identity


def test_a_resumed_run_is_several_processes(tmp_path):
    found = read_engine_log(written(tmp_path, *(verl(step) for step in (1, 2, 3, 3, 4))))
    assert [(item.first_step, item.last_step) for item in found.attempts] == [(0, 3), (2, 4)]
    assert [item.seconds for item in found.attempts] == [37.5, 28.0]
    assert found.attempts[0].tokens == 3 * 4096


def test_a_torn_end_is_left_out_and_said(tmp_path):
    found = read_engine_log(written(tmp_path, verl(1), verl(2), verl(3)[:-30], end=""))
    assert found.last_step == 2
    assert found.notes == (
        "line 4 has no end and was left out: the log was still being written, or was cut",
    )  # fmt: skip
    whole = read_engine_log(written(tmp_path, verl(1), end="\n   "))
    assert whole.notes == ()


def test_json_lines_of_verl(tmp_path):
    lines = [json.dumps({"step": n, "data": {"train/loss": 1.0, "train/global_tokens": 9}}) for n in (1, 2)]
    found = read_engine_log(written(tmp_path, *lines, name="run.jsonl"), "verl")
    assert [step.metrics["loss"] for step in found.attempts[0].steps] == [1.0, 1.0]
    assert read_engine_log(written(tmp_path, *lines, name="run.jsonl")).format == "verl"


def test_what_is_no_log_says_what_would_work(tmp_path):
    path = written(tmp_path, "nothing of note")
    with pytest.raises(UsageError, match="say what it is with --format"):
        read_engine_log(path)
    with pytest.raises(DataError, match="no finished step of megatron is in its 2 lines"):
        read_engine_log(path, "megatron")
    with pytest.raises(UsageError, match="can be read as verl and as megatron"):
        read_engine_log(written(tmp_path, verl(1), megatron(1)))
    with pytest.raises(UsageError, match="logs of mlflow cannot be read"):
        read_engine_log(path, "mlflow")
