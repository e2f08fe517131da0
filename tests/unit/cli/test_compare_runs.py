"""`charter plan compare RUN RUN`: runs where all have run, plans where asked for or where one has not."""

import importlib.util
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from charter.cli.main import app
from charter.errors import UsageError

FIXTURE = Path(__file__).parents[1] / "report" / "fixture_run.py"
FILE = """
name: {name}
models:
  base: {{model: meta-llama/Llama-3.1-8B}}
data:
  chat: {{path: chat.jsonl, rows: 40_000, mean_tokens: 300}}
pipeline:
  sft: {{kind: sft, init: base, data: [chat], global_batch: 128, seq_len: 2048}}
resources: {{infra: aws, accelerators: [H100:8], max_nodes: {nodes}}}
"""


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Two projects that have run, with a charter.yaml each."""
    spec = importlib.util.spec_from_file_location("fixture_run", FIXTURE)
    fixture = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fixture)
    roots = []
    for name, nodes in (("rlaif", 1), ("direct", 2)):
        root = fixture.write_run(tmp_path_factory.mktemp("runs") / name)
        (root / "charter.yaml").write_text(FILE.format(name=name, nodes=nodes))
        roots.append(str(root))
    return roots


def charter(*arguments):
    done = CliRunner(env={"COLUMNS": "160"}).invoke(app, arguments)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def test_two_projects_that_have_run_are_compared_as_runs(two):
    found = json.loads(charter("plan", "compare", *two, "--json").stdout)
    assert found["schema"] == "charter.run-comparison/1"
    assert [run["label"] for run in found["runs"]] == ["rlaif", "direct"]
    assert [row["path"] for row in found["spec"]] == ["resources.max_nodes"]
    text = charter("plan", "compare", *two).stdout
    assert "Runs" in text
    assert "Judge agrees with the human label" in text
    assert "within noise" in text


def test_plans_are_compared_where_asked_for(two):
    assert "plans" in json.loads(charter("plan", "compare", *two, "--plans", "--json").stdout)
    assert "plans" in json.loads(charter("plan", "compare", *two, "--set", "resources.max_nodes=4", "--json").stdout)


def test_a_project_that_has_not_run_makes_it_plans_or_an_error(two, tmp_path):
    (tmp_path / "charter.yaml").write_text(FILE.format(name="fresh", nodes=1))
    assert "plans" in json.loads(charter("plan", "compare", two[0], str(tmp_path), "--json").stdout)
    with pytest.raises(UsageError, match="has no run to compare"):
        charter("plan", "compare", two[0], str(tmp_path), "--runs")
    with pytest.raises(UsageError, match="give one of them"):
        charter("plan", "compare", *two, "--runs", "--plans")


def test_the_page_is_written_whole(two, tmp_path):
    out = tmp_path / "page.html"
    assert charter("plan", "compare", *two, "--html", str(out)).exit_code == 0
    page = out.read_text()
    assert page.startswith("<!doctype html>")
    assert "What to keep in mind" in page
    with pytest.raises(UsageError, match="--html"):
        charter("plan", "compare", *two, "--html", str(tmp_path))


def test_runs_of_one_name_are_told_apart_by_their_paths(two, tmp_path):
    found = json.loads(charter("plan", "compare", two[0], two[0] + "/run", "--json").stdout)
    assert [run["label"] for run in found["runs"]] == [two[0], two[0] + "/run"]
