"""Stages as files of prime-rl: values, refusals, and the JSON schema recorded from its own classes."""

import copy
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from charter.engines import handover_engine, render
from charter.engines.common.rendered import RenderedRun
from charter.engines.common.request import RlPlacement
from charter.engines.prime_rl import capabilities
from charter.errors import SpecError
from charter.spec.layout import Adapter, Recompute, ZeroStage
from charter.spec.rewards import Environment, Mismatch, Reward
from charter.spec.stage_base import Guard, StageResources
from plain_stages import accepted_stage, handover, layout_of

FILE = Path(capabilities.__file__).with_name("schema.json")
SCHEMA = json.loads(FILE.read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def rendered(layout: dict[str, Any] | None = None, settings: dict[str, Any] | None = None, **stage: Any) -> RenderedRun:
    made = accepted_stage("prime_rl", "ppo", **stage)
    return render(handover(made, layout_of(made, **(layout or {})), **(settings or {})))


def content(run: RenderedRun) -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load(run.files["rl.yaml"])
    return values


def at(run: RenderedRun, key: str) -> Any:
    value: Any = content(run)
    for name in key.split("."):
        value = value[name]
    return value


def errors(values: object) -> list[str]:
    return [error.message for error in VALIDATOR.iter_errors(values)]


ACCEPTED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"adapter": Adapter(rank=8, alpha=16)}, {}),
    *(({"schedule": name, "warmup_steps": steps}, {}) for name in ("constant", "linear", "cosine") for steps in (0, 3)),
    ({"surrogate": "cispo", "clip_ratio": 1.0, "scale_advantages": "mean"}, {}),
    ({"surrogate": "dppo", "clip_ratio": 0.1, "clip_ratio_high": 0.3}, {}),
    ({"dual_clip": 3.0, "clip_ratio_high": 0.28, "max_age": 4}, {}),
    ({"resources": StageResources(compile=True, attention="flash_attention_2")}, {}),
    ({}, {"recompute": Recompute.FULL, "offload_optimizer": True}),
    ({}, {"offload_parameters": True, "offload_optimizer": True}),
]


@pytest.mark.parametrize(("stage", "layout"), ACCEPTED)
def test_prime_rls_classes_take_every_key_and_value(stage: dict[str, Any], layout: dict[str, Any]) -> None:
    assert errors(content(rendered(layout, **stage))) == []


WRONG: list[tuple[str, object, str]] = [
    ("orchestrator.max_async_level", 2, "max_async_level"),
    ("trainer.optim.lr", "fast", "fast"),
    ("deployment.num_train_gpus", 1.5, "1.5"),
    ("orchestrator.max_off_policy_steps", -1, "minimum of 0"),
    ("trainer.loss.type", "ppo", "ppo"),
]


@pytest.mark.parametrize(("key", "value", "said"), WRONG)
def test_a_wrong_key_type_or_range_is_noticed(key: str, value: object, said: str) -> None:
    values = copy.deepcopy(content(rendered()))
    *path, last = key.split(".")
    place = values
    for name in path:
        place = place[name]
    place[last] = value
    assert any(said in message for message in errors(values)), errors(values)


SOLVED = Reward(name="solved", kind="env")
GAME = Environment(call="verifiers:game", role="user", max_turns=3, observation_tokens=64)


def test_a_taskset_of_verifiers_plays_the_rows_tasks() -> None:
    arguments = {"taskset": {"highest": 9}, "agent": {"timeout": {"rollout": 60.0}}}
    run = rendered(reward=None, rewards=(SOLVED,), environment=replace(GAME, arguments=arguments))
    # Its classes narrow the taskset's section by the id; what is recorded of them is that of any.
    values = content(run)
    own = values["orchestrator"]["train"]["source"][0]["env"]["taskset"].pop("highest")
    assert (own, errors(values)) == (9, [])
    [source] = at(run, "orchestrator.train.source")
    assert source["env"]["taskset"] == {"highest": 9, "id": "charter_taskset"}
    assert source["env"]["agent"] == {
        "timeout": {"rollout": 60.0},
        "harness": {"id": "null"},
        "runtime": {"type": "subprocess"},
        "max_turns": 3,
        "max_output_tokens": 512,
    }
    # The prompt, the policy's turns, and two replies between three of them.
    assert at(run, "inference.vllm.max_model_len") == 512 + 512 + 2 * 64
    assert "ID = 'game'" in run.files["charter_taskset_name.py"]
    assert "rewards.py" not in run.files
    how = {row.field: (row.how, row.to) for row in run.mapping}
    assert how["stage.environment"] == ("computed", ("rl.yaml: orchestrator.train.source",))


