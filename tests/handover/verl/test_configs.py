"""verl's own code accepts what is rendered: Hydra, validate_config, its configuration classes, its command lines."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from engine_case import ask_engine, engine_python
from engine_stages import handover, ppo, sft, sharded

from charter.engines.common.request import Handover, HandoverPaths, RlPlacement, RolesTogether
from charter.engines.verl.mapping import render_verl
from charter.spec.layout import Adapter, Layout, Recompute, ZeroStage
from charter.spec.rewards import Reward
from charter.spec.stage_base import StageResources

PROBE = Path(__file__).parent / "probe_configs.py"
OFFLOADED = RlPlacement(arrangement="offloaded", generator_tensor=2)
TRAINERS = sharded(32, data=4)
APART = RlPlacement(
    arrangement="async",
    groups=(
        RolesTogether(roles=("policy",), num_accelerators=4, layout=TRAINERS),
        RolesTogether(roles=("generate",), num_accelerators=4, layout=Layout(data=2, tensor=2)),
    ),
    generator_tensor=2,
)
RIGHT = Reward(name="right", kind="function", call="charter:number")
SHORT = Reward(name="short", kind="function", call="charter:overlong", arguments={"longest": 512, "cache": 128})
CASES: dict[str, Handover] = {
    "ppo": handover("verl", ppo(), sharded(32)),
    "ppo_everything": handover(
        "verl",
        ppo(
            kl_estimator="k3",
            mismatch_clip=2.0,
            value_warmup_rollouts=2,
            schedule="cosine",
            warmup_steps=3,
            optimizer="adamw_8bit",
            loss_aggregation="sequence",
            entropy_weight=0.01,
            weight_decay=0.1,
            ppo_epochs=2,
        ),
        sharded(32, recompute=Recompute.FULL, offload_parameters=True, offload_optimizer=True),
        resume_from="/job/checkpoints/global_step_4",
    ),
    "grpo_offloaded": handover(
        "verl",
        ppo(estimator="grpo", samples_per_prompt=4),
        sharded(32, data=4, context=2, micro_batch=8),
        placement=OFFLOADED,
    ),
    "rloo_lora": handover(
        "verl",
        ppo(estimator="rloo", samples_per_prompt=2, whiten_advantages=False, adapter=Adapter(rank=8, alpha=16)),
        sharded(32),
    ),
    "grpo_rewards": handover(
        "verl",
        ppo(estimator="grpo", samples_per_prompt=4, reward=None, rewards=(RIGHT, SHORT), kl_coefficient=0.0),
        sharded(32),
    ),
    "grpo_one_step_off": handover(
        "verl",
        ppo(
            estimator="grpo",
            samples_per_prompt=4,
            reward=None,
            rewards=(RIGHT,),
            kl_coefficient=0.0,
            asynchrony="one_step_off",
        ),
        TRAINERS,
        placement=APART,
        per_node=8,
    ),
    "ppo_hybrid": handover("verl", ppo(minibatch=64), sharded(64, data=16, replicas=2), num_nodes=2),
    "ppo_sdpa": handover("verl", ppo(resources=StageResources(attention="sdpa")), sharded(32)),
    "sft": handover("verl", sft(), sharded(64)),
    "sft_cosine_lora": handover(
        "verl", sft(schedule="cosine", warmup_steps=2, adapter=Adapter(rank=4)), sharded(64, data=4, context=2)
    ),
    "sft_constant": handover("verl", sft(schedule="constant"), sharded(64, data=16, replicas=2), num_nodes=2),
    "sft_alone": handover("verl", sft(optimizer="adamw_8bit"), sharded(64, data=1, zero=ZeroStage.NONE)),
    "sft_host": handover("verl", sft(), sharded(64, offload_parameters=True, offload_optimizer=True)),
}


def written(case: Handover, directory: Path, name: str) -> str:
    """The case's YAML below a name of its own, with the models of the directory."""
    places = dict.fromkeys(case.paths.models, str(directory / "model"))
    paths = HandoverPaths(work="/job", models=places, data=case.paths.data, resume_from=case.paths.resume_from)
    run = render_verl(Handover(**{**vars(case), "paths": paths}))
    [file] = [item for item in run.files if item.endswith(".yaml")]
    (directory / f"{name}.yaml").write_text(run.files[file])
    return f"{name}.yaml"


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    directory = tmp_path_factory.mktemp("verl")
    names = [written(case, directory, name) for name, case in CASES.items()]
    wrong: dict[str, Any] = yaml.safe_load((directory / "ppo.yaml").read_text())
    wrong["trainer"]["save_frequency"] = wrong["trainer"].pop("save_freq")
    (directory / "wrong_key.yaml").write_text(yaml.safe_dump(wrong))
    wrong = yaml.safe_load((directory / "sft.yaml").read_text())
    wrong["optim"]["lr_scheduler_type"] = "linear"
    (directory / "wrong_value.yaml").write_text(yaml.safe_dump(wrong))
    printed = ask_engine("verl", PROBE, str(directory), *names, "wrong_key.yaml", "wrong_value.yaml")
    found: dict[str, str] = json.loads(printed.splitlines()[-1])
    return found


@pytest.mark.parametrize("name", CASES)
@pytest.mark.smoke
def test_verl_accepts_what_is_rendered(answers: dict[str, str], name: str) -> None:
    assert answers[f"{name}.yaml"] == "ok"


def test_a_wrong_key_and_a_wrong_value_are_noticed(answers: dict[str, str]) -> None:
    assert "save_frequency" in answers["wrong_key.yaml"]
    assert "AssertionError" in answers["wrong_value.yaml"] or "lr_scheduler_type" in answers["wrong_value.yaml"]


@pytest.mark.parametrize("name", ["ppo", "sft"])
def test_verls_own_command_composes_the_file(tmp_path: Path, name: str) -> None:
    run = render_verl(CASES[name])
    (tmp_path / f"{name}.yaml").write_text(run.files[f"{name}.yaml"])
    module = run.command.index("-m", 3 if name == "sft" else 0)
    ended = subprocess.run(
        [str(engine_python("verl")), *run.command[module:], "--cfg", "job"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    config = yaml.safe_load(ended.stdout)
    assert config["trainer"]["total_training_steps"] == 10
    assert config["trainer"]["default_local_dir"] == "/job/checkpoints"
