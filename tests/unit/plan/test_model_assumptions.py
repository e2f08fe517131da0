"""What a plan tells of how its models were read."""

import json

from typer.testing import CliRunner

from charter.cli.main import app
from charter.engines.project import load_project
from charter.plan.project_plan import plan_project
from charter.report.plan_notes import note_groups

NEW = {"model_type": "new_moe", "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4}
NEW |= {"intermediate_size": 512, "vocab_size": 1024, "hidden_act": "silu", "rms_norm_eps": 1e-5}
YAML = """name: seen
models: {{base: {model}}}
data: {{chats: {{path: chats.jsonl, rows: 5k, mean_tokens: 500}}}}
pipeline: {{sft: {{kind: sft, init: base, data: chats, epochs: 1, global_batch: 64, seq_len: 1024}}}}
resources: {{accelerators: "H100:8", num_nodes: 1, infra: on_prem, price: $2/h}}
"""


def project_of(directory, model):
    (directory / "charter.yaml").write_text(YAML.format(model=model))
    return load_project(directory / "charter.yaml", overrides=(), env={})


def said(plan):
    return [line.plain for _, lines in note_groups(plan) for line in lines]


def test_a_plan_names_the_assumption_about_a_model(tmp_path):
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "config.json").write_text(json.dumps(NEW))
    plan = plan_project(project_of(tmp_path, "new"), tmp_path)
    (item,) = [item for item in plan.to_json()["assumptions"] if item["name"] == "reading of models.base"]
    assert "'new_moe' is not known: read as one of the Llama family" in item["source"]
    assert any(item["source"] in line for line in said(plan))


def test_a_plan_says_what_it_assumes_of_pictures(tmp_path):
    plan = plan_project(project_of(tmp_path, "Qwen/Qwen2.5-VL-7B-Instruct"), tmp_path)
    (line,) = (line for line in said(plan) if "models.base.encoder" in line)
    assert "677 M parameters) is planned with one picture or clip a row" in line


def test_check_says_what_a_plan_would_assume(tmp_path):
    project_of(tmp_path, "Qwen/Qwen2.5-VL-7B-Instruct")
    answer = CliRunner().invoke(app, ["check", str(tmp_path / "charter.yaml")])
    assert answer.exit_code == 0
    assert "assumed, reading of models.base.encoder: its encoder" in answer.output