def test_a_taskset_of_a_file_lies_beside_the_export() -> None:
    made = accepted_stage("prime_rl", "ppo", reward=None, rewards=(SOLVED,), environment=replace(GAME, call=OWN_GAME))
    run = render(replace(handover(made, layout_of(made)), sources={"games/guess.py": "import verifiers.v1 as vf\n"}))
    assert run.files["own_taskset.py"] == "import verifiers.v1 as vf\n"
    assert "ID = 'own_taskset'" in run.files["charter_taskset_name.py"]


OWN_GAME = "verifiers:games/guess.py"
NOT_PLAYED: list[tuple[dict[str, Any], str]] = [
    ({"rewards": (replace(SOLVED, weight=0.5),)}, "of weight 1"),
    ({"rewards": (replace(SOLVED, score="right"),)}, "without a score"),
    ({"rewards": (SOLVED, Reward(name="form", kind="function", call="charter:number"))}, "one reward of kind env"),
    ({"environment": replace(GAME, turn_tokens=16)}, "leave turn_tokens out"),
    ({"environment": Environment(tools={"calc": "charter:calculator"})}, "the calls of this stage are tags"),
]


@pytest.mark.parametrize(("changes", "says"), NOT_PLAYED)
def test_what_a_taskset_cannot_be_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(SpecError, match=says):
        rendered(**{"reward": None, "rewards": (SOLVED,), "environment": GAME, **changes})


def test_the_schema_is_of_the_commit_that_is_rendered() -> None:
    assert (SCHEMA["version"], SCHEMA["commit"], SCHEMA["date"]) == (
        capabilities.VERSION,
        capabilities.COMMIT,
        "2026-08-21",
    )
    engine = handover_engine("prime_rl")
    assert engine.version == capabilities.VERSION
    assert capabilities.COMMIT[:7] in engine.checked_by
    assert "description" not in FILE.read_text()


SAMPLES, VLLM, MODEL = "orchestrator.train.sampling", "inference.vllm", "trainer.model"
VALUES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"max_steps": 64, "run": {"name": "stage", "dir": "run"}, "output_dir": ".", f"{VLLM}.seed": 7}),
    ({}, {"orchestrator.batch_size": 64, "orchestrator.group_size": 4, "orchestrator.algo.type": "grpo"}),
    ({}, {"deployment.num_train_gpus": 4, "deployment.num_infer_gpus": 4, "deployment.gpus_per_node": 8}),
    ({"max_age": 3}, {"orchestrator.max_off_policy_steps": 3}),
    ({"scale_advantages": "mean"}, {"orchestrator.algo.type": "max_rl"}),
    ({"learning_rate": 2e-5, "weight_decay": 0.1}, {"trainer.optim.lr": 2e-5, "trainer.optim.weight_decay": 0.1}),
    ({"beta1": 0.8, "beta2": 0.99}, {"trainer.optim.betas1": 0.8, "trainer.optim.betas2": 0.99}),
    ({"gradient_clip": 0.5, "checkpoint_every": 5}, {"trainer.optim.max_norm": 0.5, "ckpt.interval": 5}),
    ({"temperature": 0.7, "max_new_tokens": 100}, {
        f"{SAMPLES}.temperature": 0.7,
        f"{SAMPLES}.max_completion_tokens": 100,
        f"{VLLM}.max_model_len": 612,
        "seq_len": 1224,
    }),
    ({"clip_ratio": 0.1, "clip_ratio_high": 0.3}, {"trainer.loss.kwargs.low": 0.1, "trainer.loss.kwargs.high": 0.3}),
    ({"schedule": "linear", "warmup_steps": 4, "min_learning_rate_ratio": 0.5}, {
        "trainer.scheduler": {"type": "linear", "warmup_steps": 4, "decay_steps": 60, "min_lr": 5e-7},
    }),
    ({"warmup_steps": 4}, {
        "trainer.scheduler": {"type": "linear", "warmup_steps": 4, "decay_steps": 0, "min_lr": 0.0},
    }),
    ({"adapter": Adapter(rank=8, alpha=16)}, {f"{MODEL}.lora": {"rank": 8, "alpha": 16.0, "dropout": 0.0}}),
    ({}, {"weight_broadcast.type": "filesystem", "orchestrator.train.filter_zero_advantages": False}),
]  # fmt: skip


