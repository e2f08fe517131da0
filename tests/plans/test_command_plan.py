import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from charter.cli.main import entry
from charter.templates.shipped import find_template, write_template

FILE = """
name: demo
models:
  base: {model: meta-llama/Llama-3.1-8B}
data:
  chat: {path: chat.jsonl, rows: 40_000, mean_tokens: 300}
pipeline:
  helpful: {kind: sft, init: base, data: [chat], global_batch: 128, seq_len: 2048}
resources: {infra: aws, accelerators: [H100:8], max_nodes: 2}
budget: {limit: $500}
"""


@pytest.fixture
def demo(tmp_path):
    (tmp_path / "charter.yaml").write_text(FILE)
    return tmp_path


@pytest.fixture
def charter(monkeypatch, capsys):
    """What `charter plan ARGUMENTS` prints and returns, by the entry of the program but in this process."""

    def run(*arguments, cwd):
        monkeypatch.chdir(cwd)
        monkeypatch.setenv("COLUMNS", "160")
        monkeypatch.setattr(sys, "argv", ["charter", "plan", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            entry()
        printed = capsys.readouterr()
        return SimpleNamespace(returncode=ended.value.code, stdout=printed.out, stderr=printed.err)

    return run


def test_json_is_one_object_on_stdout_of_the_process(demo):
    command = [sys.executable, "-m", "charter.cli.main", "plan", "--json"]
    done = subprocess.run(command, cwd=demo, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["stages"][0]["name"] == "helpful"


def test_table_shows_stage_hardware_range_and_price_date(charter, demo):
    done = charter(cwd=demo)
    assert done.returncode == 0, done.stderr
    for part in ("helpful", "H100", "total", "Budget $500", "as of", "Why not", "charter plan --explain helpful"):
        assert part in done.stdout


def test_explain_prints_terms_with_formula_and_source(charter, demo):
    done = charter("--explain", "helpful", cwd=demo)
    assert done.returncode == 0, done.stderr
    for part in ("optimizer", "matrix products", "Not taken", "Assumptions", "Daly"):
        assert part in done.stdout


def test_explain_of_an_unknown_stage_names_the_stages(charter, demo):
    done = charter("--explain", "helpfull", cwd=demo)
    assert done.returncode == 2
    assert "this project has helpful" in done.stderr


def test_exit_code_3_when_nothing_fits(charter, demo):
    done = charter("--set", "resources.accelerators=[T4:1]", "--set", "resources.infra=gcp", cwd=demo)
    assert done.returncode == 3
    assert "error[infeasible]" in done.stderr
    assert "Traceback" not in done.stderr


def test_plan_over_its_budget_at_p50_exits_4(charter, demo):
    done = charter("--set", "budget.limit=1", cwd=demo)
    assert done.returncode == 4
    assert "error[budget]" in done.stderr
    assert "Budget $1.00: exceeded at p50" in done.stdout, "the plan is printed first"


def test_exit_code_2_without_a_project(charter, tmp_path):
    done = charter(cwd=tmp_path)
    assert done.returncode == 2
    assert "charter init" in done.stderr


def test_exit_code_8_for_data_that_nobody_declared(charter, demo):
    (demo / "charter.yaml").write_text(FILE.replace(", rows: 40_000, mean_tokens: 300", ""))
    done = charter(cwd=demo)
    assert done.returncode == 8
    assert "declare rows and mean_tokens" in done.stderr


def test_output_writes_the_same_json(charter, demo):
    done = charter("--json", "--output", "plan.json", cwd=demo)
    assert json.loads((demo / "plan.json").read_text()) == json.loads(done.stdout)


def test_template_needs_no_project(charter, tmp_path):
    done = charter("--template", "cai-8b", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["name"] == "cai-8b"


def test_planning_imports_no_torch(demo):
    program = (
        "import sys; from pathlib import Path; from charter.spec.load import load_project;"
        "from charter.plan.project_plan import plan_project; d = Path('.');"
        "plan_project(load_project(d), d).to_json();"
        "print(sorted({'torch', 'transformers', 'scipy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=demo, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("words", "most"),
    [(("plan",), 140), (("artifacts", "export", "ppo", "--engine", "verl", "--print"), 200)],
    ids=["plan", "export"],
)
def test_command_imports_few_modules(tmp_path, words, most):
    program = (
        "import contextlib, io, sys; from charter.cli.main import entry\n"
        f"sys.argv = ['charter', *{words!r}]\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n    entry()\n"
        "print(sum(name.partition('.')[0] == 'charter' for name in sys.modules))"
    )
    write_template(find_template("cai-8b"), tmp_path)
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert 100 < int(done.stdout) <= most
