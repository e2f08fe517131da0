"""GRPO of TRL under Charter with a list of rewards: TRL itself calls the functions of the file that was written."""

import json

import hosted_case as case
import pytest
from engine_case import engine_python
from fault_server import fault_server
from pooled import save_judge

PROJECT = """\
name: trl-rewards
models:
  base:
    precision: fp32
    architecture: {{hidden_size: 32, num_layers: 2, num_heads: 2, intermediate_size: 64, vocab_size: 320,
                   max_position_embeddings: 64, tied_embeddings: true}}
    tokenizer: {{train_on: [demonstrations], vocab_size: 320}}
data:
  demonstrations: {{path: sorting_demonstrations.jsonl, limit: 64}}
  problems: {{path: sorting_problems.jsonl, limit: 16}}
pipeline:
  rl:
    kind: ppo
    engine: trl
    policy: base
    prompts: [problems]
    rewards:
      - {{name: right, kind: function, call: "charter:exact"}}
      - {{name: said, kind: function, call: "own.py:length", weight: 0.25}}
      - {{name: near, kind: function, call: "charter:exact", weight: 0}}
    gold: near
    on_overoptimisation: stop
    estimator: grpo
    samples_per_prompt: 4
    kl_coefficient: 0
    episodes: 48
    rollout_batch: 16
    minibatch: 16
    learning_rate: 1e-3
    max_prompt_tokens: 24
    max_new_tokens: 8
    checkpoint_every: 1
    dtype: fp32
seed: 7
resources: {{infra: local, cpus: 1, price: 3.6}}
engines: {{trl: {{python: {python}}}}}
"""
OWN = '''"""A reward of the user's own."""


def length(answer, row, tokens):
    assert isinstance(row["answer"], str) and tokens <= 8
    with open("called.txt", "a") as file:
        file.write("x")
    return 1.0
'''


@pytest.mark.slow
def test_a_list_of_rewards_runs_in_trl_under_charter(tmp_path):
    root = tmp_path / "project"
    made = case.charter(tmp_path, "init", "--template", "rlvr-tiny", str(root))
    assert made.returncode == 0, made.stderr
    (root / "charter.yaml").write_text(PROJECT.format(python=engine_python("huggingface")))
    (root / "own.py").write_text(OWN)
    ended = case.charter(root, "run", "--yes")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (stage,) = case.answered(root, "status")["stages"]
    assert (stage["state"], stage["engine"], stage["target_step"]) == ("done", "trl", 3)
    directory = case.stage_dir(root, "rl")
    points = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert [point["step"] for point in points] == [1, 2, 3]
    assert [(point["reward_said_mean"], point["overoptimised"]) for point in points] == [(1.0, 0.0)] * 3
    assert all(point["reward_near_mean"] == point["reward_right_mean"] for point in points)
    log = (directory / "log.txt").read_text()
    assert "'rewards/said/mean': '1'" in log or "'rewards/said/mean': 1.0" in log


JUDGED = {
    "  base:\n": "  judge: {{model: Qwen/Qwen2.5-7B-Instruct}}\n  base:\n",
    '      - {{name: said, kind: function, call: "own.py:length", weight: 0.25}}\n': (
        "      - {{name: good, kind: judge, model: judge}}\n"
    ),
    "seed: 7\n": (
        "serving: {{judge: {{endpoint: {url}, canary_every: 0, concurrency: 8, usd_per_million_input_tokens: 1,\n"
        "                   usd_per_million_output_tokens: 2}}}}\nbudget: {{limit: 5}}\nseed: 7\n"
    ),
}


@pytest.mark.slow
def test_a_served_judge_rates_what_trl_samples(tmp_path):
    root, text = tmp_path / "project", PROJECT
    assert case.charter(tmp_path, "init", "--template", "rlvr-tiny", str(root)).returncode == 0
    for before, after in JUDGED.items():
        assert before in text
        text = text.replace(before, after)
    with fault_server() as (url, server):
        (root / "charter.yaml").write_text(text.format(python=engine_python("huggingface"), url=url))
        ended = case.charter(root, "run", "--yes")
        assert ended.returncode == 0, ended.stdout + ended.stderr
        questions = [line["question"] for line in server.requests]
    assert len(questions) == len(set(questions)) > 3
    directory = case.stage_dir(root, "rl")
    assert "rewards/good/mean" in (directory / "log.txt").read_text()
    calls = case.answered(root, "cost", "report")["actual"]["calls"]
    assert (calls["answered"], calls["unknown"]) == (len(questions), 0)
    assert calls["settled_micro_usd"] > 0
    points = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert round(sum(point["reward_good_usd"] for point in points) * 1e6) == calls["settled_micro_usd"]
    assert sum(point["reward_good_seconds"] for point in points) > 0


POOL = (
    "serving: {{judge: {{pool: {{engine: charter, replicas: 1}}, api: completions, billed: false, canary_every: 0,\n"
    "                   concurrency: 4}}}}\nseed: 7\n"
)


@pytest.mark.slow
def test_a_judge_that_charter_serves_rates_what_trl_samples(tmp_path):
    """On processors, where the engine does not fill accelerators that the servers would need."""
    root, judge = tmp_path / "project", tmp_path / "judge"
    save_judge(judge)
    assert case.charter(tmp_path, "init", "--template", "rlvr-tiny", str(root)).returncode == 0
    said, served = list(JUDGED)[1:]
    changes = {"  base:\n": f"  judge: {{{{model: {judge}}}}}\n  base:\n", said: JUDGED[said], served: POOL}
    text = PROJECT
    for before, after in changes.items():
        assert before in text
        text = text.replace(before, after)
    (root / "charter.yaml").write_text(text.format(python=engine_python("huggingface")))
    ended = case.charter(root, "run", "--yes")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    directory = case.stage_dir(root, "rl")
    points = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert [point["step"] for point in points] == [1, 2, 3]
    assert all(-1 < point["reward_good_mean"] < 1 and point["reward_good_failed"] == 0 for point in points)
