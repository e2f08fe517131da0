from dataclasses import replace

import pytest

from charter.errors import DataError, ExitCode, MissingExtraError, SpecError
from charter.launch.job import STAGE_MODULES
from charter.run import preflight
from charter.run.graph import build_pipeline
from charter.run.preflight import check_before_start, check_packages
from charter.spec.layout import Adapter
from charter.spec.ppo_stage import PpoStage
from charter.spec.project import DataSpec, ModelSpec, Project
from charter.spec.rewards import Environment, Reward
from charter.spec.stage import DpoStage, PreferenceModelStage, PrepareStage, SftStage
from charter.spec.stage_base import StageResources

ROW = '{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]}\n'


@pytest.fixture
def project(tmp_path):
    (tmp_path / "chat.jsonl").write_text(ROW)
    model = tmp_path / "hf"
    model.mkdir()
    for name in ("config.json", "model.safetensors"):
        (model / name).write_text("{}")
    return Project(
        name="p",
        models={"base": ModelSpec(model="hf")},
        data={"chat": DataSpec(path="chat.jsonl"), "pairs": DataSpec(path="pairs.jsonl")},
        pipeline={"sft": SftStage(init="base", data=("chat",), steps=1)},
    )


def check(project, root):
    pipeline = build_pipeline(project, root)
    check_before_start(pipeline, list(pipeline.stages.values()), modules=STAGE_MODULES)


def test_a_sound_project_passes(project, tmp_path):
    check(project, tmp_path)


def test_kinds_without_a_module_are_refused_with_what_still_works(project, tmp_path):
    pipeline = build_pipeline(replace(project, pipeline={"d": PrepareStage(data=("chat",))}), tmp_path)
    with pytest.raises(SpecError, match=r"pipeline.d: stages of kind prepare cannot be run(.|\n)*charter plan"):
        check_before_start(pipeline, list(pipeline.stages.values()), modules={"sft": "charter.train.sft"})


@pytest.mark.parametrize("kind", [DpoStage, PreferenceModelStage], ids=lambda kind: kind.__name__)
def test_stages_that_compare_answers_need_pairs(project, tmp_path, kind):
    with pytest.raises(DataError, match=r"chat.jsonl:1.* is not a preference pair"):
        check(replace(project, pipeline={"s": kind(init="base", data=("chat",), steps=1)}), tmp_path)
    (tmp_path / "pairs.jsonl").write_text('{"prompt": "Q", "chosen": "a", "rejected": "b"}\n')
    check(replace(project, pipeline={"s": kind(init="base", data=("pairs",), steps=1)}), tmp_path)


def test_an_engine_that_is_only_planned_for_is_refused(project, tmp_path):
    other = replace(project, pipeline={"sft": replace(project.pipeline["sft"], engine="fsdp")})
    with pytest.raises(SpecError, match=r"pipeline.sft.engine: .*planned for the engine 'fsdp', not handed over to it"):
        check(other, tmp_path)


def test_reward_models_of_elsewhere_are_planned_and_not_run(project, tmp_path):
    models = {**project.models, "rm": ModelSpec(model="hf", reward_model=True)}
    ppo = PpoStage(policy="base", reward="rm", prompts=("chat",), episodes=64)
    with pytest.raises(SpecError, match=r"pipeline.p.reward: .*plans with the reward model 'rm' but cannot load it"):
        check(replace(project, models=models, pipeline={"p": ppo}), tmp_path)


def rewarded(project, call, **more):
    rewards = (Reward(name="r", kind="function", call=call, **more),)
    ppo = PpoStage(policy="base", rewards=rewards, estimator="grpo", prompts=("chat",), episodes=64)
    return replace(project, pipeline={"p": ppo})


def test_programs_of_a_model_need_a_sandbox(project, tmp_path, monkeypatch):
    monkeypatch.setattr(preflight, "sandbox_problem", lambda: "bwrap is not installed")
    check(rewarded(project, "charter:exact"), tmp_path)
    with pytest.raises(MissingExtraError, match="p: bwrap is not installed") as refusal:
        check(rewarded(project, "charter:program"), tmp_path)
    assert refusal.value.exit_code == ExitCode.MISSING_EXTRA
    ppo = rewarded(project, "charter:exact").pipeline["p"]
    tools = replace(ppo, environment=Environment(tools={"py": "charter:python"}))
    with pytest.raises(MissingExtraError, match="p: bwrap is not installed"):
        check(replace(project, pipeline={"p": tools}), tmp_path)


def test_mathematics_needs_its_library(project, tmp_path, monkeypatch):
    monkeypatch.setattr(preflight, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"charter:expression of p needs math-verify: .*\[math\]"):
        check(rewarded(project, "charter:expression"), tmp_path)


def test_taskset_needs_its_library(project, tmp_path, monkeypatch):
    monkeypatch.setattr(preflight, "find_spec", lambda name: None)
    ppo = replace(rewarded(project, "charter:exact").pipeline["p"], environment=Environment(call="verifiers:game"))
    with pytest.raises(MissingExtraError, match=r"verifiers:game of p needs verifiers: .*\[verifiers\]"):
        check(replace(project, pipeline={"p": ppo}), tmp_path)


def test_all_problems_are_said_at_once(project, tmp_path):
    (tmp_path / "chat.jsonl").write_text(ROW + "{broken\n")
    (tmp_path / "hf" / "config.json").unlink()
    pm = PreferenceModelStage(init="base", data=("pairs",), steps=1)
    with pytest.raises(DataError) as caught:
        check(replace(project, pipeline={**project.pipeline, "pm": pm}), tmp_path)
    message = str(caught.value)
    assert "no file" in message
    assert "pairs.jsonl" in message
    assert "has no config.json" in message
    assert "chat.jsonl:2" in message


def test_files_of_stages_that_need_not_run_are_not_looked_at(project, tmp_path):
    (tmp_path / "chat.jsonl").write_text("{broken\n")
    pipeline = build_pipeline(project, tmp_path)
    check_before_start(pipeline, [], modules=STAGE_MODULES)


def test_a_missing_package_is_named_with_the_command_that_installs_it():
    with pytest.raises(MissingExtraError, match=r"no_such_package: pip install .\.\[run\]") as caught:
        check_packages(["json", "no_such_package"])
    assert caught.value.exit_code == 7


def test_an_adapter_is_trained_where_the_library_for_it_is_installed(project, tmp_path, monkeypatch):
    lora = replace(project.pipeline["sft"], adapter=Adapter(rank=4))
    other = replace(project, pipeline={"sft": lora})
    monkeypatch.setattr("charter.run.preflight.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"training the adapter of sft needs peft: pip install .\.\[adapters\]"):
        check(other, tmp_path)
    monkeypatch.setattr("charter.run.preflight.find_spec", lambda name: name)
    check(other, tmp_path)


def test_a_layout_that_cannot_run_is_refused_with_everything_else(project, tmp_path):
    odd = replace(project.pipeline["sft"], resources=StageResources(accelerators="cpu:3", pipeline=2))
    with pytest.raises(SpecError) as caught:
        check(replace(project, pipeline={"sft": odd}), tmp_path)
    assert "pipeline.sft.resources.pipeline" in str(caught.value)
    assert "global_batch: 63 or 66" in str(caught.value)
