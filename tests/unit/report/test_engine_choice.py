"""Engines that a file leaves open: what is chosen, why, and that a run keeps it."""

import json

import pytest
from typer.testing import CliRunner

from charter.cli.main import app
from charter.engines.project import load_project
from charter.errors import UsageError
from charter.report.handover import choose_engines, keep_engines
from charter.spec.load import ENGINES_FILE

PROJECT = """
name: open
models: {base: Qwen/Qwen2.5-7B, scorer: {model: Qwen/Qwen2.5-0.5B, reward_model: true}}
data: {math: {path: math.jsonl, rows: 8k, mean_tokens: 200}, chat: {path: chat.jsonl, rows: 4000, mean_tokens: 300}}
pipeline:
  sft: {kind: sft, init: base, data: [chat], epochs: 1, engine: native}
  grpo: {kind: ppo, estimator: grpo, samples_per_prompt: 8, policy: sft, reward: scorer, prompts: math,
         episodes: 65_536, rollout_batch: 1024, minibatch: 256, max_new_tokens: 2048, mean_new_tokens: 800}
resources: {accelerators: "H100:8", infra: on_prem, price: $2.5/h, num_nodes: 1}
"""
OPENRLHF = ("engines={openrlhf: {python: p}}", "pipeline.grpo.min_new_tokens=1")
VERL = "engines={verl: {python: /opt/verl/bin/python}}"


@pytest.fixture
def root(tmp_path):
    (tmp_path / "charter.yaml").write_text(PROJECT)
    return tmp_path


def chosen(root, *changes):
    project, choices = choose_engines(load_project(root, overrides=changes), root)
    return {name: stage.engine for name, stage in project.pipeline.items()}, {item.stage: item for item in choices}


def test_a_faster_engine_is_taken_where_the_file_lets_it(root):
    engines, choices = chosen(root, "exact=record", VERL)
    assert engines == {"sft": "native", "grpo": "verl"}, "what the file says of sft stays"
    assert "less work" in choices["grpo"].why


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (["pipeline.grpo.engine=auto", VERL], "verl does not resume as `exact: bits` demands"),
        (["exact=record", *OPENRLHF], "openrlhf does not resume as `exact: record` demands"),
    ],
)
def test_what_does_not_keep_the_demand_is_not_taken(root, changes, why):
    engines, choices = chosen(root, *changes)
    assert engines["grpo"] == "native"
    assert choices["grpo"].why == why


def test_without_a_demand_an_engine_that_forgets_is_taken(root):
    assert chosen(root, "exact=none", *OPENRLHF)[0]["grpo"] == "openrlhf"


def test_a_field_that_an_engine_cannot_express_is_the_reason(root):
    _, choices = chosen(root, "exact=none", OPENRLHF[0])
    assert choices["grpo"].engine == "native"
    assert "openrlhf refuses it (pipeline.grpo.min_new_tokens" in choices["grpo"].why


def test_nothing_is_chosen_where_no_engine_is_there(root):
    engines, choices = chosen(root, "exact=record")
    assert (engines["grpo"], choices) == ("native", {})


def test_a_run_keeps_the_engines_that_it_began_with(root):
    free = load_project(root, overrides=["exact=record", VERL])
    project, _ = choose_engines(free, root)
    keep_engines(project, root)
    assert json.loads((root / "run" / ENGINES_FILE).read_text()) == {"grpo": "verl"}
    again = load_project(root, overrides=["exact=record", VERL])
    assert again.pipeline["grpo"].engine == "verl"
    assert choose_engines(again, root) == (again, ())
    assert choose_engines(again, root, again=True)[1]
    (root / "run" / ENGINES_FILE).write_text('{"grpo": "magic"}')
    with pytest.raises(UsageError, match="does not hold engines"):
        load_project(root)


def test_the_default_is_the_native_engine_and_writes_nothing(root):
    project = load_project(root)
    assert {(stage.engine, stage.engine_by) for stage in project.pipeline.values()} == {("native", "file")}
    keep_engines(project, root)
    assert not (root / "run").exists()


def test_the_plan_says_what_was_chosen(root):
    options = ["--set", "exact=record", "--set", VERL, "-C", str(root)]
    shown = CliRunner().invoke(app, ["plan", *options])
    assert "engine of grpo: verl (" in shown.output
    found = json.loads(CliRunner().invoke(app, ["plan", "--json", *options]).stdout)
    assert found["engine_choices"][0]["engine"] == "verl"
    assert found["stages"][1]["execution"]["engine"] == "verl"
    assert not (root / "run").exists()