@pytest.mark.parametrize(("stage", "wanted"), VALUES)
def test_fields_have_prime_rls_names(stage: dict[str, Any], wanted: dict[str, Any]) -> None:
    run = rendered(**stage)
    assert {key: at(run, key) for key in wanted} == wanted


JUDGE = Reward(name="good", kind="judge", model="big")
MODEL_REWARD = Reward(name="pm", kind="preference_model", model="pm")
RIGHT = Reward(name="right", kind="function", call="charter:number")
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("asynchrony", {"asynchrony": None, "max_age": None}, "always draws ahead"),
    ("asynchrony", {"asynchrony": "one_step_off", "max_age": None}, "changes weights while answers are drawn"),
    ("scale_advantages", {"scale_advantages": "group"}, "divides by no deviation"),
    ("scale_advantages", {"scale_advantages": "batch"}, "divides by no deviation"),
    ("estimator", {"estimator": "rloo"}, "mean of its whole group"),
    ("kl_coefficient", {"kl_coefficient": 0.01}, "holds no reference model"),
    ("minibatch", {"minibatch": 32}, "minibatch must be rollout_batch"),
    ("rollout_batch", {"samples_per_prompt": 3}, "must divide it"),
    ("ppo_epochs", {"ppo_epochs": 2}, "once"),
    ("loss_aggregation", {"loss_aggregation": "sequence"}, "all tokens of a batch"),
    ("mismatch", {"mismatch": Mismatch(method="tis", high=2.0)}, "nothing left to correct"),
    ("mismatch_clip", {"mismatch_clip": 2.0}, "nothing left to correct"),
    ("equal_groups", {"equal_groups": "drop"}, "every answer whose advantage is 0"),
    ("entropy_weight", {"entropy_weight": 0.1}, "not told the entropy"),
    ("top_p", {"top_p": 0.9}, "top_p 1"),
    ("min_new_tokens", {"min_new_tokens": 1}, "no min_tokens"),
    ("dtype", {"dtype": "fp32"}, "bfloat16"),
    ("dtype", {"dtype": "fp8"}, "model classes"),
    ("optimizer", {"optimizer": "adamw_8bit"}, "8 bits"),
    ("guard", {"guard": Guard()}, "no guard"),
    ("adapter", {"adapter": Adapter(rank=8, base_bits=4)}, "4 bits"),
    ("resources", {"resources": StageResources(attention="sdpa")}, "flash kernels"),
    ("reward", {"rewards": (), "reward": "pm"}, "serves no reward model"),
    ("rewards", {"rewards": (RIGHT, JUDGE)}, "beside the engine, and an export has none"),
    ("rewards", {"rewards": (RIGHT, MODEL_REWARD)}, "by a model or by functions"),
    ("warmup_steps", {"warmup_steps": 64}, "before the last of 64 steps"),
]


