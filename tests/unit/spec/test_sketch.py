# ruff: noqa: E501
"""The file that the design started from loads and plans, word for word."""

import pytest

from charter.engines.project import load_project
from charter.plan.machine import Machine
from charter.plan.project_plan import plan_project
from charter.spec.stage_checks import check_runnable

SKETCH = """\
name: harmless-8b
models:
  base:  {model: meta-llama/Llama-3.1-8B, precision: bf16}
  judge: {model: meta-llama/Llama-3.1-70B-Instruct}
constitution: constitution.yaml
data: {red_team: prompts.jsonl, helpful_chat: helpful.jsonl, helpful_pairs: preferences.jsonl}
pipeline:
  helpful:  {kind: sft, init: base, data: helpful_chat, epochs: 1, seq_len: 4096, global_batch: 128, learning_rate: 1e-6}
  critique: {kind: critique, policy: helpful, critic: helpful, prompts: red_team, revisions: 4, max_new_tokens: 512}
  sl_cai:   {kind: sft, init: base, data: [critique, helpful_chat]}
  label:    {kind: label, policy: sl_cai, judge: judge, prompts: red_team, pairs: 150_000, both_orders: true}
  pm:       {kind: preference_model, init: base, data: [label, helpful_pairs]}
  ppo:      {kind: ppo, policy: sl_cai, reward: pm, prompts: [red_team, helpful_chat], episodes: 1_000_000, kl_target: 6.0}
  eval:     {kind: eval, policy: ppo, against: sl_cai, suites: [hhh, win_rate, pm_accuracy]}
resources:
  any_of: [{infra: aws}, {infra: gcp}, {infra: lambda}, {infra: on_prem}]
  accelerators: [H100:8, A100-80GB:8]
  use_spot: auto
  max_nodes: 16
budget: {limit: $25_000, on_exceed: checkpoint_and_stop}
deadline: 14d
serving: {judge: {endpoint: http://judge:8000/v1}}
storage: {artifacts: s3://bucket/charter, keep_last: 3}
tracking: [mlflow]
seed: 7
"""
MACHINE = Machine(name="m", cores=2, memory_bytes=8e9, flops_per_second=2e11, memory_bytes_per_second=4e10)


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "charter.yaml").write_text(SKETCH)
    turn = '{"prompt": [{"role": "user", "content": "Where is the library?"}]'
    answers = (
        '"chosen": [{"role": "assistant", "content": "Left."}], "rejected": [{"role": "assistant", "content": "?"}]'
    )
    messages = '{"messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hello there"}]}'
    (tmp_path / "prompts.jsonl").write_text(f"{turn}}}\n" * 50)
    (tmp_path / "helpful.jsonl").write_text(f"{messages}\n" * 50)
    (tmp_path / "preferences.jsonl").write_text(f"{turn}, {answers}}}\n" * 50)
    return tmp_path


def test_the_sketch_of_the_design_loads(directory):
    project = load_project(directory)
    assert project.pipeline["label"].pairs == 150_000
    assert project.pipeline["helpful"].learning_rate == 1e-6
    assert (project.deadline, project.budget.limit) == (14 * 86_400, 25_000)


def test_it_plans_with_the_judge_elsewhere(directory):
    plan = plan_project(load_project(directory), directory, machine=MACHINE)
    assert [stage.name for stage in plan.stages] == ["helpful", "critique", "sl_cai", "label", "pm", "ppo", "eval"]
    assert all(stage["fits"] for stage in plan.to_json()["stages"])


def test_what_its_eval_lacks_is_said_before_a_run(directory):
    project = load_project(directory)
    found = [problem.message for problem in check_runnable("eval", project.pipeline["eval"])]
    assert found == [
        "the suite 'hhh' needs reward or also_rewards or judge",
        "the suite 'win_rate' needs reward and prompts",
        "the suite 'pm_accuracy' needs reward and pairs",
    ]
