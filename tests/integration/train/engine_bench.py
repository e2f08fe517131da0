"""Inputs of very small real stages, and ways to run one here, or in several processes as a launcher does."""

import json
import multiprocessing
import os
import traceback
import uuid
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import tiny
import torch

from charter.artifacts.stage_dir import StageDir
from charter.errors import InterruptedRunError
from charter.spec.ppo_stage import PpoStage
from charter.spec.stage import DpoStage, JudgeStage, PreferenceModelStage, SftStage

CONSTITUTION = """
schema: charter.constitution/v1
principles:
  - {id: kind, critique: "Is it kind?", revision: "Make it kind.", compare: "Which is kinder?"}
"""
COMMON = {"steps": 4, "global_batch": 8, "seq_len": 64, "learning_rate": 1e-3, "dtype": "fp32", "schedule": "constant"}
SPECS = {
    "sft": SftStage(init="b", data=("d",), **COMMON),
    "preference_model": PreferenceModelStage(init="b", data=("d",), **COMMON),
    "dpo": DpoStage(init="b", data=("d",), **COMMON),
    "judge": JudgeStage(init="b", pairs=("d",), format="yes_no", **(COMMON | {"seq_len": 96})),
    "ppo": PpoStage(
        policy="p", reward="r", prompts=("q",), episodes=16, rollout_batch=8, minibatch=4, ppo_epochs=2,
        max_new_tokens=6, max_prompt_tokens=24, learning_rate=1e-3, value_learning_rate=1e-3, dtype="fp32",
    ),
}  # fmt: skip
SECONDS = 90
LOUD = 45.0
"""The end token's embedding, which is also its output weights, is so much larger: some answers end early, some late."""


def make_inputs(place: Path) -> Path:
    """A base model, a preference model of it, records, and a constitution."""
    from charter.train import preference_model

    model = tiny.language_model()
    with torch.no_grad():
        model.model.get_input_embeddings().weight[model.end_id] *= LOUD
    model.save(place / "base" / "model")
    rows = [
        {
            "id": pair.id,
            "prompt": [{"role": "user", "content": pair.prompt[0].content}],
            "chosen": [{"role": "assistant", "content": pair.chosen}],
            "rejected": [{"role": "assistant", "content": pair.rejected}],
            "messages": [
                {"role": "user", "content": pair.prompt[0].content},
                {"role": "assistant", "content": pair.chosen},
            ],
        }
        for pair in tiny.pairs()
    ]
    wanted = {"pairs": ("id", "prompt", "chosen", "rejected"), "prompts": ("id", "prompt"), "chats": ("id", "messages")}
    for name, keys in wanted.items():
        (place / name).mkdir()
        lines = [json.dumps({key: row[key] for key in keys}) for row in rows]
        (place / name / "records.jsonl").write_text("\n".join(lines) + "\n")
    (place / "constitution.yaml").write_text(CONSTITUTION)
    made = stage(place, place / "pm-stage", "preference_model", steps=8)
    preference_model.run(made)
    made.outputs.rename(place / "pm")
    return place


def stage(inputs: Path, path: Path, kind: str, *, frozen: dict | None = None, **changes) -> StageDir:
    """A stage directory of a kind; `changes` are of its spec, `frozen` of its layout."""
    read = {
        "sft": {"init": "base", "data": "chats"},
        "judge": {"init": "base", "pairs": "pairs"},
        "ppo": {"policy": "base", "reward": "pm", "prompts": "prompts"},
    }.get(kind, {"init": "base", "data": "pairs"})
    spec = replace(SPECS[kind], **changes)
    if kind == "ppo" and spec.ptx_weight:
        read = read | {"ptx_data": "chats"}
    if kind == "ppo" and spec.teacher is not None:
        read = {**read, "teacher": spec.teacher}
    settings = {"constitution": str(inputs / "constitution.yaml")} if kind == "judge" else {}
    return tiny.stage_dir(
        path,
        spec,
        {role: inputs / where for role, where in read.items()},
        kinds={"data": "critique" if kind == "sft" else "label", "ptx_data": "critique"},
        frozen={"threads": 1, "device": "cpu", **(frozen or {})},
        **settings,
    )


def run(found: StageDir, module: ModuleType) -> StageDir:
    """Run a stage to its end: here, or in as many forked processes as its layout says."""
    size = int(found.job.frozen.get("world_size", 1))
    if size == 1:
        module.run(found)
        return found
    context, group = multiprocessing.get_context("fork"), uuid.uuid4().hex
    started = [context.Process(target=_member, args=(rank, size, group, found.path, module)) for rank in range(size)]
    for process in started:
        process.start()
    for process in started:
        process.join(SECONDS)
        if process.is_alive():
            process.kill()
    told = [found.path / f"error-{rank}.txt" for rank in range(size)]
    errors = [item.read_text() for item in told if item.exists()]
    assert [process.exitcode for process in started] == [0] * size, "\n".join(errors)
    return found


def _member(rank: int, size: int, group: str, path: Path, module: ModuleType) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank), "CHARTER_GROUP": group}
    torch.set_num_threads(1)
    code = 0
    try:
        module.run(StageDir(path))
    except BaseException:
        (path / f"error-{rank}.txt").write_text(traceback.format_exc())
        code = 1
    os._exit(code)


def metrics(found: StageDir) -> list[dict]:
    return [json.loads(line) for line in (found.path / "metrics.jsonl").read_text().splitlines()]


def weights(found: StageDir, file: str = "model.safetensors") -> dict:
    """The published tensors."""
    from safetensors.torch import load_file

    return load_file(str(found.outputs / "model" / file))


def farthest(first: dict, second: dict) -> float:
    """The largest difference between two sets of tensors of the same names."""
    assert first.keys() == second.keys()
    return max((first[name].float() - second[name].float()).abs().max().item() for name in first)


def run_in_two(found: StageDir, module: ModuleType, *, parts: int) -> StageDir:
    """Run a stage in this process, stopped after so many parts of steps, and again to its end."""
    asked = iter(range(1000))
    with pytest.raises(InterruptedRunError, match="after a checkpoint"):
        module.run(StageDir(found.path, should_stop=lambda: next(asked) + 1 >= parts))
    assert not found.outputs.exists()
    torch.manual_seed(999)
    module.run(StageDir(found.path))
    return found