@pytest.mark.parametrize(("field", "stage", "reason"), REFUSED)
def test_what_it_cannot_express_is_refused_by_name(field: str, stage: dict[str, Any], reason: str) -> None:
    with pytest.raises(SpecError) as caught:
        rendered(**stage)
    assert [problem.path for problem in caught.value.problems] == [f"pipeline.stage.{field}"]
    assert reason in caught.value.problems[0].message


LAYOUTS: list[tuple[str, dict[str, Any]]] = [
    ("zero", {"zero": ZeroStage.GRADIENTS}),
    ("recompute", {"recompute": Recompute.SELECTIVE}),
    ("tensor", {"data": 2, "tensor": 2}),
    ("context", {"data": 2, "context": 2}),
    ("sequence_parallel", {"sequence_parallel": True}),
]


@pytest.mark.parametrize(("field", "layout"), LAYOUTS)
def test_a_layout_that_it_cannot_run_is_refused(field: str, layout: dict[str, Any]) -> None:
    with pytest.raises(SpecError) as caught:
        rendered(layout)
    assert [problem.path for problem in caught.value.problems] == [f"layout.{field}"]


MACHINES: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"placement": RlPlacement()}, "accelerators of its own"),
    ({"data": 2}, {}, "uses 6 accelerators, the machine has 8"),
    ({}, {"nodes": 2}, "not for 2 nodes"),
]


@pytest.mark.parametrize(("layout", "settings", "reason"), MACHINES)
def test_a_machine_that_it_does_not_fill_is_refused(
    layout: dict[str, Any], settings: dict[str, Any], reason: str
) -> None:
    with pytest.raises(SpecError, match=reason) as caught:
        rendered(layout, settings)
    assert [problem.path for problem in caught.value.problems] == ["pipeline.stage.resources"]


def test_what_means_another_formula_is_not_among_its_formulas() -> None:
    assert rendered(clip_ratio_high=0.28).formulas == ("advantage.dr_grpo", "loss.ppo.token")
    assert rendered(scale_advantages="mean", surrogate="cispo", clip_ratio=1.0).formulas == (
        "advantage.maxrl",
        "loss.cispo.paper",
    )
    assert rendered(surrogate="dppo").formulas == ("advantage.dr_grpo", "loss.dppo")


def test_dppo_is_its_own_loss_and_needs_no_file() -> None:
    run = rendered(surrogate="dppo", clip_ratio=0.1, clip_ratio_high=0.3)
    assert at(run, "trainer.loss") == {
        "adv_tau": 1.0, "kl_tau": 1e-3, "dppo_mask_low": 0.1, "dppo_mask_high": 0.3, "type": "default",
    }  # fmt: skip
    assert "charter_loss.py" not in run.files
    assert "charter_loss.py" in rendered().files


def test_a_start_goes_on_from_the_newest_whole_checkpoint(tmp_path: Path) -> None:
    """The script, with a program of that name in the place of prime-rl's, which says how it was called."""
    (tmp_path / "run_rl.py").write_text(rendered().files["run_rl.py"])
    package = tmp_path / "prime_rl" / "entrypoints"
    package.mkdir(parents=True)
    shown = "json.dumps([sys.argv[1:], os.environ['PYTHONPATH'], os.environ['PATH']])"
    (package / "rl.py").write_text(f"import json, os, sys\n\n\ndef main():\n    print({shown})\n")

    def called() -> Any:
        command = [sys.executable, "run_rl.py", "@", "rl.yaml"]
        return json.loads(subprocess.run(command, cwd=tmp_path, capture_output=True, check=True).stdout)

    words, modules, programs = called()
    assert words == ["@", "rl.yaml", "--clean"]
    assert modules.split(os.pathsep)[0] == str(tmp_path)
    assert programs.split(os.pathsep)[0] == str(Path(sys.executable).parent)
    for step, parts in ((5, ("trainer/.metadata", "orchestrator/progress.pt")), (10, ("orchestrator/progress.pt",))):
        for part in parts:
            path = tmp_path / f"run/checkpoints/step_{step}" / part
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"x")
    assert called()[0] == ["@", "rl.yaml", "--resume.step", "5"]
