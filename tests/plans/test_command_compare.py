import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from charter.cli.main import app
from charter.errors import UsageError

FILE = """
name: demo
models:
  base: {model: meta-llama/Llama-3.1-8B}
data:
  chat: {path: chat.jsonl, rows: 40_000, mean_tokens: 300}
pipeline:
  helpful: {kind: sft, init: base, data: [chat], global_batch: 128, seq_len: 2048}
resources: {infra: aws, accelerators: [H100:8], max_nodes: 1}
"""


def charter(*arguments):
    done = CliRunner(env={"COLUMNS": "160"}).invoke(app, arguments)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


@pytest.fixture
def two(tmp_path):
    for name, text in (("one", FILE), ("two", FILE.replace("max_nodes: 1", "num_nodes: 2"))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "charter.yaml").write_text(text)
    return str(tmp_path / "one"), str(tmp_path / "two")


def test_two_projects_side_by_side_with_ratios(two):
    found = json.loads(charter("plan", "compare", *two, "--json").stdout)
    assert [plan["label"] for plan in found["plans"]] == ["one", "two"]
    first, second = found["stages"][0]["plans"]
    assert (first["count"], second["count"]) == (8, 16)
    ratio = second["seconds"]["p50"] / first["seconds"]["p50"]
    assert second["ratio"]["seconds"] == pytest.approx(ratio, abs=1e-5)
    assert found["plans"][1]["ratio"]["seconds"] == pytest.approx(ratio, rel=0.005)  # the finish comes from draws
    assert found["plans"][0]["ratio"] == {"seconds": 1.0, "gpu_hours": 1.0, "usd": 1.0}
    table = charter("plan", "compare", *two).stdout
    assert "16 x H100" in table
    assert f"({second['ratio']['usd']:.2f} x)" in table


def test_a_saved_plan_compares_as_the_plan_that_was_saved(two, tmp_path):
    saved = tmp_path / "saved.json"
    assert charter("plan", two[1], "--output", str(saved)).exit_code == 0
    found = json.loads(charter("plan", "compare", two[1], str(saved), "--json").stdout)
    assert found["plans"][1]["ratio"] == {"seconds": 1.0, "gpu_hours": 1.0, "usd": 1.0}
    assert found["stages"][0]["plans"][0] == found["stages"][0]["plans"][1]


@pytest.mark.parametrize(
    ("plan", "missing"),
    [
        ({}, "name, stages, total"),
        ({"name": "a", "stages": [], "total": {"seconds": 1}}, "total.gpu_hours, total.usd"),
        ({"name": "a", "stages": [{"name": "sft"}], "total": {"seconds": 1, "gpu_hours": 1, "usd": 1}}, "accelerator"),
    ],
)
def test_a_saved_plan_of_another_shape_says_what_it_lacks(two, tmp_path, plan, missing):
    saved = tmp_path / "older.json"
    saved.write_text(json.dumps({"schema": "charter.plan/1", **plan}))
    with pytest.raises(UsageError, match=missing):
        charter("plan", "compare", two[0], str(saved))


def test_what_cannot_be_compared_says_what_could(two, tmp_path):
    with pytest.raises(UsageError, match="two plans or more"):
        charter("plan", "compare", two[0])
    with pytest.raises(UsageError, match="the templates are cai-tiny"):
        charter("plan", "compare", two[0], "nonsense")
    other = tmp_path / "other.json"
    Path(other).write_text("{}")
    with pytest.raises(UsageError, match=r"is not a plan .*charter plan --output"):
        charter("plan", "compare", two[0], str(other))
