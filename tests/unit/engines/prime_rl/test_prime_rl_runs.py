"""Runs of prime-rl: checkpoints killed between any two files, final weights, and what it logs."""

import json
from pathlib import Path

import pytest

from charter.data.dataset import Turn
from charter.engines.prime_rl.adapter import PrimeRlAdapter, console_steps, file_steps
from charter.errors import StageError
from plain_stages import accepted_stage, handover

ADAPTER = PrimeRlAdapter()
FILES = ("orchestrator/progress.pt", "trainer/__0_0.distcp", "trainer/.metadata")
"""In the order in which they are written."""


def saved(work: Path, step: int, files: tuple[str, ...] = FILES) -> Path:
    place = work / "run" / "checkpoints" / f"step_{step}"
    for name in files:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(b"state")
    return place


def whole_ones(work: Path) -> list[int]:
    return [item.step for item in ADAPTER.checkpoints(work)]


def test_a_checkpoint_counts_when_both_have_written_theirs(tmp_path: Path) -> None:
    assert whole_ones(tmp_path) == []
    saved(tmp_path, 5)
    for count in range(len(FILES)):
        saved(tmp_path, 10, FILES[:count])
        assert whole_ones(tmp_path) == [5]
    saved(tmp_path, 10)
    assert whole_ones(tmp_path) == [5, 10]


def test_an_empty_end_is_not_whole(tmp_path: Path) -> None:
    (saved(tmp_path, 5) / "trainer" / ".metadata").write_bytes(b"")
    assert whole_ones(tmp_path) == []


def test_only_what_was_placed_lies_where_a_start_looks(tmp_path: Path) -> None:
    for step in (5, 10):
        saved(tmp_path, step)
    first, second = ADAPTER.checkpoints(tmp_path)
    ADAPTER.taken(first, tmp_path)
    ADAPTER.taken(second, tmp_path)
    assert whole_ones(tmp_path) == []
    kept = tmp_path / "kept"
    (tmp_path / "taken" / "step_10").rename(kept)
    saved(tmp_path, 12, FILES[:2])
    (tmp_path / "run" / "metrics.jsonl").write_text("{}")
    assert ADAPTER.place(kept, 10, tmp_path) == str(tmp_path / "run" / "checkpoints" / "step_10")
    assert whole_ones(tmp_path) == [10]
    assert sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir()) == ["step_10"]
    assert list(ADAPTER.steps(tmp_path, tmp_path / "log")) == []


def weights(work: Path, step: int, *names: str) -> None:
    place = work / "run" / "broadcasts" / f"step_{step}"
    place.mkdir(parents=True)
    for name in names:
        (place / name).write_bytes(name.encode())


def test_final_weights_are_those_that_vllm_was_given_last(tmp_path: Path) -> None:
    given = handover(accepted_stage("prime_rl", "ppo"))
    base = tmp_path / "base"
    base.mkdir()
    (base / "config.json").write_text("{}")
    object.__setattr__(given.paths, "models", {"policy": str(base)})
    assert ADAPTER.final_step(tmp_path) is None
    with pytest.raises(StageError, match="no whole weights"):
        ADAPTER.convert(tmp_path, given, tmp_path / "out")
    weights(tmp_path, 3, "model.safetensors", "STABLE")
    weights(tmp_path, 4, "model.safetensors")
    assert ADAPTER.final_step(tmp_path) == 3
    assert ADAPTER.convert(tmp_path, given, tmp_path / "out")["step"] == 3
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["config.json", "model.safetensors"]
    weights(tmp_path, 5, "adapter_model.safetensors", "STABLE")
    with pytest.raises(StageError, match="adapter alone"):
        ADAPTER.convert(tmp_path, given, tmp_path / "more")


def test_a_row_is_what_the_taskset_reads() -> None:
    row = ADAPTER.prompt_row([Turn("user", "2 + 2?")], kind="ppo", index=0, carried='{"row": {}}')
    assert row == {"prompt": [{"role": "user", "content": "2 + 2?"}], "charter": '{"row": {}}'}


TRAINER = (
    "\x1b[2m17:58:37\x1b[0m\x1b[32m\x1b[1mSUCCESS\x1b[0m\x1b[32m \x1b[22mStep 3 |   12.5s | Loss -0.0125 | "
    "Entropy 0.5000 | Mismatch KL 0.0010 | Grad. Norm 1.5000 | LR 1.00e-06 | Throughput 900 tokens/s | MFU 9.0% | "
    "Peak Mem. 9.0 GiB\x1b[0m"
)
ORCHESTRATOR = (
    "17:58:40 SUCCESS Step 3 |  2m 3s | Reward 0.2500 | Trainable 60/64 (93.8%) | Turns 1.0 | Branches 1.0 | "
    "Max Off-Policy 2 | Error 0.0% | Cancelled 1.5% | Truncation 3.1%"
)


def test_a_line_of_the_trainer_tells_its_update() -> None:
    [step] = console_steps(["17:58:37    INFO Starting training loop", TRAINER + "\n"])
    assert (step.step, step.seconds) == (3, 12.5)
    assert step.metrics == {
        "loss": -0.0125, "entropy": 0.5, "mismatch_kl": 0.001, "gradient_norm": 1.5, "learning_rate": 1e-6,
    }  # fmt: skip


def test_a_line_of_the_orchestrator_tells_reward_and_age() -> None:
    [step] = console_steps([ORCHESTRATOR])
    assert (step.step, step.seconds) == (3, 123.0)
    assert step.metrics == {"reward": 0.25, "age_max": 2.0}


def rows(step: int, *, reward: float) -> list[dict[str, float]]:
    """In the order in which the two processes log a step."""
    return [
        {"step": step, "time": 10.0 * step, "train/agg/effective/agent/reward/mean": reward, "time/step": 99.0,
         "off_policy/mean": 0.5, "progress/tokens": 4096},
        {"step": step, "time": 10.0 * step + 1, "perf/mfu": 9.0},
        {"step": step, "time": 10.0 * step + 2, "optim/lr": 1e-6, "optim/grad_norm": 2.0},
        {"step": step, "time": 10.0 * step + 3, "loss/mean": 0.125, "entropy/all/mean": 0.5},
        {"step": step, "time": 10.0 * step + 4, "time/step": 8.0, "time/forward_backward": 5.0},
        {"step": step, "time": 10.0 * step + 5, "disk/free": 1.0},
    ]  # fmt: skip


def test_rows_of_one_step_are_one_step(tmp_path: Path) -> None:
    ahead = rows(2, reward=0.5)
    lines = [*rows(1, reward=0.25)[:4], ahead[0], *rows(1, reward=0.25)[4:], *ahead[1:], rows(3, reward=1.0)[0]]
    file = tmp_path / "metrics.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)) + '\n{"step": 4, "ti')
    first, second = file_steps(file)
    assert [(item.step, item.seconds, item.time, item.tokens) for item in (first, second)] == [
        (1, 8.0, 14.0, 4096),
        (2, 8.0, 24.0, 4096),
    ]
    wanted = {"reward": 0.5, "loss": 0.125, "learning_rate": 1e-6, "gradient_norm": 2.0, "age_mean": 0.5}
    assert {name: second.metrics[name] for name in wanted} == wanted
    assert "time" not in second.metrics


def test_a_resumed_run_repeats_its_steps(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text("\n".join(json.dumps(row) for step in (1, 2, 2) for row in rows(step, reward=0.0)) + "\n")
    assert [item.step for item in file_steps(file)] == [1, 2, 2]
    assert list(file_steps(tmp_path / "none")) == []
