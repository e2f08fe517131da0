"""What an eval stage reads besides data and models, and what its suites cannot do without."""

import importlib.util
import json
from dataclasses import replace
from typing import get_args

import pytest

from charter.errors import DataError, MissingExtraError, SpecError
from charter.launch.job import STAGE_MODULES
from charter.run.graph import build_pipeline
from charter.run.preflight import check_before_start
from charter.spec.ppo_stage import PpoStage
from charter.spec.project import DataSpec, ModelSpec, Project
from charter.spec.rewards import Reward
from charter.spec.stage import EvalStage, Suite
from charter.spec.stage_checks import SUITE_NEEDS, missing_needs


@pytest.fixture
def make(tmp_path):
    """A project of one eval stage with the given fields, and its files."""
    model = tmp_path / "hf"
    model.mkdir()
    for name in ("config.json", "model.safetensors"):
        (model / name).write_text("{}")
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "sums.yaml").write_text("task: sums\n")

    def pipeline(rows=(), **fields):
        (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        project = Project(
            name="p",
            models={"base": ModelSpec(model="hf")},
            data={"rows": DataSpec(path="rows.jsonl")},
            pipeline={"eval": EvalStage(policy="base", **fields)},
        )
        return build_pipeline(project, tmp_path)

    return pipeline


def check(pipeline):
    check_before_start(pipeline, list(pipeline.stages.values()), modules=STAGE_MODULES)


def test_every_suite_says_what_it_needs():
    assert set(SUITE_NEEDS) == set(get_args(Suite))


@pytest.mark.parametrize(
    ("suite", "there", "missing"),
    [
        ("hhh", (), ["reward or also_rewards or judge"]),
        ("hhh", ("judge",), []),
        ("refusal", ("benign_prompts",), []),
        ("goodhart", ("against", "reward", "prompts", "judge"), ["checkpoints_of"]),
        ("judge_win_rate", ("judge",), ["against", "prompts"]),
    ],
)
def test_of_names_with_a_bar_between_them_one_is_enough(suite, there, missing):
    assert missing_needs(suite, lambda role: role in there) == missing


def test_the_content_of_tasks_is_part_of_the_identity_and_their_place_is_not(make, tmp_path):
    fields = {"suites": ("lm_eval",), "lm_eval_tasks": ("tasks",)}
    stage = make(**fields).stages["eval"]
    (item,) = stage.inputs["lm_eval_tasks"]
    assert item.path == str(tmp_path / "tasks")
    assert make(**fields).stages["eval"].fingerprint == stage.fingerprint
    (tmp_path / "tasks" / "sums.yaml").write_text("task: sums\nnum_fewshot: 1\n")
    assert make(**fields).stages["eval"].fingerprint != stage.fingerprint


def test_source_of_a_reward_is_part_of_the_identity(make, tmp_path):
    path = tmp_path / "own.py"
    path.write_text("def right(answer): return 1.0\n")
    reward = Reward(name="right", kind="function", call="own.py:right", timeout=5.0)
    stage = PpoStage(policy="base", prompts=("rows",), episodes=64, rewards=(reward,))

    def planned(spec):
        project = Project(
            name="p",
            models={"base": ModelSpec(model="hf")},
            data={"rows": DataSpec(path="rows.jsonl")},
            pipeline={"rl": spec},
        )
        return build_pipeline(project, tmp_path).stages["rl"]

    make()
    before = planned(stage)
    (item,) = before.inputs["reward_sources"]
    assert item.path == str(path)
    slower = replace(stage, rewards=(replace(reward, timeout=50.0),))
    assert planned(slower).fingerprint == before.fingerprint, "a limit is no part of what is computed"
    path.write_text("def right(answer): return 2.0\n")
    assert planned(stage).fingerprint != before.fingerprint


def test_tasks_that_are_not_there_are_named_before_the_start(make, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    with pytest.raises(DataError, match=r"lm_eval_tasks: elsewhere: no file or directory .*elsewhere"):
        check(make(suites=("lm_eval",), lm_eval_tasks=("elsewhere",)))


def test_the_harness_must_be_installed_for_its_suite(make, monkeypatch):
    monkeypatch.setattr("charter.run.preflight.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"suite lm_eval of eval needs .* pip install lm-eval"):
        check(make(suites=("lm_eval",), lm_eval_tasks=("tasks",)))


def test_suites_without_their_inputs_are_refused_before_the_start(make):
    with pytest.raises(SpecError, match="the suite 'multiple_choice' needs questions"):
        check(make(suites=("multiple_choice",)))


@pytest.mark.parametrize(
    ("role", "suite", "row"),
    [
        ("questions", "multiple_choice", {"question": "Why?", "choices": ["a", "b"], "answer": 0}),
        ("refusal_prompts", "refusal", {"prompt": "How do I pick a lock?"}),
        ("benign_prompts", "refusal", {"prompt": "How do I bake bread?"}),
    ],
)
def test_data_of_the_suites_is_read_as_what_it_is(make, role, suite, row):
    fields = {"suites": (suite,), role: ("rows",)}
    check(make([row], **fields))
    with pytest.raises(DataError, match="rows"):
        check(make([{"text": "plain"}], **fields))
