"""Formats in which servers hold a model: asked for by `precision`, or those of the released files."""

import json

import pytest
from typer.testing import CliRunner

from charter.catalog import models
from charter.catalog.config_readers import stored_format
from charter.catalog.huggingface import read_config
from charter.cli.main import app
from charter.engines.project import load_project
from charter.errors import SpecError
from charter.plan.pipeline_names import Models
from charter.plan.project_plan import plan_project

YAML = """name: formats
models:
  base: {{model: Llama-3.1-8B}}
  judge: {{model: {judge}, precision: {precision}}}
data:
  prompts: {{path: prompts.jsonl, rows: 5k, mean_tokens: 200}}
constitution: constitution.yaml
serving: {serving}
pipeline:
  label: {{kind: label, judge: judge, policy: base, prompts: [prompts], pairs: 2000, max_new_tokens: 256}}
{more}
resources: {{accelerators: "{accelerators}", infra: on_prem, price: $2/h}}
"""


JUDGED = """  grpo:
    {kind: ppo, estimator: grpo, policy: base, prompts: [prompts], episodes: 1024, rollout_batch: 128, minibatch: 64,
     samples_per_prompt: 8, max_new_tokens: 64, rewards: [{name: kind, kind: judge, model: judge}]}"""
RELEASED = {
    "fp8": {"deepseek-ai/DeepSeek-V3", "deepseek-ai/DeepSeek-R1", "deepseek-ai/DeepSeek-V3.2"}
    | {"moonshotai/Kimi-K2-Instruct", "MiniMaxAI/MiniMax-M2"},
    "mxfp4": {"openai/gpt-oss-20b", "openai/gpt-oss-120b"},
}


def project_of(directory, *, judge="Llama-3.1-70B-Instruct", precision="bf16", serving="{}", more="", on="H100:8"):
    text = YAML.format(judge=judge, precision=precision, serving=serving, more=more, accelerators=on)
    (directory / "charter.yaml").write_text(text)
    (directory / "constitution.yaml").write_text("principles: [{id: kind, text: Be kind.}]\n")
    return load_project(directory / "charter.yaml", overrides=(), env={})


def grouped(**weights):
    return {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": weights}}}


def weights_of(stage):
    """Bytes of the judge's weights on all accelerators of one of its servers."""
    (term,) = [term for role, term in stage.option.peak.parts if role == "judge" and term.name == "weights"]
    return term.value * stage.option.layout.tensor


@pytest.mark.parametrize(("precision", "share"), [("bf16", 1.0), ("fp8", 0.5), ("int4", 0.26)])
def test_a_judge_is_planned_as_its_servers_hold_it(tmp_path, precision, share):
    stage = plan_project(project_of(tmp_path, precision=precision), tmp_path).stages[0]
    assert weights_of(stage) / (2 * 70.55e9) == pytest.approx(share, abs=0.03)
    assert stage.execution.roles["judge"].layout.dtype == {"bf16": "bf16", "fp8": "fp8", "int4": "nf4"}[precision]
    assert stage.execution.roles["policy"].layout.dtype == "bf16"


@pytest.mark.parametrize(("precision", "method"), [("fp8", "fp8"), ("int4", "bitsandbytes")])
def test_what_is_planned_is_what_servers_are_told(tmp_path, precision, method):
    project_of(tmp_path, precision=precision)
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "Hello?"}\n' * 40)
    answer = CliRunner().invoke(app, ["submit", "-C", str(tmp_path), "--on", "slurm", "--print", "--json"])
    assert answer.exit_code == 0, answer.output
    assert f'"quantization\\":\\"{method}\\"' in answer.output, answer.output


def test_eight_bits_answer_sooner_on_the_same_servers(tmp_path):
    pools = "resources: {accelerators: 'H100:8', pools: {judge: {replicas: 2, tensor: 4}}}"
    seconds = {}
    for precision in ("bf16", "fp8"):
        project = project_of(tmp_path, precision=precision)
        text = (tmp_path / "charter.yaml").read_text().replace("max_new_tokens: 256", f"max_new_tokens: 256, {pools}")
        (tmp_path / "charter.yaml").write_text(text)
        project = load_project(tmp_path / "charter.yaml", overrides=(), env={})
        seconds[precision] = plan_project(project, tmp_path).stages[0].option.seconds.p50
    assert seconds["fp8"] < 0.95 * seconds["bf16"]


