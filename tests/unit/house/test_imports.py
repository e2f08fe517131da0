"""What may be imported when: the command line starts quickly, the planner needs no torch."""

import ast
import subprocess
import sys
from pathlib import Path

from charter.artifacts.job import JOB_FILE
from charter.engines.project import load_project
from charter.ledger import Ledger
from charter.run.status import status_of
from charter.templates.shipped import find_template, write_template

HEAVY_FOR_HELP = {"torch", "numpy", "pydantic", "transformers", "tokenizers", "sqlalchemy", "psutil"}
TORCH = {"torch", "transformers", "tokenizers", "safetensors"}
NOT_FOR_STATUS = (
    *(
        "charter.engines.handover",
        "charter.catalog",
        "charter.plan",
        "charter.launch.launcher",
        "charter.launch.submission",
    ),
    *("charter.launch.slurm", "charter.launch.scheduler", "charter.launch.scheduler"),
    *("charter.ledger.store", "charter.ledger.calls", "sqlalchemy", "rich", "asyncio", "numpy", "psutil"),
)
"""The time that `charter status` takes is that of its imports."""
CLI_OF_STATUS = ["charter.cli.common", "charter.cli.main", "charter.cli.status"]
CONTROL_PLANE = (
    "charter.spec.load",
    "charter.plan.plan",
    "charter.run.runner",
    "charter.artifacts.stage_dir",
    "charter.ledger",
    "charter.report",
    "charter.cli.main",
)


def imported_by(code: str) -> set[str]:
    """The top-level packages in `sys.modules` of a fresh interpreter after it ran `code`."""
    return {name.partition(".")[0] for name in modules_after(code)}


def modules_after(code: str) -> set[str]:
    """`sys.modules` of a fresh interpreter after it ran `code`."""
    script = f"import sys\ntry:\n    {code}\nexcept SystemExit:\n    pass\nprint('\\n' + ' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


def test_help_imports_nothing_heavy():
    found = imported_by("sys.argv = ['charter', '--help']; from charter.cli.main import entry; entry()")
    assert "typer" in found, "the command line did not start"
    assert not found & HEAVY_FOR_HELP


def test_the_probe_sees_a_heavy_import():
    assert "numpy" in imported_by("import numpy")


def test_no_verb_imports_torch_before_it_is_called():
    found = modules_after("from charter.cli.main import COMMANDS, load; [load(verb) for verb in COMMANDS]")
    assert {"charter.cli.check", "charter.cli.run"} <= found, "the verbs were not imported"
    assert not {name.partition(".")[0] for name in found} & TORCH


def test_control_plane_never_imports_torch():
    """All of it in one interpreter: none of it may, so none can hide another."""
    assert not imported_by(f"import {', '.join(CONTROL_PLANE)}") & TORCH


def test_unit_tests_import_no_torch():
    """Both workers of the fast suites load every test file: torch and transformers would be seconds of each."""
    unit = Path(__file__).parents[1]
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in unit.rglob("*.py")]
    imports = [node for tree in trees for node in tree.body if isinstance(node, ast.ImportFrom) and node.module]
    names = {node.module for node in imports if node.module.partition(".")[0] == "charter"}
    assert len(names) > 100
    assert not imported_by(f"import {', '.join(sorted(names))}") & TORCH


def test_status_of_a_run_in_a_file_imports_only_what_it_uses(tmp_path):
    write_template(find_template("cai-smoke"), tmp_path)
    Ledger.open(tmp_path / "run" / "ledger.sqlite").close()
    for stage in status_of(load_project(tmp_path), tmp_path)["stages"]:
        Path(stage["directory"]).mkdir(parents=True)
        (Path(stage["directory"]) / JOB_FILE).write_text("{}")
    words = ["charter", "status", "-C", str(tmp_path), "--json"]
    found = modules_after(f"sys.argv = {words!r}; from charter.cli.main import entry; entry()")
    assert {"charter.ledger.attempt_counts", "charter.artifacts.job_files", "sqlite3"} <= found, "nothing was read"
    assert sorted(name for name in found if name.startswith(NOT_FOR_STATUS)) == []
    assert sorted(name for name in found if name.startswith("charter.cli.")) == CLI_OF_STATUS