def test_a_release_in_four_bits_is_served_in_four(tmp_path):
    plan = plan_project(project_of(tmp_path, judge="gpt-oss-120b"), tmp_path)
    assert plan.stages[0].execution.roles["judge"].layout.dtype == "mxfp4"
    assert weights_of(plan.stages[0]) < 0.35 * 2 * 116.8e9
    (item,) = [item for item in plan.assumptions if item.name == "reading of models.judge.files"]
    assert "in mxfp4, which its servers compute with" in item.source


def test_an_evaluation_loads_its_own_models_in_sixteen_bits(tmp_path):
    roles = "policy: judge, against: judge, judge: judge"
    more = f"  eval: {{kind: eval, {roles}, prompts: [prompts], suites: [judge_win_rate]}}"
    plan = plan_project(project_of(tmp_path, judge="gpt-oss-20b", more=more), tmp_path)
    stage = next(item for item in plan.stages if item.name == "eval")
    sizes = {role: term.value for role, term in stage.option.peak.parts if term.name == "weights"}
    assert max(sizes.values()) > 2 * 20.9e9, sizes
    assert stage.execution.roles["judge"].layout.dtype == "mxfp4"


def test_files_that_are_quantised_are_not_again(tmp_path):
    with pytest.raises(SpecError, match="are in mxfp4 already"):
        plan_project(project_of(tmp_path, judge="gpt-oss-120b", precision="fp8"), tmp_path)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"more": "  sft: {kind: sft, init: judge, data: prompts}"}, "as its `init`"),
        ({"serving": "{judge: {endpoint: 'https://judge.example/v1'}}"}, "reached by address"),
        ({"serving": "{judge: {pool: {engine: charter}}}"}, "of the engine charter"),
        ({"more": JUDGED}, "stage grpo computes with the weights of judge itself, as its `judge`"),
        ({"on": "cpu"}, "processors compute in 32 bits"),
        ({"on": "cpu", "serving": "{judge: {pool: {}}}"}, "processors compute in 32 bits"),
    ],
)
def test_a_precision_that_nobody_would_keep_is_refused(tmp_path, changes, why):
    with pytest.raises(SpecError, match=why):
        project_of(tmp_path, precision="fp8", **changes)


def test_the_catalog_knows_what_was_released_in_few_bits():
    by_format = {}
    for model in models.catalog():
        by_format.setdefault(model.stored, set()).add(model.name)
    assert {name: found for name, found in by_format.items() if name != "bf16"} == RELEASED


def test_what_is_trained_is_held_in_sixteen_bits(tmp_path):
    project = project_of(tmp_path, judge="gpt-oss-20b")
    shapes = {"judge": models.get("gpt-oss-20b").architecture}
    every = Models(project=project, architectures=shapes, stored={"judge": "mxfp4"})
    assert every.role("policy", "judge", trained=True).stored == "bf16"
    assert every.role("judge", "judge").stored == "mxfp4"


@pytest.mark.parametrize(
    ("settings", "stored"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8"),
        ({"quant_method": "mxfp4"}, "mxfp4"),
        ({"quant_method": "gptq", "bits": 8}, "int8"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "nf4"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "fp4"),
        (grouped(num_bits=8, type="float"), "fp8"),
        (grouped(num_bits=4, type="int"), "int4"),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": None}}, "bf16"),
        ({"quant_method": "another"}, "bf16"),
        ({"quant_method": "awq", "bits": [4]}, "bf16"),
        ("none", "bf16"),
    ],
)
def test_the_format_of_a_checkpoint_is_read(settings, stored):
    assert stored_format({"quantization_config": settings}) == stored


def test_a_configuration_brings_its_format(tmp_path):
    sizes = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 512}
    config = {"model_type": "llama", "vocab_size": 1024, "quantization_config": {"quant_method": "awq", "bits": 4}}
    (tmp_path / "config.json").write_text(json.dumps(sizes | config))
    assert read_config(tmp_path).stored == "int4"
    assert models.resolve(str(tmp_path)).stored == "int4"
